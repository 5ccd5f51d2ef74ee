"""What every config of a run shares, and how a section is marked that a plug-in defines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from proctor.benchmarks.base import BenchmarkConfig
from proctor.config.bounds import at_least, between
from proctor.config.lerobot_evaluation import OF_ENVIRONMENTS, OF_POLICIES
from proctor.config.sections import RolloutConfig
from proctor.errors import UsageError
from proctor.fingerprint import PRESENTATION, ConfigUse, is_flag, to_json
from proctor.lerobot_flags import LerobotFlag
from proctor.policies.base import PolicyConfig

STRICT_BATCH = 8
"""The one size of --eval.strict. It must not follow the number of workers: bits would.

For ACT with 14 simulators on an H200 it costs 5% from first episode to last, 16 would cost 9%."""
MOST_SEED = 2**31 - 1
_SECTION = "plugin_section"
_RAY_ADDRESS = re.compile(
    r"ray://[A-Za-z0-9._-]+:\d{1,5}|ray://\[[0-9a-fA-F:]+\]:\d{1,5}", re.ASCII
)


@dataclass(frozen=True)
class PluginSection:
    """A section whose class is chosen by its ``type``, among the plug-ins of one kind."""

    kind: str
    """As ``proctor.plugins`` calls it: "policies", "benchmarks"."""
    type_of_path: str | None = None
    """The type that is meant where the section names no type but a ``path``."""
    optional: bool = False
    """Whether it may be left out; the field is then None."""


def plugin_section(
    kind: str, *, type_of_path: str | None = None, optional: bool = False
) -> dict[str, Any]:
    """Return the metadata of a field whose flags a plug-in defines."""
    return {_SECTION: PluginSection(kind, type_of_path, optional)}


def plugin_sections(cls: type[Any]) -> dict[str, PluginSection]:
    """Return the sections of a config class that plug-ins define, by name."""
    return {f.name: f.metadata[_SECTION] for f in fields(cls) if _SECTION in f.metadata}


@dataclass
class Config:
    """What a command is asked to do."""

    use: ClassVar[ConfigUse] = ConfigUse.EVALUATION
    first: ClassVar[str] = ""
    """The names of the flags that people use first, in the order in which to say them."""
    foreign: ClassVar[Mapping[str, LerobotFlag]] = OF_ENVIRONMENTS
    """LeRobot's flags that are no flags here, by dotted name."""

    notes: list[str] = field(
        default_factory=list, init=False, compare=False, metadata={"hidden": True} | PRESENTATION
    )
    """Lines on flags that change nothing, which the user should see once."""

    def validate(self) -> None:
        """Refuse values that make no sense; a class that adds fields extends this.

        Raises:
            UsageError: naming the flag.
        """

    def as_dict(self) -> dict[str, Any]:
        """Return the config as JSON values, such that ``build`` gives the same again."""
        told: dict[str, Any] = to_json(self, self._is_shown)
        return told

    def _is_shown(self, owner: type[Any], field_name: str) -> bool:
        known = {f.name: f for f in fields(owner)}
        return is_flag(known[field_name].metadata, self.use)


@dataclass
class RunConfig(Config):
    """A run in a folder of its own: which policy, in which world, how, and where results go."""

    foreign: ClassVar[Mapping[str, LerobotFlag]] = {**OF_ENVIRONMENTS, **OF_POLICIES}

    policy: PolicyConfig = field(metadata=plugin_section("policies", type_of_path="pretrained"))
    env: BenchmarkConfig = field(metadata=plugin_section("benchmarks"))
    eval: RolloutConfig = field(default_factory=RolloutConfig)
    output_dir: Path | None = field(
        default=None,
        metadata={"help": "the run folder (default: outputs/eval/DATE/TIME_ENV_POLICY)"}
        | PRESENTATION,
    )
    seed: int = field(default=1000, metadata={"help": "seed of the first episode of every task"})
    cluster: str | None = field(
        default=None,
        metadata={
            "help": "play on the nodes of a Ray cluster: auto (the one this machine is in), "
            "ray://HEAD:10001, or local (one that is started here for the run); none: here"
        }
        | PRESENTATION,
    )
    resume: bool = field(
        default=False,
        metadata={
            "help": "run the episodes that are missing in output_dir; needs no other flag, but "
            "types that are MODULE:NAME again"
        }
        | PRESENTATION,
    )

    def __post_init__(self) -> None:
        if self.cluster == "none":
            self.cluster = None

    def validate(self) -> None:
        """Refuse values that make no sense; a class that adds fields extends this.

        Raises:
            UsageError: naming the flag.
        """
        self.eval.validate()
        at_least("env.max_parallel_tasks", self.env.max_parallel_tasks, 0)
        between("seed", self.seed, 0, MOST_SEED)
        if self.policy.latency_steps is not None:
            raise UsageError(
                "--policy.latency_steps alone lets no world go on; say "
                f"--eval.latency_steps={self.policy.latency_steps}"
            )
        if self.cluster is not None:
            self._validate_cluster(self.cluster)

    def _validate_cluster(self, address: str) -> None:
        if address not in ("auto", "local") and not _RAY_ADDRESS.fullmatch(address):
            raise UsageError(
                f"--cluster: {address!r} is no cluster; choose auto, local or ray://HOST:PORT"
            )
        if not self.eval.use_async_envs:
            raise UsageError(
                "--cluster: simulators have processes of their own there; leave out "
                "--eval.use_async_envs=false"
            )

    @property
    def may_stop(self) -> bool:
        """Whether the run may end before every planned episode has; a class may override this."""
        return False

    @property
    def played_policy(self) -> PolicyConfig:
        """What the policy is made from: its config, and what --eval.* says of how it is played."""
        pad_to, latency = self.policy.pad_to, self.eval.latency
        if self.eval.strict and pad_to is None:
            pad_to = STRICT_BATCH
        return replace(self.policy, pad_to=pad_to, latency_steps=latency or None)
