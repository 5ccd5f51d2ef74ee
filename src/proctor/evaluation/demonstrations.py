"""What is recorded of a benchmark, and the dataset that it goes to."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proctor.benchmarks.base import Benchmark, interface_of
from proctor.callbacks.action_labels import ExpertLabeling
from proctor.callbacks.action_noise import ActionNoise
from proctor.callbacks.dataset import AppendOrder, Ledger, OpenDataset
from proctor.callbacks.staged_episodes import (
    RecordingOptions,
    explaining_write_errors,
    stored_feature,
)
from proctor.config.recording import RecordDatasetSettings, RecordSettings
from proctor.datasets.format.info import VERSION, Info
from proctor.datasets.frames.encoder import codec_named
from proctor.datasets.hub import CARD_FILE, card_head
from proctor.datasets.writing.frame import own_features
from proctor.errors import DatasetError, MissingExtra, UsageError, did_you_mean
from proctor.features import (
    ACTION,
    ENVIRONMENT_STATE,
    IMAGES,
    REWARD,
    SUCCESS,
    ActionSpec,
    Feature,
    FeatureKind,
    to_info,
)
from proctor.runs.journal import EpisodeRecord
from proctor.system.files import atomic_write, recover_swap, require_utf8
from proctor.types import EpisodeKey, EpisodeSpec, Outcome
from proctor.version import __version__


@dataclass(frozen=True)
class Demonstrations:
    """What is recorded and where it goes, checked; nothing is written before ``open``."""

    settings: RecordSettings
    name: str
    """As on the Hub."""
    root: Path
    codec: str
    benchmark: Benchmark
    observed: dict[str, Feature]
    """What is seen at every step."""
    fps: int
    pictures_as: str = "video"
    """Or "image": PNG in the tables."""

    def environment(self, inputs: Iterable[str]) -> dict[str, str]:
        """Check that all can be observed here; return variables that workers need set.

        Raises:
            UsageError: nothing here can render.
        """
        asked = () if self.settings.label is None else self.benchmark.expert_inputs
        return self.benchmark.preflight((*inputs, *self.observed, *asked))

    def open(self, folder: Path, protocol: Mapping[str, Any]) -> OpenDataset:
        """Make the dataset, or go on with it; takes will lie in ``folder`` until they are in it.

        A new one has a card that says how it is made: all of ``protocol``.

        Raises:
            DatasetError: what lies there is no dataset, or one of something else.
            RunFolderError: it was changed since, or cannot be written.
        """
        from proctor.datasets.writer import DatasetWriter
        from proctor.datasets.writing.layout import FileLayout
        from proctor.datasets.writing.staging import has_content

        codec = codec_named(self.codec)
        recover_swap(self.root)
        if self.root.exists() and has_content(self.root):
            writer = DatasetWriter.resume(self.root, codec)
        else:
            layout = FileLayout(robot_type=self.benchmark.name)
            writer = DatasetWriter.create(self.root, self.fps, self._features(), codec, layout)
        try:
            self._check_features(writer.info)
            with explaining_write_errors(folder):
                self._write_card(protocol)
            ledger = Ledger(folder, writer.n_episodes)
        except BaseException:
            writer.release()
            raise
        recording = RecordingOptions(
            folder=folder.absolute(),
            info=writer.info,
            codec=codec,
            observed_features=self.observed,
            keep=self.settings.kept,
            noise=self._noise(),
            expert_labeling=self._teaching(),
        )
        return OpenDataset(writer, recording, ledger)

    def _check_features(self, info: Info) -> None:
        """Refuse a dataset whose frames are others: no episode could be written into it.

        Raises:
            DatasetError: naming the feature.
        """
        recorded = self._features()
        for key in dict.fromkeys([*recorded, *own_features(info)]):
            asked, found = (_kind(known.get(key)) for known in (recorded, info.features))
            if asked != found:
                raise DatasetError(
                    f"{self.root}: its {key} is {found}, and {asked} is recorded: it was edited "
                    "since; record into another dataset"
                )

    def _write_card(self, protocol: Mapping[str, Any]) -> None:
        """Leave a page for the Hub, unless there is one; counts of it would not outlive an edit."""
        path = self.root / CARD_FILE
        if path.exists():
            return
        told = json.dumps(protocol, indent=2, sort_keys=True)
        text = f"""\
{card_head(self.name)}
Recorded by Proctor {__version__}: {protocol["policy"]["type"]} on {self.benchmark.name}, as
LeRobotDataset {VERSION}.{self._whose_actions()} What defines its episodes:

```json
{told}
```
"""
        atomic_write(path, text.encode())

    def _whose_actions(self) -> str:
        """Say on the card what actions are, where they are not what was played."""
        if self.settings.label is None:
            return ""
        return (
            f" Its actions are not those of who played: they are what the scripted expert of "
            f"{self.benchmark.name} would have done in each state."
        )

    def _noise(self) -> ActionNoise:
        dims = self.settings.noise_dims
        return ActionNoise(
            scale=self.settings.noise,
            share=self.settings.noise_share,
            dims=None if dims is None else tuple(dims),
        )

    def _teaching(self) -> ExpertLabeling | None:
        if self.settings.label is None:
            return None
        return ExpertLabeling(self.settings.expert_share or 0.0)

    def _features(self) -> dict[str, dict[str, Any]]:
        """Return the features of the dataset, as meta/info.json states them."""
        features = {
            key: to_info(stored_feature(feature), self.pictures_as)
            for key, feature in self.observed.items()
        }
        size = self.benchmark.action.size
        features[ACTION] = to_info(Feature(FeatureKind.ACTION, (size,), "float32"))
        for key, dtype in ((REWARD, "float32"), (SUCCESS, "bool")):
            if key in self.settings.extra:
                features[key] = {"dtype": dtype, "shape": [1], "names": None}
        return features


def _kind(entry: Mapping[str, Any] | None) -> str:
    """Return what a feature is in words; pictures may lie in videos or in tables."""
    if entry is None:
        return "not there"
    dtype = "pictures" if entry["dtype"] in ("image", "video") else entry["dtype"]
    return f"{dtype} {list(entry['shape'])}"


def pending_episodes(
    dataset: OpenDataset,
    plan: Sequence[EpisodeSpec],
    rows: Mapping[EpisodeKey, EpisodeRecord],
    room: Mapping[tuple[str, int], int] | None = None,
) -> tuple[AppendOrder, list[EpisodeSpec]]:
    """Return who of ``plan`` is still to come into the dataset, and who has to be played.

    An episode that is kept by its row and has a complete take is not played again. What the run
    folder holds of others is removed.
    """
    recording, known = dataset.recording, set(dataset.ledger.keys)
    coming, missing, waiting = [], [], set()
    for spec in plan:
        outcome = rows[spec.key].outcome if spec.key in rows else Outcome.ERROR
        if spec.key in known or (outcome.counts and not recording.keep.keeps(outcome)):
            continue
        coming.append(spec)
        if outcome.counts and _is_complete(recording.staging_folder(spec.key)):
            waiting.add(spec.key)
        else:
            missing.append(spec)
    line = AppendOrder(coming, room)
    for key in waiting:
        line.mark_ended(key, kept=True)
    recording.discard_all_but(waiting)
    return line, missing


def _is_complete(folder: Path) -> bool:
    from proctor.datasets.writing.staged_episode import read_staged_episode

    try:
        read_staged_episode(folder)
    except DatasetError:
        return False
    return True


def demonstrations(
    benchmark: Benchmark, dataset: RecordDatasetSettings, settings: RecordSettings, folder: Path
) -> Demonstrations:
    """Check that what is asked for can be recorded of ``benchmark``, in the run ``folder``.

    Raises:
        UsageError: with one line that says what to change.
    """
    for module in ("pyarrow", "av"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra("what datasets are written with", "dataset")
    for path in (dataset.folder, folder):
        require_utf8(path)
    fps = interface_of(benchmark).fps
    if fps is None:
        raise UsageError(
            f"the tasks of {benchmark.name} differ in fps, a dataset has one; choose with "
            "--env.task"
        )
    _check_noise(benchmark.action, settings)
    if settings.label is not None:
        _check_expert(benchmark)
    if SUCCESS in settings.extra and not benchmark.judged:
        raise UsageError(
            f"--record.extra: --env.success=none says of no episode whether it is a success; "
            f"leave {SUCCESS} out, or say what a success is"
        )
    codec_named(dataset.codec)
    return Demonstrations(
        settings=settings,
        name=dataset.repo_id or dataset.folder.name,
        root=dataset.folder,
        codec=dataset.codec,
        benchmark=benchmark,
        observed=_observed(benchmark, settings),
        fps=fps,
        pictures_as="image" if dataset.video is False else "video",
    )


def _observed(benchmark: Benchmark, settings: RecordSettings) -> dict[str, Feature]:
    """Return what is seen at every step: cameras, the robot's state, and what was asked for."""
    features = benchmark.features()
    pictures = [key for key, f in features.items() if f.kind is FeatureKind.VISUAL]
    if settings.cameras is not None:
        pictures = _cameras(settings.cameras, pictures, benchmark.name)
    chosen = set(pictures if settings.images else ())
    chosen |= {key for key, feature in features.items() if feature.kind is FeatureKind.STATE}
    if {"environment_state", ENVIRONMENT_STATE} & set(settings.extra):
        if ENVIRONMENT_STATE not in features:
            raise UsageError(f"--record.extra: {benchmark.name} has no environment_state")
        chosen.add(ENVIRONMENT_STATE)
    if not chosen:
        raise UsageError(f"nothing of {benchmark.name} would be recorded but actions")
    return {key: feature for key, feature in features.items() if key in chosen}


def _cameras(asked: Collection[str], there: Collection[str], benchmark: str) -> list[str]:
    """Return the keys of the cameras asked for, by their keys or the last word of these."""
    names = {key.removeprefix(IMAGES): key for key in there}
    found = []
    for name in asked:
        key = name if name in there else names.get(name)
        if key is None:
            choices = f"choose from {', '.join(there)}" if there else "it has none"
            raise UsageError(
                f"--record.cameras: {benchmark} has no camera {name!r}"
                f"{did_you_mean(name, [*there, *names])} ({choices})"
            )
        found.append(key)
    return found


def _check_expert(benchmark: Benchmark) -> None:
    """Refuse labels that nobody can give."""
    scripts = interface_of(benchmark).scripts
    if scripts is None:
        raise UsageError(f"--record.label=expert: {benchmark.name} has no scripted expert")
    for task in scripts.tasks:
        try:
            scripts.make(task)
        except UsageError as error:
            raise UsageError(f"--record.label=expert: {error}") from None


def _check_noise(action: ActionSpec, settings: RecordSettings) -> None:
    """Refuse noise that has no measure."""
    for number in settings.noise_dims or ():
        if number >= action.size:
            raise UsageError(
                f"--record.noise_dims: an action has no number {number} "
                f"(choose 0-{action.size - 1})"
            )
    low, high = action.bounds
    if settings.noise and not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UsageError(
            "--record.noise is in halves of the action's range, and the benchmark gives none"
        )
