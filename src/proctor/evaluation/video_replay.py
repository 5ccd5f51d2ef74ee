"""The second phase of a run: plays chosen episodes again for the camera.

Simulators are reproducible, so the camera need not guess beforehand which episodes will fail, and
those that are not shown pay nothing. The actions are those of the run, if it has just ended; else
the policy is asked again. Every episode is compared with what the journal says of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proctor.benchmarks.base import Benchmark, display_keys
from proctor.callbacks.base import Callback
from proctor.callbacks.video import VideoOptions, require_encoder
from proctor.config.sections import VideoSelection, VideoSettings
from proctor.engine.cluster_engine import ClusterEngine
from proctor.engine.engine import Engine
from proctor.errors import PolicyError, UsageError, WorkerError, summarize_traceback
from proctor.features import Array, FeatureKind
from proctor.policies.base import Policy
from proctor.runs.folder import write_json
from proctor.runs.journal import EpisodeRecord, make_record, video_path
from proctor.runs.replay import EpisodeReplay
from proctor.runs.videos import WARNINGS_FILE, read_video_warnings
from proctor.types import EpisodeKey, EpisodeResult, EpisodeSpec, Outcome

_MOST_BYTES = 256 * 2**20
"""Of actions that are kept for the camera: some 10,000 episodes; the policy plays the rest."""


@dataclass
class ReplayedVideos:
    """What came of filming."""

    videos: int = 0
    """How many videos the run folder holds of its episodes."""
    note: str | None = None
    """Why there is none."""
    warnings: list[str] = field(default_factory=list)
    """Episodes that could not be filmed, or came out differently for the camera."""


@dataclass(frozen=True)
class VideoReplay:
    """What the second phase is made from."""

    settings: VideoSettings
    benchmark: Benchmark
    policy: Policy
    plan: Sequence[EpisodeSpec]
    folder: Path

    def missing(self, rows: Sequence[EpisodeRecord]) -> list[EpisodeSpec]:
        """Return the episodes that are to be shown and have no video yet."""
        keys = set(choose_episodes(rows, self.settings))
        keys = {key for key in keys if not (self.folder / video_path(key)).exists()}
        return [spec for spec in self.plan if spec.key in keys]

    @property
    def worth_it(self) -> bool:
        """Whether to film at all: when asked to, or when the policy looks at images.

        Filming one that does not may take longer than its run: software renders 5 to 10 frames a
        second, a scripted policy plays hundreds of steps.
        """
        features = self.benchmark.features()
        sees = any(features[key].kind is FeatureKind.VISUAL for key in self.policy.spec.inputs)
        return self.settings.asked or sees

    def why_nothing(self, rows: Sequence[EpisodeRecord]) -> str | None:
        """Return why no episode is shown although some were asked for; None where none were."""
        settings = self.settings
        if (
            not settings.per_task
            or not settings.asked
            or settings.which is not VideoSelection.FAILURES
        ):
            return None
        if any(row.outcome.failed for row in rows):
            return "no videos: what failed broke its simulator; --video.which=first films others"
        return "no videos: no episode failed; --video.which=first films the first ones"

    def environment(self) -> dict[str, str]:
        """Check that the benchmark can be filmed here; return variables that workers need set.

        Raises:
            UsageError: it has no camera, the encoder is missing or nothing here can render.
        """
        require_encoder()
        keys = display_keys(self.benchmark.features())
        if not keys:
            raise UsageError(f"{self.benchmark.name} has no camera to film with")
        return self.benchmark.preflight(keys)

    def camera(self) -> VideoOptions:
        """Return the camera that shows all images of the benchmark."""
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


def choose_episodes(rows: Sequence[EpisodeRecord], settings: VideoSettings) -> list[EpisodeKey]:
    """Return the episodes to show: of each task the first failures, the first, or all."""
    shown: list[EpisodeKey] = []
    of_task: Counter[tuple[str, int]] = Counter()
    for row in sorted(rows, key=lambda row: row.key):
        if not _to_be_shown(row.outcome, settings):
            continue
        of_task[row.suite, row.task_id] += 1
        if (
            settings.which is VideoSelection.ALL
            or of_task[row.suite, row.task_id] <= settings.per_task
        ):
            shown.append(row.key)
    return shown


def _to_be_shown(outcome: Outcome, settings: VideoSettings) -> bool:
    """Whether episodes that ended so are filmed, as far as there is need of them."""
    if not outcome.is_complete or not settings.per_task:
        return False
    shown_anyway = settings.which is not VideoSelection.FAILURES or outcome is Outcome.ENDED
    return outcome.failed or shown_anyway


def record_videos(
    engine: Engine | ClusterEngine,
    camera: VideoOptions,
    rows: Sequence[EpisodeRecord],
    watching: Sequence[Callback],
    actions: Mapping[EpisodeKey, Array],
) -> list[str]:
    """Play what ``engine`` has to run for ``camera`` and return what must be warned of.

    Where the ``actions`` are known they are played, else the policy is asked. The warnings stay
    with the videos. What goes wrong here costs videos, never the run: its episodes are on disk.
    """
    compared = _Compared(rows, camera.folder)
    ended_early = []
    try:
        engine.run([compared, *watching], camera=camera, actions=actions)
    except (PolicyError, WorkerError) as error:
        ended_early = [f"filming ended early: {error}"]
    finally:
        _keep_warnings(camera.folder, compared)
    return [*compared.warnings.values(), *ended_early]


def _keep_warnings(folder: Path, compared: _Compared) -> None:
    """Write down what is to be warned of, in place of what was of the same episodes."""
    earlier = read_video_warnings(folder)
    kept = {video: text for video, text in earlier.items() if video not in compared.filmed}
    kept |= compared.warnings
    if kept != earlier:
        (folder / WARNINGS_FILE).parent.mkdir(exist_ok=True)
        write_json(folder / WARNINGS_FILE, kept)


class ActionHistory(Callback):
    """A recorder that keeps the actions of the episodes that will be filmed if the run ends so."""

    def __init__(self, settings: VideoSettings) -> None:
        self.actions: dict[EpisodeKey, Array] = {}
        self._settings = settings
        self._bytes = 0

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Keep the actions, and let go of those that this one comes before."""
        if result.actions is None or not _to_be_shown(result.outcome, self._settings):
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


class _Compared(Callback):
    """A recorder that holds each filmed episode against its line in the journal."""

    def __init__(self, rows: Sequence[EpisodeRecord], folder: Path) -> None:
        self.filmed: set[str] = set()
        self.warnings: dict[str, str] = {}
        """By the video's place in the run folder."""
        self._rows = {row.key: row for row in rows}
        self._folder = folder

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Warn of any difference; a video whose outcome is not the journal's is no evidence."""
        video = video_path(result.spec.key)
        self.filmed.add(video)
        if result.error is not None:
            reason = summarize_traceback(result.error)
            self.warnings[video] = f"{result.spec} could not be filmed: {reason}"
            return
        replay = EpisodeReplay(self._rows[result.spec.key], make_record(result))
        if not replay.differences:
            return
        fate = "kept"
        if replay.replayed.outcome is not replay.recorded.outcome:
            (self._folder / video).unlink()
            fate = "removed"
        self.warnings[video] = (
            f"{result.spec} came out differently for the camera "
            f"({', '.join(replay.differences)}); its video is {fate}"
        )
