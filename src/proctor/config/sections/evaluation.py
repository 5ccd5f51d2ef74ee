"""The sections --eval.* and --video.*, which ``eval``, ``record`` and ``train`` share."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from proctor.errors import UsageError
from proctor.fingerprint import LOCAL_PATH, PRESENTATION
from proctor.settings import setting
from proctor.stats.stopping import NEVER
from proctor.types import DEFAULT_EPISODES, MAX_EPISODES


class SchedulerKind(Enum):
    """How episodes run: in the engine, or in the classic loop over a vector environment."""

    CONTINUOUS = "continuous"
    LOCKSTEP = "lockstep"


@dataclass
class RolloutConfig:
    """How episodes are run, in every command; none of it changes an episode's result."""

    help_group: ClassVar[str] = "Simulators"

    batch_size: int = setting(
        0,
        "simulators that run in parallel (default: one per core, three for two cores with a "
        "network on a GPU; at most 64, fewer if memory or episodes are few)",
        PRESENTATION,
        least=0,
        most=1024,
    )
    use_async_envs: bool = setting(
        True,
        "run every simulator in a process of its own; false: run all in this process",
        PRESENTATION,
    )
    watchdog_s: float = setting(
        120.0,
        "seconds without a simulator step after which a worker process is replaced",
        PRESENTATION,
        above=0,
        most=1e6,
    )
    max_retries: int = setting(
        2, "retries of an episode whose simulator failed", PRESENTATION, least=0, most=1000
    )
    strict: bool = setting(
        True,
        "on an accelerator, pad every batch to one size: results are bit-identical under any "
        "load; false: up to 5% faster",
        PRESENTATION,
    )

    @property
    def latency(self) -> int:
        """Simulator steps that pass during one inference."""
        return 0

    @property
    def lockstep(self) -> bool:
        """Whether episodes run in the lockstep loop instead of the engine."""
        return False

    @property
    def episodes_per_world(self) -> int:
        """Episodes from the same initial state."""
        return 1

    @property
    def plans_unseen(self) -> bool:
        """Whether only starts are planned that the policy was not trained on."""
        return False

    def validate(self) -> None:
        """Refuse settings that contradict each other."""


@dataclass
class EvalSettings(RolloutConfig):
    """Which episodes an evaluation runs, and how."""

    help_group: ClassVar[str] = "Episodes"

    n_episodes: int | None = setting(
        None,
        f"episodes per task (default: the benchmark's protocol: {DEFAULT_EPISODES} for most)",
        PRESENTATION,
        least=1,
        most=MAX_EPISODES,
    )
    episodes: list[int] | None = setting(
        None, "indices of the episodes to run of each task, as [0,3] (default: all)", PRESENTATION
    )
    scheduler: SchedulerKind = setting(
        SchedulerKind.CONTINUOUS,
        "continuous batching, or the lockstep loop of vector environments, as a reference",
        PRESENTATION,
    )
    stop_when: str = setting(
        NEVER,
        "stop early, at a width of the 95% interval: ci_width<0.05 (of the success rate) or "
        "task_ci_width<0.2 (of every task)",
        PRESENTATION,
    )

    repeats: int | None = setting(
        None,
        "episodes per initial state, which differ in the policy's own noise only; each task "
        "has n_episodes times as many, and pass^k is shown (default: 1)",
        least=1,
        most=1000,
    )
    unseen: bool | None = setting(
        None,
        "plan only episodes whose starts were not in the policy's training data; the simulators "
        "are reset first to measure them (default: false)",
        PRESENTATION,  # the protocol of such a run has the digest of the trained starts
    )
    latency_steps: int | None = setting(
        None,
        "simulated inference latency in simulator steps; the previous chunk is executed "
        "meanwhile. 0,2,4: one run each, and a comparison (default: 0)",
        least=0,
        most=10_000,
    )
    judge: str | None = setting(
        None,
        "reward classifier that judges the last images of every episode too: a checkpoint "
        "folder or Hub id (default: no judge)",
        PRESENTATION,
        LOCAL_PATH,
        placeholder="CHECKPOINT",
    )
    judge_threshold: float = setting(
        0.5,
        "probability above which the judge calls an episode a success",
        PRESENTATION,
        least=0,
        below=1,
    )

    def __post_init__(self) -> None:
        self.latency_steps = self.latency_steps or None  # one meaning, one fingerprint
        self.repeats = None if self.repeats == 1 else self.repeats
        self.unseen = self.unseen or None

    @property
    def latency(self) -> int:
        """Simulator steps that pass during one inference."""
        return self.latency_steps or 0

    @property
    def lockstep(self) -> bool:
        """Whether episodes run in the lockstep loop instead of the engine."""
        return self.scheduler is SchedulerKind.LOCKSTEP

    @property
    def indices(self) -> Collection[int]:
        """The indices of the episodes to run of each task."""
        return range(self._planned) if self.episodes is None else self.episodes

    @property
    def episodes_per_world(self) -> int:
        """Episodes from the same initial state."""
        return self.repeats or 1

    @property
    def plans_unseen(self) -> bool:
        """Whether only starts are planned that the policy was not trained on."""
        return bool(self.unseen)

    @property
    def count(self) -> int:
        """Initial states per task."""
        return DEFAULT_EPISODES if self.n_episodes is None else self.n_episodes

    @property
    def _planned(self) -> int:
        return self.count * self.episodes_per_world

    def validate(self) -> None:
        """Refuse settings that contradict each other."""
        for index in self.episodes or ():
            if not 0 <= index < self._planned:
                raise UsageError(
                    f"--eval.episodes: there is no episode {index} (a task has {self._planned} "
                    f"episodes: choose 0-{self._planned - 1})",
                    code="flag.out-of-range",
                )
        if self.judge is not None and self.lockstep:
            raise UsageError(
                "--eval.judge is not for --eval.scheduler=lockstep; leave one of them out",
                code="flag.conflict",
            )
        if self.episodes == []:
            raise UsageError(
                "--eval.episodes is empty; leave it out to run every episode", code="flag.empty"
            )


class VideoSelection(Enum):
    """Which episodes get videos."""

    FAILURES = "failures"
    FIRST = "first"
    ALL = "all"


@dataclass
class VideoSettings:
    """Which episodes get videos after the run; none of it changes an episode's result."""

    help_group: ClassVar[str] = "Videos"

    episodes: int | None = setting(
        None,
        "videos per task; 0: none (default: 1 if the policy uses images and this machine can "
        "render)",
        least=0,
    )
    which: VideoSelection = setting(
        VideoSelection.FAILURES,
        "episodes of each task to film: the first failures, the first episodes, or all",
    )
    height: int | None = setting(
        None,
        "height of the video in pixels (default: the size that the benchmark renders)",
        least=2,
        most=4320,
    )
    width: int | None = setting(
        None, "width of the video in pixels (default: by the aspect ratio)", least=2, most=7680
    )
    fps: float | None = setting(
        None, "frames per second of playback (default: real time)", least=0.1, most=1000
    )
    every: int | None = setting(
        None,
        "film every n-th simulator step (default: at least 8 frames per simulated second)",
        least=1,
        most=10**6,
    )

    @property
    def asked(self) -> bool:
        """Whether any video flag is set; otherwise a run that cannot render skips videos."""
        return self != VideoSettings()

    @property
    def per_task(self) -> int:
        """Videos per task."""
        return 1 if self.episodes is None else self.episodes
