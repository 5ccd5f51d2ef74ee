"""What one evaluation is asked to do: dataclasses, filled from flags, a config file or Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from proctor import registry
from proctor.benchmarks.base import BenchmarkConfig
from proctor.errors import UsageError
from proctor.flags import Flag, check_known, decode, flags_of, flatten
from proctor.policies.base import PolicyConfig
from proctor.report.sequential import NEVER, parse_stop_rule
from proctor.types import MOST_EPISODES

_MOST_WORKERS = 1024
STRICT_BATCH = 16
"""The one size of --eval.strict. It must not follow the number of workers: bits would."""


class SchedulerKind(Enum):
    """How episodes are run: by the engine, or by the classic loop over a vector environment."""

    CONTINUOUS = "continuous"
    LOCKSTEP = "lockstep"


@dataclass
class EvalSettings:
    """How the episodes are run. None of it may change what an episode gives."""

    n_episodes: int = field(default=50, metadata={"help": "episodes per task"})
    episodes: list[int] | None = field(
        default=None, metadata={"help": "only these of each task's n_episodes, as [0,3]"}
    )
    batch_size: int = field(
        default=0,
        metadata={
            "help": "simulators at once; 0: 0.7 x usable cores, at most 64 and one an episode"
        },
    )
    use_async_envs: bool = field(
        default=True, metadata={"help": "one process per simulator; false: all in this process"}
    )
    scheduler: SchedulerKind = field(
        default=SchedulerKind.CONTINUOUS,
        metadata={"help": "continuous batching, or the classic lockstep loop as a reference"},
    )
    watchdog_s: float = field(
        default=120.0,
        metadata={"help": "seconds without a simulator step after which a worker is replaced"},
    )
    max_retries: int = field(
        default=2, metadata={"help": "how often an episode whose simulator broke is tried again"}
    )
    stop_when: str = field(
        default=NEVER,
        metadata={
            "help": "stop early: ci_width<0.05 (95% interval of all episodes), task_ci_width<0.2 "
            "(of every task) or never; tasks are then interleaved"
        },
    )
    strict: bool = field(
        default=False,
        metadata={
            "help": "on an accelerator, run every batch at one size: same bits whatever the load"
        },
    )

    @property
    def indices(self) -> Collection[int]:
        """Which episodes of each task are asked for."""
        return range(self.n_episodes) if self.episodes is None else self.episodes


class Which(Enum):
    """Which episodes are shown in videos."""

    FAILURES = "failures"
    FIRST = "first"
    ALL = "all"


@dataclass
class VideoSettings:
    """Which episodes are filmed after the run, and how. None of it changes an episode."""

    episodes: int | None = field(
        default=None,
        metadata={
            "help": "videos per task, 0: none (default: 1 where the policy sees images and this "
            "machine can)"
        },
    )
    which: Which = field(
        default=Which.FAILURES,
        metadata={"help": "the first failures of each task, the first episodes, or simply all"},
    )
    height: int | None = field(
        default=None, metadata={"help": "of the video; default: what the benchmark renders"}
    )
    width: int | None = field(
        default=None, metadata={"help": "of the video; one of the two keeps the shape"}
    )
    fps: float | None = field(
        default=None, metadata={"help": "frames per second it plays at; default: the world's speed"}
    )
    every: int | None = field(
        default=None,
        metadata={
            "help": "film every n-th step; default: at least 8 frames per second of the task"
        },
    )

    @property
    def asked(self) -> bool:
        """Whether any of it was asked for; else a run that cannot be filmed goes without."""
        return self != VideoSettings()

    @property
    def per_task(self) -> int:
        """How many videos each task gets."""
        return 1 if self.episodes is None else self.episodes

    def validate(self) -> None:
        """Refuse values that make no sense.

        Raises:
            UsageError: naming the flag.
        """
        _at_least("video.episodes", self.per_task, 0)
        for name, least, most in (("height", 2, 4320), ("width", 2, 7680), ("every", 1, 10**6)):
            value = getattr(self, name)
            if value is not None:
                _between(f"video.{name}", value, least, most)
        if self.fps is not None and not 0.1 <= self.fps <= 1000:
            raise UsageError(f"--video.fps must be between 0.1 and 1000, got {self.fps:g}")


@dataclass
class EvalConfig:
    """One evaluation: which policy, on which benchmark, how, and where the results go."""

    policy: PolicyConfig
    env: BenchmarkConfig
    eval: EvalSettings = field(default_factory=EvalSettings)
    video: VideoSettings = field(default_factory=VideoSettings)
    output_dir: Path | None = field(
        default=None,
        metadata={"help": "the run folder (default: outputs/eval/DATE/TIME_ENV_POLICY)"},
    )
    seed: int = field(default=1000, metadata={"help": "seed of the first episode of every task"})
    resume: bool = field(
        default=False,
        metadata={
            "help": "run the episodes that are missing in output_dir; needs no other flag, but "
            "types that are MODULE:NAME again"
        },
    )
    against: Path | None = field(
        default=None,
        metadata={
            "help": "a run to compare with: runs its episodes (its --env, --seed and "
            "--eval.n_episodes unless given) and stops once better or worse is shown"
        },
    )
    alpha: float = field(default=0.05, metadata={"help": "level of the test of --against"})

    live: bool = field(
        default=False, metadata={"help": "serve the report page while the run goes on"}
    )
    live_host: str = field(
        default="127.0.0.1",
        metadata={"help": "address to serve it on; other than this machine's own needs a token"},
    )
    live_port: int = field(default=8642, metadata={"help": "port to serve it on; 0: any free one"})

    @property
    def may_stop(self) -> bool:
        """Whether the run may end before every planned episode has."""
        return self.against is not None or parse_stop_rule(self.eval.stop_when) is not None

    def validate(self) -> None:
        """Refuse values that make no sense.

        Raises:
            UsageError: naming the flag.
        """
        _between("eval.n_episodes", self.eval.n_episodes, 1, MOST_EPISODES)
        for index in self.eval.episodes or ():
            if not 0 <= index < self.eval.n_episodes:
                raise UsageError(
                    f"--eval.episodes: there is no episode {index} "
                    f"(--eval.n_episodes is {self.eval.n_episodes}: choose 0-"
                    f"{self.eval.n_episodes - 1})"
                )
        if self.eval.episodes == []:
            raise UsageError("--eval.episodes is empty; leave it out to run every episode")
        _between("eval.batch_size", self.eval.batch_size, 0, _MOST_WORKERS)
        _between("eval.max_retries", self.eval.max_retries, 0, 1000)
        _at_least("env.max_parallel_tasks", self.env.max_parallel_tasks, 0)
        _between("seed", self.seed, 0, 2**31 - 1)
        if not self.eval.watchdog_s > 0:
            raise UsageError(f"--eval.watchdog_s must be above 0, got {self.eval.watchdog_s:g}")
        if self.eval.watchdog_s > 1e6:
            raise UsageError(f"--eval.watchdog_s must be at most 1e6, got {self.eval.watchdog_s:g}")
        if not 0 <= self.live_port <= 65535:
            raise UsageError(f"--live_port must be 0 to 65535, got {self.live_port}")
        if not 0 < self.alpha < 0.5:
            raise UsageError(f"--alpha must be above 0 and below 0.5, got {self.alpha:g}")
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
        plain: dict[str, Any] = _plain(self)
        return plain


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"--{name} must be at least {least}, got {value}")


def _between(name: str, value: int, least: int, most: int) -> None:
    _at_least(name, value, least)
    if value > most:
        raise UsageError(f"--{name} must be at most {most}, got {value}")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        shown = [f for f in dataclasses.fields(value) if not f.metadata.get("hidden")]
        return {f.name: _plain(getattr(value, f.name)) for f in shown}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def common_flags() -> list[Flag]:
    """List the flags that every evaluation has, whatever the policy and the benchmark."""
    skip = ("policy.", "env.")
    return [flag for flag in flags_of(EvalConfig) if not flag.name.startswith(skip)]


def config_from(settings: dict[str, Any]) -> EvalConfig:
    """Build a checked config from settings, nested (as in a file) or flat (as on the command line).

    Raises:
        UsageError: an unknown setting, plug-in or a wrong value.
    """
    benchmark = registry.find_benchmark(_setting("env", "type", settings))
    policy = registry.find_policy(_policy_type(settings))
    flags = [
        *common_flags(),
        *flags_of(benchmark.config, "env."),
        *flags_of(policy.config, "policy."),
    ]
    values = flatten({k: v for k, v in settings.items() if k != "rename_map"}, flags)
    if "rename_map" in settings:  # LeRobot's name for what is a setting of the policy here
        values["policy.rename_map"] = settings["rename_map"]
    if policy.open_field is not None:
        _collect_others(values, flags, f"policy.{policy.open_field}")
    check_known(values, flags, ())
    config = EvalConfig(
        policy=decode(policy.config, values, "policy."),
        env=decode(benchmark.config, values, "env."),
        **_fields(decode(_Common, values)),
    )
    if config.eval.strict:
        config.policy.pad_to = STRICT_BATCH
    config.validate()
    return config


def trusted(settings: dict[str, Any], flags: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return settings that were read from a file, unless they name code that no flag names too.

    ``module:ATTRIBUTE`` is imported; a file may be someone else's, a flag is the user's own word.

    Raises:
        UsageError: with the flag that says that the code is to be trusted.
    """
    for part in ("policy", "env"):
        kind = _setting(part, "type", settings)
        if ":" in kind and flags.get(f"{part}.type") != kind:
            raise UsageError(
                f"{origin} asks to import {kind}; if you trust that code, add --{part}.type={kind}"
            )
    return settings


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
    config_class = registry.find_benchmark(str(settings.get("type", ""))).config
    flags = flags_of(config_class, "env.")
    values = flatten({"env": dict(settings)}, flags)
    check_known(values, flags, ())
    return decode(config_class, values, "env.")


@dataclass
class _Common:
    """The part of EvalConfig that no plug-in defines."""

    eval: EvalSettings = field(default_factory=EvalSettings)
    video: VideoSettings = field(default_factory=VideoSettings)
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


def _setting(part: str, name: str, settings: dict[str, Any]) -> str:
    """Return one setting, flat or nested, before it is known which others there may be."""
    section = settings.get(part)
    nested = section.get(name, "") if isinstance(section, dict) else ""
    return str(settings.get(f"{part}.{name}", nested) or "")
