"""Selects the dataset, its training and validation episodes, and the image size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from proctor.config.training import TrainConfig
from proctor.errors import UsageError
from proctor.features import ACTION, REWARD, Interface
from proctor.fingerprint import ConfigUse
from proctor.policies.compatibility import indistinguishable_text, source_key
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint
from proctor.policies.runtime.network import ImageRegion
from proctor.training.data.loading import TrainingSamples
from proctor.training.data.sampler import BatchOrder, Frames, split_episodes, usable_frames
from proctor.training.data.wordings import TaskWordings

if TYPE_CHECKING:
    from proctor.datasets.reader import DatasetHandle
    from proctor.datasets.reading.dataset import ImageReadOptions
    from proctor.datasets.reading.metadata import DatasetMetadata
    from proctor.datasets.stream import Stream


@dataclass(frozen=True)
class FrameCounts:
    """The frames of a dataset: those that a training uses, and the others by reason."""

    used: int
    not_selected: int
    """Frames of episodes that are left out."""
    held_out: int
    held_out_episodes: int
    dropped: int
    """Frames at the ends of episodes, where no sample starts."""

    @property
    def total(self) -> int:
        """All frames of the dataset."""
        return self.used + self.not_selected + self.held_out + self.dropped

    @property
    def unused_text(self) -> str:
        """Why frames are not used; empty if all are."""
        reasons = [
            (self.not_selected, "of episodes that are not selected (--dataset.episodes)"),
            (
                self.held_out,
                f"of {self.held_out_episodes:,} validation episode(s) (--dataset.eval_split)",
            ),
            (self.dropped, "at the ends of episodes (--policy.drop_n_last_frames)"),
        ]
        return ", ".join(f"{frames:,} {reason}" for frames, reason in reasons if frames)


@dataclass(frozen=True)
class DatasetSelection:
    """A dataset's metadata, and its episodes for training and validation."""

    config: TrainConfig
    source: DatasetMetadata
    """The dataset's metadata."""
    handle: DatasetHandle | None
    """Handle of a local dataset; None: the dataset is streamed."""
    trained_on: tuple[int, ...]
    """Training episodes."""
    held_out: tuple[int, ...]

    @cached_property
    def interface(self) -> Interface:
        """The features that the dataset offers to a policy."""
        return self.source.interface(self.config.dataset.size)

    @property
    def action_names(self) -> tuple[str, ...] | None:
        """Names of the action's numbers; None if the dataset has none."""
        return self.source.info.feature(ACTION).names

    def require_episodes(self) -> None:
        """Check that there are training episodes."""
        if self.trained_on:
            return
        given, name, n = self.config.dataset, self.source.name, len(self.source.episodes)
        if self.held_out:
            cause = (
                f"--dataset.eval_split={given.eval_split:g} holds out all {len(self.held_out)} "
                f"episodes of {name}, at least one of every task; lower it, or give more episodes"
            )
        elif n == 0:
            cause = f"{name} has no episodes; record some (proctor record)"
        elif given.episodes is not None:
            cause = "--dataset.episodes is empty; list episodes, or leave the flag out"
        else:
            cause = f"--dataset.exclude_episodes leaves out all {n} episodes of {name}"
        raise UsageError(f"no episode is left to train on: {cause}", code="dataset.no-episodes")

    def require_instructions(self, policy: str) -> None:
        """Check that every episode has an instruction, as evaluations do."""
        if all(text.strip() for text in self.source.tasks):
            return
        known = {text for text in self.source.tasks if text.strip()}
        for episode in (*self.trained_on, *self.held_out):
            if not known.issuperset(self.source.episodes.tasks[episode] or ("",)):
                raise UsageError(
                    f"{self.source.name}: episode {episode} has no instruction, and {policy} needs "
                    "it; add one (proctor data set-task), or leave the episode out "
                    "(--dataset.exclude_episodes)",
                    code="dataset.missing-instruction",
                )

    def check_distinct_instructions(self, parts: LoadedCheckpoint, *, resumed: bool) -> list[str]:
        """Return a warning if the policy of ``parts`` encodes two different instructions alike."""
        tasks = self.source.episodes.tasks
        of_episodes = (tasks[episode] for episode in (*self.trained_on, *self.held_out))
        texts = dict.fromkeys(text for of_one in of_episodes for text in of_one or ())
        pair = parts.instruction_encoder(ConfigUse.EVALUATION).find_indistinguishable(texts)
        if pair is None:
            return []
        alike = f"{self.source.name}: {indistinguishable_text(parts.config.type, pair)}"
        if resumed or not parts.config.encode_instruction(""):
            return [f"warning: {alike}, so it cannot distinguish these tasks"]
        raise UsageError(
            f"{alike}; change one of them (proctor data set-task)",
            code="dataset.indistinct-instructions",
        )

    def samples(
        self,
        parts: LoadedCheckpoint,
        episodes: Sequence[int],
        wordings: TaskWordings | None = None,
        regions: Mapping[str, ImageRegion] | None = None,
    ) -> tuple[TrainingSamples, BatchOrder]:
        """Return the samples of ``episodes`` for the policy of ``parts``, and their order.

        Without ``wordings`` every sample has the recorded instruction. ``regions`` of cameras, by
        the dataset's names, are read instead of whole images.
        """
        config, deltas = self.config, _deltas(parts, self.source.info.fps)
        if REWARD in deltas and REWARD not in self.source.info.features:
            raise UsageError(
                f"{self.source.name} has no {REWARD}, which {parts.config.type} needs "
                f"(record it with proctor record --record.extra={REWARD})",
                code="dataset.missing-column",
            )
        lengths = self.source.episodes.length[list(episodes)].tolist()
        frames = usable_frames(lengths, parts.config.samples().drop_last)
        order = BatchOrder(frames, config.batch_size, config.seed)
        shapes, instruction_encoder = _shapes(parts), parts.instruction_encoder(ConfigUse.TRAINING)
        if self.handle is None:
            stream = _open_stream(config, episodes, deltas)
            found = TrainingSamples(stream, shapes, instruction_encoder, wordings, regions)
            return found, replace(order, streamed=stream.order)
        dataset = self.handle.frames(episodes, deltas, _image_options(config))
        self.handle.require_files(episodes, shapes)
        if config.dataset.balance_tasks:
            order = replace(order, tasks=self._tasks(episodes)[frames])
        return TrainingSamples(dataset, shapes, instruction_encoder, wordings, regions), order

    def frame_counts(self, used: int) -> FrameCounts:
        """Return how many frames of the dataset are trained on and why not all; ``used`` are."""
        lengths = self.source.episodes.length
        trained, held_out = (
            int(lengths[list(episodes)].sum()) for episodes in (self.trained_on, self.held_out)
        )
        return FrameCounts(
            used=used,
            not_selected=int(lengths.sum()) - trained - held_out,
            held_out=held_out,
            held_out_episodes=len(self.held_out),
            dropped=trained - used,
        )

    def validation_samples(self, parts: LoadedCheckpoint) -> tuple[TrainingSamples, BatchOrder]:
        """Return the validation samples, each once and in dataset order.

        With --max_eval_samples, take the first samples of every task, equally many of each.
        """
        samples, order = self.samples(parts, self.held_out)
        frames, most = order.frames, self.config.max_eval_samples
        if most:
            tasks = self._tasks(self.held_out)[frames]
            each = max(1, most // len(np.unique(tasks)))
            first = [np.flatnonzero(tasks == task)[:each] for task in np.unique(tasks)]
            frames = frames[np.sort(np.concatenate(first))]
        return samples, replace(order, frames=frames, shuffled=False, tasks=None)

    def _tasks(self, episodes: Sequence[int]) -> Frames:
        """Return the task index of every frame of ``episodes``."""
        of = self.source.episodes
        numbers = {name: number for number, name in enumerate(self.source.tasks)}
        first = [numbers.get((of.tasks[e] or ("",))[0], -1) for e in episodes]
        return np.repeat(np.asarray(first, np.int64), of.length[list(episodes)])


def _image_options(config: TrainConfig) -> ImageReadOptions:
    from proctor.datasets.frames.video import FrameReader
    from proctor.datasets.reading.dataset import ImageReadOptions

    reader = FrameReader(tolerance_s=config.tolerance_s)
    return ImageReadOptions(reader, config.dataset.size, config.dataset)


def _open_stream(
    config: TrainConfig, episodes: Sequence[int], deltas: dict[str, list[float]]
) -> Stream:
    """Open a stream of ``episodes``, which fetches its own files."""
    from proctor.datasets.stream import StreamOptions, open_stream

    given = config.dataset
    options = StreamOptions(
        episodes=episodes,
        delta_timestamps=deltas,
        tolerance_s=config.tolerance_s,
        seed=config.seed,
        image_size=given.size,
    )
    return open_stream(given.path_or_id, revision=given.revision, options=options, root=given.root)


def select_dataset(config: TrainConfig) -> DatasetSelection:
    """Read the dataset's metadata and select its episodes."""
    handle = None if config.dataset.streaming else _open_handle(config)
    source = _streamed_source(config) if handle is None else handle.source
    episodes = source.episodes
    chosen = _chosen_episodes(config, source.name, len(episodes))
    tasks = [(episodes.tasks[episode][:1] or ("",))[0] for episode in chosen]
    kept, held_out = split_episodes(tasks, config.dataset.eval_split)
    return DatasetSelection(
        config,
        source,
        handle,
        tuple(chosen[i] for i in kept),
        tuple(chosen[i] for i in held_out),
    )


def _open_handle(config: TrainConfig) -> DatasetHandle:
    from proctor.datasets.reader import open_handle

    given = config.dataset
    return open_handle(given.path_or_id, given.root, given.revision)


def _streamed_source(config: TrainConfig) -> DatasetMetadata:
    from proctor.datasets.stream import open_stream

    given = config.dataset
    stream = open_stream(given.path_or_id, revision=given.revision, root=given.root)
    try:
        source = replace(stream.source, name=given.name)
        _ = source.stats, source.ranges  # cached properties, read before the files are removed
        return source
    finally:
        stream.close()


def _chosen_episodes(config: TrainConfig, name: str, n: int) -> list[int]:
    given = config.dataset
    for field in ("episodes", "exclude_episodes"):
        for episode in getattr(given, field) or ():
            if not 0 <= episode < n:
                raise UsageError(
                    f"--dataset.{field}: {name} has no episode {episode} (it has {n} episodes)",
                    code="dataset.unknown-episode",
                )
    if given.episodes is not None:
        return sorted(set(given.episodes))
    return [episode for episode in range(n) if episode not in set(given.exclude_episodes or ())]


def _shapes(parts: LoadedCheckpoint) -> dict[str, tuple[int, ...]]:
    """Return the shape of every feature in one sample, by the dataset's names."""
    samples, renames = parts.config.samples(), parts.preprocessor.rename_map
    time = () if samples.observation_steps is None else (len(samples.observation_steps),)
    shapes = {
        source_key(key, renames): (*time, *feature.shape)
        for key, feature in parts.config.input_features.items()
    }
    if samples.reward_steps is not None:
        shapes[REWARD] = (len(samples.reward_steps),)
    if samples.action_steps:
        shapes[ACTION] = (len(samples.action_steps), parts.config.action_dim)
    return shapes


def _deltas(parts: LoadedCheckpoint, fps: int) -> dict[str, list[float]]:
    """Return the time offsets of every feature in a sample, in seconds."""
    samples = parts.config.samples()
    deltas = {}
    if samples.action_steps:
        deltas[ACTION] = [step / fps for step in samples.action_steps]
    if samples.observation_steps is not None:
        offsets = [step / fps for step in samples.observation_steps]
        deltas |= {key: offsets for key in _shapes(parts) if key not in (ACTION, REWARD)}
    if samples.reward_steps is not None:
        deltas[REWARD] = [step / fps for step in samples.reward_steps]
    return deltas
