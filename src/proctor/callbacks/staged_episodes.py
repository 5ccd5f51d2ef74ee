"""Record episodes to staging folders, from which they are appended to a dataset.

The engine's workers use this module.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proctor.callbacks.action_labels import ExpertLabeling
from proctor.callbacks.action_noise import ActionNoise
from proctor.datasets.format.info import Info
from proctor.datasets.frames.encoder import Codec
from proctor.errors import DatasetError, RunFolderError
from proctor.features import ACTION, REWARD, SUCCESS, Array, Feature, FeatureKind, Observation
from proctor.runs.disk_errors import disk_error_advice
from proctor.runs.journal import STAGING_FOLDER, staged_episode_path
from proctor.starts import DemonstrationStart, StartSource
from proctor.types import (
    EpisodeKey,
    EpisodeSpec,
    Outcome,
    Start,
    StepResult,
    Task,
    planned_start,
)

if TYPE_CHECKING:
    from proctor.datasets.writing.staged_episode import StagedEpisodeWriter


class EpisodeFilter(Enum):
    """Which episodes become demonstrations."""

    SUCCESS = "success"
    ALL = "all"
    """Failures too, but never an episode whose simulator broke."""

    def keeps(self, outcome: Outcome) -> bool:
        """Return whether an episode with this outcome is kept."""
        return outcome.is_complete and (self is EpisodeFilter.ALL or outcome is Outcome.SUCCESS)


@dataclass(frozen=True)
class RecordingOptions:
    """Settings for recording every episode; picklable."""

    folder: Path
    """The run folder, absolute; staged episodes are in it until they are in the dataset."""
    info: Info
    codec: Codec
    observed_features: dict[str, Feature]
    """Features recorded at every step, as the benchmark offers them."""
    keep: EpisodeFilter = EpisodeFilter.SUCCESS
    noise: ActionNoise = field(default_factory=ActionNoise)
    expert_labeling: ExpertLabeling | None = None
    """How the expert labels steps; None: the policy's actions are recorded."""
    source: StartSource | None = None
    """The benchmark whose starts the episodes have; None: starts are not recorded."""

    def staging_folder(self, key: EpisodeKey) -> Path:
        """Return the folder of an episode's staged files."""
        return self.folder / staged_episode_path(key)

    def begin(self, spec: EpisodeSpec) -> EpisodeRecorder:
        """Start recording an episode; files of an earlier attempt are removed."""
        self.discard(spec.key)
        return EpisodeRecorder(self, spec)

    def discard(self, key: EpisodeKey) -> None:
        """Remove an episode's staged files, if there are any."""
        folder = self.staging_folder(key)
        with explaining_write_errors(self.folder):
            if folder.exists():
                shutil.rmtree(folder)

    def discard_all_but(self, keys: Collection[EpisodeKey]) -> None:
        """Remove staged files of earlier sessions, except those of ``keys``."""
        kept = {self.staging_folder(key) for key in keys}
        with explaining_write_errors(self.folder):
            for folder in list(self.folder.glob(f"{STAGING_FOLDER}/*/*")):
                if folder not in kept:
                    shutil.rmtree(folder)

    def remove_empty_folders(self) -> None:
        """Remove staging folders that are empty."""
        for folder in (*self.folder.glob(f"{STAGING_FOLDER}/*"), self.folder / STAGING_FOLDER):
            with contextlib.suppress(OSError):
                folder.rmdir()


def recorded_task(task: Task) -> str:
    """Return the text that a dataset stores for the episodes of ``task``."""
    return task.instruction or task.name


class EpisodeRecorder:
    """Records a running episode: frame i holds the observation before action i."""

    def __init__(self, recording: RecordingOptions, spec: EpisodeSpec) -> None:
        from proctor.datasets.writing.staged_episode import StagedEpisodeWriter

        self._recording, self._spec = recording, spec
        self._task = recorded_task(spec.task)
        with explaining_write_errors(recording.folder):
            self._writer: StagedEpisodeWriter = StagedEpisodeWriter(
                recording.staging_folder(spec.key), recording.info, recording.codec
            )

    def add(self, observation: Observation, action: Array, step: StepResult) -> None:
        """Write one frame."""
        features = self._recording.info.features
        frame = {
            key: _as_stored(value, features[key]["dtype"]) for key, value in observation.items()
        }
        frame[ACTION] = action
        if REWARD in features:
            frame[REWARD] = np.asarray([step.reward], np.float32)
        if SUCCESS in features:
            frame[SUCCESS] = np.asarray([step.success], np.bool_)
        with explaining_write_errors(self._recording.folder):
            self._writer.add_frame(frame, self._task)

    def end(self, outcome: Outcome, start: Start | None) -> None:
        """Complete the staged episode with its measured start, or remove it if it is not kept."""
        source, found = self._recording.source, None
        if source is not None and start is not None:
            task = planned_start(self._spec, start).clean_task
            found = DemonstrationStart(source, *task, self._spec.world, start).to_json()
        with explaining_write_errors(self._recording.folder):
            if self._recording.keep.keeps(outcome):
                self._writer.finish(found)
            else:
                self._writer.discard()


def _as_stored(value: Array, dtype: str) -> Array:
    """Return an observation in the dataset's dtype; images stay as they are."""
    return value if dtype in ("video", "image") else np.asarray(value, dtype)


def stored_feature(feature: Feature) -> Feature:
    """Return a benchmark's feature as the dataset stores it.

    Floats become float32, the only dtype that LeRobot's policies accept.
    """
    if feature.kind is FeatureKind.VISUAL or not np.issubdtype(feature.dtype, np.floating):
        return feature
    return replace(feature, dtype="float32")


@contextlib.contextmanager
def explaining_write_errors(folder: Path) -> Iterator[None]:
    """Turn write errors into one line for the user; they are no fault of simulator or policy."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"cannot record to {error.filename or folder}: {error.strerror or error}; the dataset "
            f"is kept: {disk_error_advice(error)}, then run again with --resume",
            code="disk.write-failed",
        ) from error
    except DatasetError as error:
        text = f"cannot record: {error}"
        if isinstance(error.__cause__, OSError):  # a staged episode cannot be read
            text += f": {disk_error_advice(error.__cause__)}, then run again with --resume"
        raise RunFolderError(text, code="record.failed") from error
