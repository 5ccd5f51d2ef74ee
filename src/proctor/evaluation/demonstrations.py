"""What is recorded of a benchmark, and the dataset that receives it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proctor.benchmarks.base import Benchmark, interface_of
from proctor.benchmarks.starts import start_source
from proctor.benchmarks.training_starts import PUBLISHED_NOTE, has_published_starts
from proctor.callbacks.action_labels import ExpertLabeling
from proctor.callbacks.action_noise import ActionNoise
from proctor.callbacks.dataset import AppendOrder, Ledger, OpenDataset
from proctor.callbacks.staged_episodes import (
    RecordingOptions,
    explaining_write_errors,
    recorded_task,
    stored_feature,
)
from proctor.config.recording import RecordDatasetSettings, RecordSettings
from proctor.datasets.format.info import VERSION, Info
from proctor.datasets.frames.encoder import codec_named
from proctor.datasets.hub import CARD_FILE, card_head
from proctor.datasets.writing.frame import own_features
from proctor.errors import (
    DatasetError,
    MissingExtra,
    UsageError,
    did_you_mean,
    strip_control_codes,
)
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
    """The checked recording options and their dataset; nothing is written before ``open``."""

    settings: RecordSettings
    name: str
    """Name on the Hub."""
    root: Path
    codec: str
    benchmark: Benchmark
    observed: dict[str, Feature]
    """Features observed at every step."""
    fps: int
    image_dtype: str = "video"
    """"video", or "image" for PNG images inside the tables."""

    def environment(self, inputs: Iterable[str]) -> dict[str, str]:
        """Check that all features can be observed here; return the workers' variables."""
        expert = () if self.settings.label is None else self.benchmark.expert_inputs
        return self.benchmark.preflight((*inputs, *self.observed, *expert))

    def open(self, folder: Path, protocol: Mapping[str, Any]) -> OpenDataset:
        """Create or resume the dataset; ``folder`` holds recorded episodes until they are appended.

        A new dataset gets a card that holds the whole ``protocol``.
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
            with contextlib.ExitStack() as on_error:
                on_error.callback(ledger.close)
                self._check_tasks(writer.info, ledger.keys)
                on_error.pop_all()
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
            expert_labeling=self._expert_labeling(),
            source=start_source(self.benchmark),
        )
        return OpenDataset(writer, recording, ledger)

    def _check_features(self, info: Info) -> None:
        """Refuse a dataset with other features than the recorded ones."""
        recorded = self._features()
        for key in dict.fromkeys([*recorded, *own_features(info)]):
            now, found = (_feature_text(known.get(key)) for known in (recorded, info.features))
            if now != found:
                raise DatasetError(
                    f"{self.root}: its {key} is {found}, and {now} is recorded: it was edited "
                    "since; record into another dataset",
                    code="dataset.changed",
                )

    def _check_tasks(self, info: Info, keys: Sequence[EpisodeKey]) -> None:
        """Refuse a dataset whose episodes, of ``keys``, have other tasks than the recorded ones."""
        from proctor.datasets.format.episodes import read_episodes

        recorded = {task.key: recorded_task(task) for task in self.benchmark.tasks()}
        of_episodes = read_episodes(self.root, info).tasks
        for episode, (key, tasks) in enumerate(zip(keys, of_episodes, strict=True)):
            now = recorded.get(key[:2])
            if now is not None and tasks and tasks != (now,):
                found = strip_control_codes(", ".join(map(repr, tasks)), 120)
                raise DatasetError(
                    f"{self.root}: the task of episode {episode} is {found}, and {now!r} is "
                    "recorded: it was edited since; record into another dataset, then merge the "
                    "two (proctor data merge)",
                    code="dataset.changed",
                )

    def _write_card(self, protocol: Mapping[str, Any]) -> None:
        """Write a dataset card for the Hub, unless there is one.

        It holds no counts, because edits of the dataset would change them.
        """
        path = self.root / CARD_FILE
        if path.exists():
            return
        protocol_text = json.dumps(protocol, indent=2, sort_keys=True)
        text = f"""\
{card_head(self.name)}
Recorded by Proctor {__version__}: {protocol["policy"]["type"]} on {self.benchmark.name}, as
LeRobotDataset {VERSION}.{self._label_note()}{self._starts_note()} What defines its episodes:

```json
{protocol_text}
```
"""
        atomic_write(path, text.encode())

    def _label_note(self) -> str:
        """Return the card's sentence on action labels, if they are not the executed actions."""
        if self.settings.label is None:
            return ""
        return (
            f" Its actions are not those of who played: they are what the scripted expert of "
            f"{self.benchmark.name} would have done in each state."
        )

    def _starts_note(self) -> str:
        """Return the card's sentence on starts, if evaluations start from a published list."""
        if not has_published_starts(self.benchmark):
            return ""
        if self.settings.published or not self.benchmark.places_scenes:
            return f" {PUBLISHED_NOTE}."
        return " Its episodes start from random scenes, not from the published init states."

    def _noise(self) -> ActionNoise:
        dims = self.settings.noise_dims
        return ActionNoise(
            scale=self.settings.noise,
            share=self.settings.noise_share,
            dims=None if dims is None else tuple(dims),
        )

    def _expert_labeling(self) -> ExpertLabeling | None:
        if self.settings.label is None:
            return None
        return ExpertLabeling(self.settings.expert_share or 0.0)

    def _features(self) -> dict[str, dict[str, Any]]:
        """Return the dataset's features as in meta/info.json."""
        features = {
            key: to_info(stored_feature(feature), self.image_dtype)
            for key, feature in self.observed.items()
        }
        action = self.benchmark.action
        stored = Feature(FeatureKind.ACTION, (action.size,), "float32", action.names)
        features[ACTION] = to_info(stored)
        for key, dtype in ((REWARD, "float32"), (SUCCESS, "bool")):
            if key in self.settings.extra:
                features[key] = {"dtype": dtype, "shape": [1], "names": None}
        return features


def _feature_text(entry: Mapping[str, Any] | None) -> str:
    """Return a feature's type and shape as text; images may be in videos or in tables."""
    if entry is None:
        return "missing"
    dtype = "images" if entry["dtype"] in ("image", "video") else entry["dtype"]
    return f"{dtype} {list(entry['shape'])}"


def pending_episodes(
    dataset: OpenDataset,
    plan: Sequence[EpisodeSpec],
    rows: Mapping[EpisodeKey, EpisodeRecord],
    room: Mapping[tuple[str, int], int] | None = None,
) -> tuple[AppendOrder, list[EpisodeSpec]]:
    """Return which episodes of ``plan`` must still be appended, and which must be run.

    An episode that is kept and completely recorded is not run again. All other recorded episodes in
    the run folder are removed.
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


def check_recording(
    benchmark: Benchmark, dataset: RecordDatasetSettings, settings: RecordSettings, folder: Path
) -> Demonstrations:
    """Check that ``benchmark`` can be recorded as asked, in the run ``folder``."""
    for module in ("pyarrow", "av"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra("what datasets are written with", "dataset")
    for path in (dataset.folder, folder):
        require_utf8(path)
    fps = interface_of(benchmark).fps
    if fps is None:
        raise UsageError(
            f"the tasks of {benchmark.name} differ in fps, a dataset has one; choose with "
            "--env.task",
            code="record.mixed-fps",
        )
    _check_noise(benchmark.action, settings)
    if settings.label is not None:
        _check_expert(benchmark)
    if SUCCESS in settings.extra and not benchmark.judged:
        raise UsageError(
            f"--record.extra: --env.success=none says of no episode whether it is a success; "
            f"leave {SUCCESS} out, or say what a success is",
            code="env.without-success",
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
        image_dtype="image" if dataset.video is False else "video",
    )


def _observed(benchmark: Benchmark, settings: RecordSettings) -> dict[str, Feature]:
    """Return the features to observe at every step: cameras, robot state and requested extras."""
    features = benchmark.features()
    images = [key for key, f in features.items() if f.kind is FeatureKind.VISUAL]
    if settings.cameras is not None:
        images = _cameras(settings.cameras, images, benchmark.name)
    chosen = set(images if settings.images else ())
    chosen |= {key for key, feature in features.items() if feature.kind is FeatureKind.STATE}
    if {"environment_state", ENVIRONMENT_STATE} & set(settings.extra):
        if ENVIRONMENT_STATE not in features:
            raise UsageError(
                f"--record.extra: {benchmark.name} has no environment_state",
                code="record.missing-feature",
            )
        chosen.add(ENVIRONMENT_STATE)
    if not chosen:
        raise UsageError(
            f"nothing of {benchmark.name} would be recorded but actions",
            code="record.no-observations",
        )
    return {key: feature for key, feature in features.items() if key in chosen}


def _cameras(requested: Collection[str], available: Collection[str], benchmark: str) -> list[str]:
    """Return the keys of the requested cameras, given as keys or as short names."""
    names = {key.removeprefix(IMAGES): key for key in available}
    found = []
    for name in requested:
        key = name if name in available else names.get(name)
        if key is None:
            choices = f"choose from {', '.join(available)}" if available else "it has none"
            raise UsageError(
                f"--record.cameras: {benchmark} has no camera {name!r}"
                f"{did_you_mean(name, [*available, *names])} ({choices})",
                code="record.unknown-camera",
            )
        found.append(key)
    return found


def _check_expert(benchmark: Benchmark) -> None:
    """Refuse expert labels if the benchmark has no scripted expert for a task."""
    scripts = interface_of(benchmark).scripts
    if scripts is None:
        raise UsageError(
            f"--record.label=expert: {benchmark.name} has no scripted expert",
            code="record.no-expert",
        )
    for task in scripts.tasks:
        try:
            scripts.make(task)
        except UsageError as error:
            raise UsageError(f"--record.label=expert: {error}", code="record.no-expert") from None


def _check_noise(action: ActionSpec, settings: RecordSettings) -> None:
    """Refuse noise on dimensions that do not exist, and noise without a range to scale by."""
    for number in settings.noise_dims or ():
        if number >= action.size:
            raise UsageError(
                f"--record.noise_dims: an action has no number {number} "
                f"(choose 0-{action.size - 1})",
                code="flag.out-of-range",
            )
    low, high = action.bounds
    if settings.noise and not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UsageError(
            "--record.noise is in halves of the action's range, and the benchmark gives none",
            code="record.no-action-range",
        )
