"""The second phase of a run: plays chosen episodes again for the camera.

Episodes are reproducible, so the camera need not guess beforehand which will fail, and those that
are not shown pay nothing. Every episode is compared with what the journal says of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proctor.benchmarks.base import Benchmark, pictures_to_show
from proctor.engine.engine import Engine
from proctor.errors import PolicyError, UsageError, WorkerError
from proctor.policies.base import Policy
from proctor.recorders.again import Comparison
from proctor.recorders.base import Pulse, Recorder
from proctor.recorders.journal import EpisodeRow, row_of, video_path
from proctor.recorders.video import (
    WARNINGS_FILE,
    Camera,
    read_warnings,
    require_encoder,
)
from proctor.run import write_json
from proctor.settings import VideoSettings, Which
from proctor.types import EpisodeKey, EpisodeResult, FeatureKind, Outcome


@dataclass
class Filmed:
    """What came of filming."""

    videos: int = 0
    """How many videos the run folder holds of its episodes."""
    note: str | None = None
    """Why there is none, when nobody asked for one in particular."""
    warnings: list[str] = field(default_factory=list)
    """Episodes that could not be filmed, or came out differently for the camera."""


def sees_images(policy: Policy, benchmark: Benchmark) -> bool:
    """Whether ``policy`` looks at images; filming one that does not may take longer than its run.

    Software renders 5 to 10 frames a second, a scripted policy plays hundreds of steps.
    """
    features = benchmark.features()
    return any(features[key].kind is FeatureKind.VISUAL for key in policy.inputs)


def filming_environment(benchmark: Benchmark) -> dict[str, str]:
    """Check that ``benchmark`` can be filmed here; return variables that workers need set.

    Raises:
        UsageError: it has no camera, the encoder is missing or nothing here can render.
    """
    require_encoder()
    keys = pictures_to_show(benchmark.features())
    if not keys:
        raise UsageError(f"{benchmark.name} has no camera to film with")
    return benchmark.preflight(keys)


def make_camera(
    settings: VideoSettings, benchmark: Benchmark, policy: Policy, folder: Path
) -> Camera:
    """Return the camera that shows all images of ``benchmark``."""
    keys = pictures_to_show(benchmark.features())
    return Camera(
        folder=folder.absolute(),
        keys=keys,
        seen_every=policy.n_action_steps if set(keys) <= set(policy.inputs) else 0,
        every=settings.every,
        fps=settings.fps,
        height=settings.height,
        width=settings.width,
    )


def choose(rows: Sequence[EpisodeRow], settings: VideoSettings) -> list[EpisodeKey]:
    """Return the episodes to show: of each task the first failures, the first, or all."""
    shown: list[EpisodeKey] = []
    of_task: Counter[tuple[str, int]] = Counter()
    for row in sorted(rows, key=lambda row: row.key):
        fits = row.outcome is Outcome.FAILURE or settings.which is not Which.FAILURES
        if row.outcome is Outcome.ERROR or not fits:
            continue
        of_task[row.suite, row.task_id] += 1
        if settings.which is Which.ALL or of_task[row.suite, row.task_id] <= settings.per_task:
            shown.append(row.key)
    return shown if settings.per_task else []


def film(
    engine: Engine, camera: Camera, rows: Sequence[EpisodeRow], watching: Sequence[Recorder]
) -> list[str]:
    """Play what ``engine`` has to run for ``camera`` and return what must be warned of.

    The warnings stay with the videos. What goes wrong here costs videos, never the run: its
    episodes are on disk.
    """
    compared = _Compared(rows, camera.folder)
    ended_early = []
    try:
        engine.run([compared, *watching], camera=camera)
    except (PolicyError, WorkerError) as error:
        ended_early = [f"filming ended early: {error}"]
    finally:
        _keep_warnings(camera.folder, compared)
    return [*compared.warnings.values(), *ended_early]


def _keep_warnings(folder: Path, compared: _Compared) -> None:
    """Write down what is to be warned of, in place of what was of the same episodes."""
    earlier = read_warnings(folder)
    kept = {video: text for video, text in earlier.items() if video not in compared.filmed}
    kept |= compared.warnings
    if kept != earlier:
        (folder / WARNINGS_FILE).parent.mkdir(exist_ok=True)
        write_json(folder / WARNINGS_FILE, kept)


class _Compared:
    """A recorder that holds each filmed episode against its line in the journal."""

    def __init__(self, rows: Sequence[EpisodeRow], folder: Path) -> None:
        self.filmed: set[str] = set()
        self.warnings: dict[str, str] = {}
        """By the video's place in the run folder."""
        self._rows = {row.key: row for row in rows}
        self._folder = folder

    def episode_ended(self, result: EpisodeResult) -> None:
        """Warn of any difference; a video whose outcome is not the journal's is no evidence."""
        video = video_path(result.spec.key)
        self.filmed.add(video)
        if result.error is not None:
            reason = result.error.splitlines()[-1]
            self.warnings[video] = f"{result.spec} could not be filmed: {reason}"
            return
        comparison = Comparison(self._rows[result.spec.key], row_of(result))
        if not comparison.differences:
            return
        fate = "kept"
        if comparison.again.outcome is not comparison.recorded.outcome:
            (self._folder / video).unlink()
            fate = "removed"
        self.warnings[video] = (
            f"{result.spec} came out differently for the camera "
            f"({', '.join(comparison.differences)}); its video is {fate}"
        )

    def pulse(self, pulse: Pulse) -> None:
        """Nobody watches."""

    def close(self) -> None:
        """There is nothing to close."""
