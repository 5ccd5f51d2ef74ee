"""The video phase of a run: replays selected episodes and records videos of them.

Simulators are reproducible, so videos of failures need no recording during the run, and episodes
without a video cost nothing. The recorded actions are replayed if the run has just ended; otherwise
the policy computes them again. Every replay is compared with the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from proctor.benchmarks.base import Benchmark, display_keys
from proctor.callbacks.base import Callback
from proctor.callbacks.video import VideoOptions, require_encoder
from proctor.config.sections.evaluation import VideoSelection, VideoSettings
from proctor.engine.cluster.cluster_engine import ClusterEngine
from proctor.engine.engine import Engine
from proctor.errors import PolicyError, UsageError, WorkerError, summarize_traceback
from proctor.features import Array, FeatureKind
from proctor.policies.base import Policy
from proctor.report.robustness.drops import pair_with_clean
from proctor.runs.folder import write_json
from proctor.runs.journal import EpisodeRecord, make_record, video_path
from proctor.runs.replay import EpisodeReplay
from proctor.runs.step_values import write_step_values
from proctor.runs.videos import WARNINGS_FILE, read_video_warnings
from proctor.types import EpisodeKey, EpisodeResult, EpisodeSpec, Outcome, Perturbation

_MOST_BYTES = 256 * 2**20
"""Maximum size of actions kept for videos: some 10,000 episodes; beyond it the policy runs
again."""


@dataclass
class ReplayedVideos:
    """The result of the video phase."""

    videos: int = 0
    """Number of videos in the run folder."""
    note: str | None = None
    """Why there is no video."""
    warnings: list[str] = field(default_factory=list)
    """Episodes that could not be replayed, or whose replay differed."""


@dataclass(frozen=True)
class VideoReplay:
    """What the video phase is made from."""

    settings: VideoSettings
    benchmark: Benchmark
    policy: Policy
    plan: Sequence[EpisodeSpec]
    folder: Path

    def missing(self, rows: Sequence[EpisodeRecord]) -> list[EpisodeSpec]:
        """Return the selected episodes that have no video yet."""
        perturbed = {
            spec.task.key: spec.task.perturbation
            for spec in self.plan
            if spec.task.perturbation is not None
        }
        keys = set(choose_episodes(rows, self.settings, perturbed))
        keys = {key for key in keys if not (self.folder / video_path(key)).exists()}
        return [spec for spec in self.plan if spec.key in keys]

    @property
    def enabled(self) -> bool:
        """Whether to record videos: if requested, or if the policy has image inputs.

        For other policies videos may take longer than the run: software renders 5 to 10 frames a
        second, and a scripted policy takes hundreds of steps a second.
        """
        features = self.benchmark.features()
        sees = any(features[key].kind is FeatureKind.VISUAL for key in self.policy.spec.inputs)
        return self.settings.asked or sees

    def empty_note(self, rows: Sequence[EpisodeRecord]) -> str | None:
        """Return why no episode is selected although videos were requested; None otherwise."""
        settings = self.settings
        if (
            not settings.per_task
            or not settings.asked
            or settings.which is not VideoSelection.FAILURES
        ):
            return None
        if any(row.outcome.failed for row in rows):
            return (
                "no videos: every failure broke its simulator; --video.which=first records others"
            )
        return "no videos: no episode failed; --video.which=first records the first ones"

    def environment(self) -> dict[str, str]:
        """Check that the benchmark can render here; return the workers' environment variables."""
        require_encoder()
        keys = display_keys(self.benchmark.features())
        if not keys:
            raise UsageError(
                f"{self.benchmark.name} has no camera for videos", code="video.no-camera"
            )
        return self.benchmark.preflight(keys)

    def camera(self) -> VideoOptions:
        """Return the options of videos that show all images of the benchmark."""
        keys, settings = display_keys(self.benchmark.features()), self.settings
        policy = self.policy.spec
        return VideoOptions(
            folder=self.folder.absolute(),
            keys=keys,
            policy_image_interval=policy.n_action_steps or 0
            if set(keys) <= set(policy.inputs)
            else 0,
            every=settings.every,
            fps=settings.fps,
            height=settings.height,
            width=settings.width,
        )


def choose_episodes(
    rows: Sequence[EpisodeRecord],
    settings: VideoSettings,
    perturbed: Mapping[tuple[str, int], Perturbation] = MappingProxyType({}),
) -> list[EpisodeKey]:
    """Return the episodes to record: of each task the first failures, the first, or all.

    Of the failures of a ``perturbed`` task, those come first whose clean counterpart succeeded. The
    counterpart is recorded too, so that both can be seen side by side.
    """
    chosen: list[EpisodeKey] = []
    of_task: Counter[tuple[str, int]] = Counter()
    lost: dict[EpisodeKey, EpisodeKey] = {}
    if settings.which is VideoSelection.FAILURES and perturbed:
        pairs, _ = pair_with_clean(perturbed, rows)
        lost = {pair.perturbed.key: pair.clean.key for pair in pairs if pair.lost}
    for row in sorted(rows, key=lambda row: (*row.key[:2], row.key not in lost, row.key)):
        if not _is_selected(row.outcome, settings):
            continue
        of_task[row.suite, row.task_id] += 1
        if (
            settings.which is VideoSelection.ALL
            or of_task[row.suite, row.task_id] <= settings.per_task
        ):
            chosen.append(row.key)
    counterparts = [lost[key] for key in chosen if key in lost]
    return list(dict.fromkeys([*chosen, *counterparts]))


def _is_selected(outcome: Outcome, settings: VideoSettings) -> bool:
    """Whether episodes with this outcome are candidates for a video."""
    if not outcome.is_complete or not settings.per_task:
        return False
    shown_anyway = settings.which is not VideoSelection.FAILURES or outcome is Outcome.ENDED
    return outcome.failed or shown_anyway


def record_videos(
    engine: Engine | ClusterEngine,
    camera: VideoOptions,
    rows: Sequence[EpisodeRecord],
    callbacks: Sequence[Callback],
    actions: Mapping[EpisodeKey, Array],
) -> list[str]:
    """Run the engine's episodes with ``camera`` and return warnings.

    Known ``actions`` are replayed; otherwise the policy is called. The warnings are stored with the
    videos. An error here costs videos only: the run's episodes are on disk.
    """
    check = _ReplayCheck(rows, camera.folder)
    values = _StepValuesWriter(camera)
    ended_early = []
    try:
        engine.run([check, values, *callbacks], camera=camera, actions=actions)
    except (PolicyError, WorkerError) as error:
        ended_early = [f"filming ended early: {error}"]
    finally:
        _keep_warnings(camera.folder, check)
    return [*check.warnings.values(), *ended_early]


def _keep_warnings(folder: Path, check: _ReplayCheck) -> None:
    """Store the warnings, replacing earlier ones of the same episodes."""
    earlier = read_video_warnings(folder)
    kept = {video: text for video, text in earlier.items() if video not in check.filmed}
    kept |= check.warnings
    if kept != earlier:
        (folder / WARNINGS_FILE).parent.mkdir(exist_ok=True)
        write_json(folder / WARNINGS_FILE, kept)


class ActionHistory(Callback):
    """Keeps the actions of episodes that are candidates for a video."""

    def __init__(self, settings: VideoSettings) -> None:
        self.actions: dict[EpisodeKey, Array] = {}
        self._settings = settings
        self._bytes = 0

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Keep the actions, and drop those of episodes that are no longer candidates."""
        if result.actions is None or not _is_selected(result.outcome, self._settings):
            return
        self._keep(result.spec.key, result.actions)
        if self._settings.which is not VideoSelection.ALL:
            of_task = sorted(key for key in self.actions if key[:2] == result.spec.task.key)
            for key in of_task[self._settings.per_task :]:
                self._bytes -= self.actions.pop(key).nbytes

    def _keep(self, key: EpisodeKey, actions: Array) -> None:
        if self._bytes + actions.nbytes <= _MOST_BYTES:
            self.actions[key] = actions.copy()
            self._bytes += actions.nbytes


class _ReplayCheck(Callback):
    """Compares each replayed episode with its row in the journal."""

    def __init__(self, rows: Sequence[EpisodeRecord], folder: Path) -> None:
        self.filmed: set[str] = set()
        self.warnings: dict[str, str] = {}
        """By the video's path in the run folder."""
        self._rows = {row.key: row for row in rows}
        self._folder = folder

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Warn of any difference; remove a video whose outcome differs from the journal's."""
        video = video_path(result.spec.key)
        self.filmed.add(video)
        if result.error is not None:
            reason = summarize_traceback(result.error)
            self.warnings[video] = f"{result.spec} could not be filmed: {reason}"
            return
        replay = EpisodeReplay(self._rows[result.spec.key], make_record(result))
        if not replay.differences:
            return
        kept_or_removed = "kept"
        if replay.replayed.outcome is not replay.recorded.outcome:
            (self._folder / video).unlink()
            kept_or_removed = "removed"
        self.warnings[video] = (
            f"{result.spec} came out differently for the camera "
            f"({', '.join(replay.differences)}); its video is {kept_or_removed}"
        )


class _StepValuesWriter(Callback):
    """Writes the actions and rewards of every filmed episode beside its video."""

    def __init__(self, camera: VideoOptions) -> None:
        self._camera = camera

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Write the values, if the episode has a video."""
        if (self._camera.folder / video_path(result.spec.key)).is_file():
            steps_per_s = self._camera.steps_per_second(result.spec.task.fps)
            write_step_values(self._camera.folder, result, steps_per_s)
