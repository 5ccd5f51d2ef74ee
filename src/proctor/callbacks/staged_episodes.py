"""How episodes become takes: what of every step is written down, and where. Used in workers."""

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
from proctor.runs.journal import TAKES_FOLDER, staged_episode_path
from proctor.runs.kept_work import disk_error_advice
from proctor.types import EpisodeKey, EpisodeSpec, Outcome, StepResult

if TYPE_CHECKING:
    from proctor.datasets.writing.staged_episode import StagedEpisodeWriter


class Keep(Enum):
    """Which episodes become demonstrations."""

    SUCCESS = "success"
    ALL = "all"
    """Failures too; never one whose simulator broke."""

    def keeps(self, outcome: Outcome) -> bool:
        """Whether an episode that ended so is kept."""
        return outcome.is_complete and (self is Keep.ALL or outcome is Outcome.SUCCESS)


@dataclass(frozen=True)
class RecordingOptions:
    """How every episode is recorded; picklable."""

    folder: Path
    """The run folder, absolute: takes lie in it until they are in the dataset."""
    info: Info
    codec: Codec
    observed_features: dict[str, Feature]
    """What is seen at every step, as the benchmark offers it."""
    keep: Keep = Keep.SUCCESS
    noise: ActionNoise = field(default_factory=ActionNoise)
    expert_labeling: ExpertLabeling | None = None
    """How the expert, whose actions are recorded, takes part; None: the policy's are."""

    def staging_folder(self, key: EpisodeKey) -> Path:
        """Return the one place for an episode's take."""
        return self.folder / staged_episode_path(key)

    def begin(self, spec: EpisodeSpec) -> EpisodeRecorder:
        """Begin a take; what an earlier try of the episode has left is removed."""
        self.discard(spec.key)
        return EpisodeRecorder(self, spec)

    def discard(self, key: EpisodeKey) -> None:
        """Remove an episode's take, if it has one."""
        take = self.staging_folder(key)
        with explaining_write_errors(self.folder):
            if take.exists():
                shutil.rmtree(take)

    def discard_all_but(self, keys: Collection[EpisodeKey]) -> None:
        """Remove what an earlier session left, but for the takes of ``keys``."""
        kept = {self.staging_folder(key) for key in keys}
        with explaining_write_errors(self.folder):
            for take in list(self.folder.glob(f"{TAKES_FOLDER}/*/*")):
                if take not in kept:
                    shutil.rmtree(take)

    def remove_empty_folders(self) -> None:
        """Remove the folders of takes that hold none any more."""
        for folder in (*self.folder.glob(f"{TAKES_FOLDER}/*"), self.folder / TAKES_FOLDER):
            with contextlib.suppress(OSError):
                folder.rmdir()


class EpisodeRecorder:
    """The take of an episode that goes on: frame i is what was seen before action i."""

    def __init__(self, recording: RecordingOptions, spec: EpisodeSpec) -> None:
        from proctor.datasets.writing.staged_episode import StagedEpisodeWriter

        self._recording = recording
        self._task = spec.task.instruction or spec.task.name
        with explaining_write_errors(recording.folder):
            self._writer: StagedEpisodeWriter = StagedEpisodeWriter(
                recording.staging_folder(spec.key), recording.info, recording.codec
            )

    def add(self, seen: Observation, wanted: Array, step: StepResult) -> None:
        """Write one frame."""
        features = self._recording.info.features
        frame = {key: _as_stored(seen[key], features[key]["dtype"]) for key in seen}
        frame[ACTION] = wanted
        if REWARD in features:
            frame[REWARD] = np.asarray([step.reward], np.float32)
        if SUCCESS in features:
            frame[SUCCESS] = np.asarray([step.success], np.bool_)
        with explaining_write_errors(self._recording.folder):
            self._writer.add_frame(frame, self._task)

    def end(self, outcome: Outcome) -> None:
        """The episode is over: complete the take, or leave nothing of one that is not kept."""
        with explaining_write_errors(self._recording.folder):
            if self._recording.keep.keeps(outcome):
                self._writer.finish()
            else:
                self._writer.discard()


def _as_stored(seen: Array, dtype: str) -> Array:
    """Return an observation as the dataset holds it; pictures stay as they are."""
    return seen if dtype in ("video", "image") else np.asarray(seen, dtype)


def stored_feature(feature: Feature) -> Feature:
    """Return what a benchmark's feature is in a dataset: LeRobot's policies take float32 only."""
    if feature.kind is FeatureKind.VISUAL or not np.issubdtype(feature.dtype, np.floating):
        return feature
    return replace(feature, dtype="float32")


@contextlib.contextmanager
def explaining_write_errors(folder: Path) -> Iterator[None]:
    """Say in one line what cannot be written: it is no fault of the simulator or of the policy.

    Raises:
        RunFolderError: what is written inside cannot be.
    """
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"cannot record to {error.filename or folder}: {error.strerror or error}; what is in "
            f"the dataset is kept: {disk_error_advice(error)}, then run again with --resume"
        ) from error
    except DatasetError as error:
        text = f"cannot record: {error}"
        if isinstance(error.__cause__, OSError):  # of takes that wait where they were recorded
            text += f": {disk_error_advice(error.__cause__)}, then run again with --resume"
        raise RunFolderError(text) from error
