"""What one evaluation is asked to do: dataclasses, filled from flags, a config file or Python."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor import plugins
from proctor.benchmarks.base import BenchmarkConfig
from proctor.config.flags import Flag, check_known, decode, flags_of, flatten
from proctor.config.sections import EvalSettings, SchedulerKind, VideoSettings, at_least, between
from proctor.definition import PRESENTATION, plain
from proctor.errors import UsageError
from proctor.policies.base import PolicyConfig
from proctor.recorders.wandb import WandbConfig
from proctor.stats.rates import LEAST_ALPHA
from proctor.stats.stopping import parse_stop_rule
from proctor.types import MOST_EPISODES

_MOST_WORKERS = 1024
STRICT_BATCH = 8
"""The one size of --eval.strict. It must not follow the number of workers: bits would.

For ACT with 14 simulators on an H200 it costs 5% from first episode to last, 16 would cost 9%."""


_ALIASES = ("rename_map", "trust_remote_code")
TRUST = ("trust_remote_code", "env.trust_remote_code")
"""The two spellings of the flag that lets somebody else's code run."""
CODE_NAMES = ("policy.type", "env.type", "env.id")
"""Flags whose value may be MODULE:NAME, and then the module is imported."""


@dataclass
class EvalConfig:
    """One evaluation: which policy, on which benchmark, how, and where the results go."""

    policy: PolicyConfig
    env: BenchmarkConfig
    eval: EvalSettings = field(default_factory=EvalSettings)
    video: VideoSettings = field(default_factory=VideoSettings, metadata=PRESENTATION)
    wandb: WandbConfig = field(default_factory=WandbConfig, metadata=PRESENTATION)
    output_dir: Path | None = field(
        default=None,
        metadata={"help": "the run folder (default: outputs/eval/DATE/TIME_ENV_POLICY)"}
        | PRESENTATION,
    )
    seed: int = field(default=1000, metadata={"help": "seed of the first episode of every task"})
    resume: bool = field(
        default=False,
        metadata={
            "help": "run the episodes that are missing in output_dir; needs no other flag, but "
            "types that are MODULE:NAME again"
        }
        | PRESENTATION,
    )
    against: Path | None = field(
        default=None,
        metadata={
            "help": "a run to compare with: runs its episodes (its --env, --seed and "
            "--eval.n_episodes unless given) and stops once better or worse is shown"
        }
        | PRESENTATION,
    )
    alpha: float = field(
        default=0.05, metadata={"help": "level of the test of --against"} | PRESENTATION
    )

    live: bool = field(
        default=False,
        metadata={"help": "serve the report page while the run goes on"} | PRESENTATION,
    )
    live_host: str = field(
        default="127.0.0.1",
        metadata={"help": "address to serve it on; other than this machine's own needs a token"}
        | PRESENTATION,
    )
    live_port: int = field(
        default=8642, metadata={"help": "port to serve it on; 0: any free one"} | PRESENTATION
    )

    @property
    def may_stop(self) -> bool:
        """Whether the run may end before every planned episode has."""
        return self.against is not None or parse_stop_rule(self.eval.stop_when) is not None

    def validate(self) -> None:
        """Refuse values that make no sense.

        Raises:
            UsageError: naming the flag.
        """
        between("eval.n_episodes", self.eval.n_episodes, 1, MOST_EPISODES)
        for index in self.eval.episodes or ():
            if not 0 <= index < self.eval.n_episodes:
                raise UsageError(
                    f"--eval.episodes: there is no episode {index} "
                    f"(--eval.n_episodes is {self.eval.n_episodes}: choose 0-"
                    f"{self.eval.n_episodes - 1})"
                )
        if self.eval.episodes == []:
            raise UsageError("--eval.episodes is empty; leave it out to run every episode")
        between("eval.batch_size", self.eval.batch_size, 0, _MOST_WORKERS)
        between("eval.max_retries", self.eval.max_retries, 0, 1000)
        at_least("env.max_parallel_tasks", self.env.max_parallel_tasks, 0)
        between("seed", self.seed, 0, 2**31 - 1)
        if not self.eval.watchdog_s > 0:
            raise UsageError(f"--eval.watchdog_s must be above 0, got {self.eval.watchdog_s:g}")
        if self.eval.watchdog_s > 1e6:
            raise UsageError(f"--eval.watchdog_s must be at most 1e6, got {self.eval.watchdog_s:g}")
        if not 0 <= self.live_port <= 65535:
            raise UsageError(f"--live_port must be 0 to 65535, got {self.live_port}")
        if not LEAST_ALPHA <= self.alpha < 0.5:
            least = f"{LEAST_ALPHA:g}"
            raise UsageError(f"--alpha must be from {least} to below 0.5, got {self.alpha:g}")
        self.video.validate()
        if self.may_stop:
            self._validate_stopping()

    def _validate_stopping(self) -> None:
        flag = "--against" if self.against is not None else "--eval.stop_when"
        if self.eval.scheduler is SchedulerKind.LOCKSTEP:
            raise UsageError(
                f"{flag} interleaves tasks, lockstep runs one after the other; "
                "leave --eval.scheduler out"
            )
        if self.env.max_parallel_tasks > 0:
            raise UsageError(
                f"{flag} interleaves tasks, which --env.max_parallel_tasks="
                f"{self.env.max_parallel_tasks} does not allow; leave one of them out"
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the config as JSON values, such that ``config_from`` gives the same again."""
        told: dict[str, Any] = plain(self, _is_shown)
        return told


def _is_shown(owner: type, field_name: str) -> bool:
    known = {f.name: f for f in dataclasses.fields(owner)}
    return not known[field_name].metadata.get("hidden")


def common_flags() -> list[Flag]:
    """List the flags that every evaluation has, whatever the policy and the benchmark."""
    skip = ("policy.", "env.")
    return [flag for flag in flags_of(EvalConfig) if not flag.name.startswith(skip)]


def config_from(settings: dict[str, Any]) -> EvalConfig:
    """Build a checked config from settings, nested (as in a file) or flat (as on the command line).

    Raises:
        UsageError: an unknown setting, plug-in or a wrong value.
    """
    benchmark = plugins.find_benchmark(_setting("env", "type", settings))
    policy = plugins.find_policy(_policy_type(settings))
    flags = [
        *common_flags(),
        *flags_of(benchmark.config, "env."),
        *flags_of(policy.config, "policy."),
    ]
    values = flatten({k: v for k, v in settings.items() if k not in _ALIASES}, flags)
    if "rename_map" in settings:  # LeRobot's name for what is a setting of the policy here
        values["policy.rename_map"] = settings["rename_map"]
    if "trust_remote_code" in settings:  # LeRobot's name for what is a setting of one benchmark
        values["env.trust_remote_code"] = settings["trust_remote_code"]
    if policy.open_field is not None:
        _collect_others(values, flags, f"policy.{policy.open_field}")
    check_known(values, flags, ())
    config = EvalConfig(
        policy=decode(policy.config, values, "policy."),
        env=decode(benchmark.config, values, "env."),
        **_fields(decode(_Common, values)),
    )
    if config.eval.strict and config.policy.pad_to is None:
        config.policy.pad_to = STRICT_BATCH
    config.validate()
    return config


def trusted(settings: dict[str, Any], flags: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return settings that were read from a file, less the leave to run somebody else's code.

    A file may come from anywhere; a flag is the user's own word. So the leave is given again, and
    ``module:ATTRIBUTE``, which is imported, is refused unless a flag names it too.

    Raises:
        UsageError: with the flag that says that the code is to be trusted.
    """
    for name in CODE_NAMES:
        part, _, field_name = name.partition(".")
        value = _setting(part, field_name, settings)
        if ":" in value and flags.get(name) != value:
            raise UsageError(
                f"{origin} asks to import {value}; if you trust that code, add --{name}={value}"
            )
    kept = {name: value for name, value in settings.items() if name not in TRUST}
    if isinstance(kept.get("env"), dict):
        kept["env"] = {k: v for k, v in kept["env"].items() if k != TRUST[0]}
    return kept


def _policy_type(settings: dict[str, Any]) -> str:
    """Return the policy's type: as given, or ``pretrained`` where there is only a path."""
    given = _setting("policy", "type", settings)
    if not _setting("policy", "path", settings):
        return given
    if given not in ("", "pretrained"):
        raise UsageError(
            f"--policy.path states the policy's type itself; leave out --policy.type={given}"
        )
    return "pretrained"


def _collect_others(values: dict[str, Any], flags: list[Flag], into: str) -> None:
    """Move the policy's settings that no flag is known for into the setting ``into``."""
    known = {flag.name for flag in flags}
    others = [name for name in values if name.startswith("policy.") and name not in known]
    if others:
        collected = dict(values.get(into) or {})
        collected |= {name.removeprefix("policy."): values.pop(name) for name in others}
        values[into] = collected


def benchmark_config_from(settings: Mapping[str, Any]) -> BenchmarkConfig:
    """Build a checked benchmark config from its own settings, ``{"type": "metaworld", ...}``.

    Raises:
        UsageError: an unknown setting, plug-in or a wrong value.
    """
    config_class = plugins.find_benchmark(str(settings.get("type", ""))).config
    flags = flags_of(config_class, "env.")
    values = flatten({"env": dict(settings)}, flags)
    check_known(values, flags, ())
    return decode(config_class, values, "env.")


@dataclass
class _Common:
    """The part of EvalConfig that no plug-in defines."""

    eval: EvalSettings = field(default_factory=EvalSettings)
    video: VideoSettings = field(default_factory=VideoSettings)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    output_dir: Path | None = None
    seed: int = EvalConfig.seed
    resume: bool = EvalConfig.resume
    against: Path | None = None
    alpha: float = EvalConfig.alpha
    live: bool = EvalConfig.live
    live_host: str = EvalConfig.live_host
    live_port: int = EvalConfig.live_port


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def code_flags(config: EvalConfig) -> str:
    """Return the flags that must be given again, since a run folder does not speak for code."""
    values = (config.policy.type, config.env.type, str(getattr(config.env, "id", "")))
    named = zip(CODE_NAMES, values, strict=True)
    flags = [f" --{name}={shlex.quote(value)}" for name, value in named if ":" in value]
    trust = getattr(config.env, "trust_remote_code", False)
    return "".join(flags) + " --trust_remote_code" * bool(trust)


def _setting(part: str, name: str, settings: dict[str, Any]) -> str:
    """Return one setting, flat or nested, before it is known which others there may be."""
    section = settings.get(part)
    nested = section.get(name, "") if isinstance(section, dict) else ""
    return str(settings.get(f"{part}.{name}", nested) or "")
