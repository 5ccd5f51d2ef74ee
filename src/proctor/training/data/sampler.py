"""The frames of every training step, as a function of (seed, step) and the episodes' lengths.

The order is that of LeRobot's EpisodeAwareSampler: every epoch is one shuffle of all usable frames,
drawn from (seed, epoch). So a resumed run needs only the step to continue at the same frame.
Epochs are counted from the first step of the dataset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from proctor.errors import UsageError

Frames = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ProcessShare:
    """Rank of a process and number of processes, which share the samples of a step."""

    rank: int = 0
    world_size: int = 1


WHOLE_SHARE = ProcessShare()


@dataclass(frozen=True)
class Position:
    """Position of a step: its epoch, and its first frame within the epoch."""

    epoch: int
    start: int


@dataclass(frozen=True)
class BatchOrder:
    """The infinite sequence of batches of a run.

    With several processes, each takes one batch of every step, and the last step of an epoch is
    filled up with the epoch's first frames, as accelerate does.
    """

    frames: Frames
    batch_size: int
    seed: int
    shuffled: bool = True
    share: ProcessShare = WHOLE_SHARE
    tasks: Frames | None = None
    """Task index of every frame, to sample all tasks equally often; None: no balancing."""
    streamed: Callable[[int], Iterator[int]] | None = None
    """A stream's own frame order of an epoch; None: the dataset is not streamed."""
    first_step: int = 0
    """Step at which epoch 0 begins: that of the resume with this dataset (see same_dataset.py)."""

    @property
    def step_size(self) -> int:
        """Frames of a step, over all processes."""
        return self.batch_size * self.share.world_size

    @property
    def largest_batch(self) -> int:
        """Frames of a process's largest batch: fewer than ``batch_size`` in a tiny dataset."""
        is_filled = self.share.world_size > 1
        return self.batch_size if is_filled else min(self.batch_size, self.frames_per_epoch)

    @property
    def batches_per_epoch(self) -> int:
        """Batches of an epoch; the last may be smaller."""
        return math.ceil(self.frames_per_epoch / self.step_size)

    @property
    def frames_per_epoch(self) -> int:
        """Frames of an epoch; with balanced tasks, rounded up to a multiple of the tasks."""
        if self.tasks is None:
            return len(self.frames)
        n_tasks = len(np.unique(self.tasks))
        return math.ceil(len(self.frames) / n_tasks) * n_tasks

    def epoch(self, number: int) -> Frames:
        """Return the frames of an epoch in order."""
        if not self.shuffled:
            return self.frames
        if self.streamed is not None:
            order = np.fromiter(self.streamed(number), np.int64)
            return order[np.isin(order, self.frames)]
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1, np.uint64)[0])
        generator = torch.Generator().manual_seed(seed)
        places = torch.randperm(len(self.frames), generator=generator).numpy()
        if self.tasks is not None:
            places = self._balanced(places)
            places = places[torch.randperm(len(places), generator=generator).numpy()]
        shuffled: Frames = self.frames[places]
        return shuffled

    def _balanced(self, places: Frames) -> Frames:
        """Return equally many frames of every task, by dropping or repeating frames."""
        assert self.tasks is not None
        of = self.tasks[places]
        tasks = np.unique(of)
        each = self.frames_per_epoch // len(tasks)
        return np.concatenate([np.resize(places[of == task], each) for task in tasks])

    def position(self, step: int) -> Position:
        """Return the position of the batch of ``step``, counted from 0."""
        epoch, offset = divmod(step - self.first_step, self.batches_per_epoch)
        return Position(epoch, offset * self.step_size)

    def batches(self, first: int, last: int) -> Iterator[Frames]:
        """Yield the batches of the steps from ``first`` to ``last``, exclusive."""
        where = self.position(first)
        epoch, start, left = where.epoch, where.start, last - first
        while left > 0:
            frames = self.epoch(epoch)
            if self.share.world_size > 1:
                frames = np.resize(frames, self.batches_per_epoch * self.step_size)
            for begin in range(start, len(frames), self.step_size)[:left]:
                own = begin + self.share.rank * self.batch_size
                yield frames[own : own + self.batch_size]
                left -= 1
            epoch, start = epoch + 1, 0


def usable_frames(lengths: Sequence[int], drop_last: int) -> Frames:
    """Return the frames at which a sample may start, for consecutive episodes of ``lengths``.

    The last ``drop_last`` frames of each episode are dropped: their chunks are mostly padding.
    """
    ends = np.cumsum(np.asarray(lengths, np.int64))
    kept = [np.arange(end - n, end - drop_last) for n, end in zip(lengths, ends, strict=True)]
    frames: Frames = np.concatenate(kept) if kept else np.empty(0, np.int64)
    if len(frames) == 0:
        longest = max(lengths, default=0)
        raise UsageError(
            f"no frame is left to train on: the longest episode has {longest} frames, and the last "
            f"{drop_last} of each episode are dropped (--policy.drop_n_last_frames)",
            code="dataset.no-usable-frame",
        )
    return frames


def split_episodes(tasks: Sequence[str], fraction: float) -> tuple[list[int], list[int]]:
    """Split episodes into training and validation episodes, given each episode's task.

    The last ``fraction`` of every task, rounded up, is held out for validation.
    """
    by_task: dict[str, list[int]] = {}
    for episode, task in enumerate(tasks):
        by_task.setdefault(task, []).append(episode)
    held_out = {
        episode
        for episodes in by_task.values()
        for episode in episodes[len(episodes) - math.ceil(fraction * len(episodes)) :]
    }
    kept = [episode for episode in range(len(tasks)) if episode not in held_out]
    return kept, sorted(held_out)
