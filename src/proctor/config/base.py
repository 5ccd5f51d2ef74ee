"""Base classes of the configs, and the metadata of sections whose fields a plug-in defines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from proctor.benchmarks.base import BenchmarkConfig
from proctor.config.sections.evaluation import RolloutConfig
from proctor.errors import UsageError
from proctor.fingerprint import PRESENTATION, ConfigUse, is_flag, to_json
from proctor.policies.base import PolicyConfig
from proctor.settings import check_settings, setting

if TYPE_CHECKING:
    from proctor.config.flags.parsing import Flag

STRICT_BATCH = 8
"""Batch size that --eval.strict pads to, a constant: results depend on it in their last bits.

For ACT with 14 simulators on an H200 it costs 5% of the run time; 16 would cost 9%."""
MOST_SEED = 2**31 - 1
RECORDED_SEED = 1_000_000
"""Default seed of recorded episodes. Evaluations start at 1000, so their episodes are unseen."""
_SECTION = "plugin_section"
_RAY_ADDRESS = re.compile(
    r"ray://[A-Za-z0-9._-]+:\d{1,5}|ray://\[[0-9a-fA-F:]+\]:\d{1,5}", re.ASCII
)


@dataclass(frozen=True)
class PluginSection:
    """A section whose config class is that of the plug-in named by its ``type``."""

    kind: str
    """Kind of plug-in, a key of ``proctor.plugins.BUILT_IN``."""
    type_of_path: str | None = None
    """The type of a section that has a ``path`` and no ``type``."""
    optional: bool = False
    """Whether the section may be absent; the field is then None."""
    only: tuple[str, ...] = ()
    """The types that the command takes; empty: all of ``kind``."""


def plugin_section(
    kind: str,
    *,
    type_of_path: str | None = None,
    optional: bool = False,
    only: tuple[str, ...] = (),
    kw_only: bool = False,
) -> Any:
    """Declare a field whose flags are defined by a plug-in."""
    metadata = {_SECTION: PluginSection(kind, type_of_path, optional, only)}
    return field(default=None if optional else MISSING, kw_only=kw_only, metadata=metadata)


def plugin_sections(cls: type[Any]) -> dict[str, PluginSection]:
    """Return the plug-in sections of a config class by name."""
    return {f.name: f.metadata[_SECTION] for f in fields(cls) if _SECTION in f.metadata}


@dataclass
class Config:
    """Base class of the configs of commands with plug-ins."""

    use: ClassVar[ConfigUse] = ConfigUse.EVALUATION
    first: ClassVar[str] = ""
    """Names of the most used flags, separated by spaces, in the order of ``--help``."""
    foreign: ClassVar[tuple[str, ...]] = ("environments",)
    """Groups of LeRobot's flags that Proctor lacks: accepted with a note, or refused."""

    notes: list[str] = field(
        default_factory=list, init=False, compare=False, metadata={"hidden": True} | PRESENTATION
    )
    """Notes on flags without effect, to be shown once."""

    @classmethod
    def more_flags(cls) -> list[Flag]:
        """Return flags of the help that are no fields of the config; subclasses extend this."""
        return []

    def validate(self) -> None:
        """Refuse values out of bounds; subclasses extend this by rules of several flags."""
        check_settings(self)

    def unused_notes(self) -> list[str]:
        """Return notes on flags without effect; subclasses with such flags extend this."""
        return []

    def as_dict(self) -> dict[str, Any]:
        """Return the config as JSON values; ``config.builder.build`` makes an equal one of them."""
        values: dict[str, Any] = to_json(self, self._is_shown)
        return values

    def _is_shown(self, owner: type[Any], field_name: str) -> bool:
        known = {f.name: f for f in fields(owner)}
        return is_flag(known[field_name].metadata, self.use)


@dataclass
class RunConfig(Config):
    """Config of a run: policy, benchmark, rollout settings and run folder."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Run folder": "output_dir resume",
        "Episodes": "seed",
        "Simulators": "cluster",
    }

    foreign: ClassVar[tuple[str, ...]] = ("environments", "policies", "family_fields")

    policy: PolicyConfig = plugin_section("policies", type_of_path="pretrained")
    env: BenchmarkConfig = plugin_section("benchmarks")
    eval: RolloutConfig = field(default_factory=RolloutConfig)
    output_dir: Path | None = setting(
        None, "folder of the run (default: outputs/eval/DATE/TIME_ENV_POLICY)", PRESENTATION
    )
    seed: int = setting(
        1000,
        "seed of the first episode of each task; episode i uses seed + i",
        least=0,
        most=MOST_SEED,
    )
    cluster: str | None = setting(
        None,
        "run episodes on a Ray cluster: auto (this machine's), ray://HEAD:10001, or local "
        "(started for this run) (default: no cluster)",
        PRESENTATION,
    )
    resume: bool = setting(
        False,
        "run the episodes that are missing in output_dir, with that run's settings; repeat "
        "flags that name code (MODULE:NAME)",
        PRESENTATION,
    )

    def __post_init__(self) -> None:
        if self.cluster == "none":
            self.cluster = None

    def validate(self) -> None:
        """Refuse invalid values."""
        super().validate()
        self.eval.validate()
        if self.policy.latency_steps is not None:
            raise UsageError(
                "--policy.latency_steps does not simulate latency; use "
                f"--eval.latency_steps={self.policy.latency_steps}",
                code="flag.conflict",
            )
        if self.cluster is not None:
            self._validate_cluster(self.cluster)

    def _validate_cluster(self, address: str) -> None:
        if address not in ("auto", "local") and not _RAY_ADDRESS.fullmatch(address):
            raise UsageError(
                f"--cluster: {address!r} is not a cluster; choose auto, local or ray://HOST:PORT",
                code="flag.invalid-value",
            )
        if not self.eval.use_async_envs:
            raise UsageError(
                "--cluster: simulators need processes of their own; leave out "
                "--eval.use_async_envs=false",
                code="flag.conflict",
            )

    @property
    def may_stop(self) -> bool:
        """Whether the run may stop before all planned episodes are run; a subclass may say so."""
        return False

    @property
    def played_policy(self) -> PolicyConfig:
        """The policy config with the padding and latency that --eval.* sets."""
        pad_to, latency = self.policy.pad_to, self.eval.latency
        if self.eval.strict and pad_to is None:
            pad_to = STRICT_BATCH
        return replace(self.policy, pad_to=pad_to, latency_steps=latency or None)
