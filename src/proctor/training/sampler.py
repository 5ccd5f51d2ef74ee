"""Which frames a step is computed from: a function of (seed, step) and the episodes' lengths.

The order is LeRobot's (its EpisodeAwareSampler): every epoch is one shuffle of all usable frames,
drawn from (seed, epoch) alone. So a resumed run continues at the frame where it was stopped, and
needs nothing but the number of the step to know it.
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
    """What one of several processes that train together learns from: of each step, its part."""

    rank: int = 0
    world_size: int = 1


WHOLE_SHARE = ProcessShare()


@dataclass(frozen=True)
class Position:
    """Where a step lies: in which epoch, and how many of its frames came before."""

    epoch: int
    start: int


@dataclass(frozen=True)
class BatchOrder:
    """All batches of a run, one after the other, without end.

    Of several processes each takes one batch of every step. Then the last step of an epoch has as
    many frames as the others: the epoch's first ones come again (as in accelerate).
    """

    frames: Frames
    batch_size: int
    seed: int
    shuffled: bool = True
    share: ProcessShare = WHOLE_SHARE
    tasks: Frames | None = None
    """The task of every frame, by number, where all tasks are to come equally often."""
    streamed: Callable[[int], Iterator[int]] | None = None
    """Of an epoch, the order in which a stream has its frames where it has them soonest."""

    @property
    def step_size(self) -> int:
        """The frames of a step, of all processes together."""
        return self.batch_size * self.share.world_size

    @property
    def batches_per_epoch(self) -> int:
        """The last of them may be smaller."""
        return math.ceil(self.frames_per_epoch / self.step_size)

    @property
    def frames_per_epoch(self) -> int:
        """As many as there are; of equally many of each task, rounded up."""
        if self.tasks is None:
            return len(self.frames)
        n_tasks = len(np.unique(self.tasks))
        return math.ceil(len(self.frames) / n_tasks) * n_tasks

    def epoch(self, number: int) -> Frames:
        """Return the frames of an epoch in the order they come."""
        if not self.shuffled:
            return self.frames
        if self.streamed is not None:
            order = np.fromiter(self.streamed(number), np.int64)
            return order[np.isin(order, self.frames)]
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1, np.uint64)[0])
        generator = torch.Generator().manual_seed(seed)
        places = torch.randperm(len(self.frames), generator=generator).numpy()
        if self.tasks is not None:
            places = self._evened(places)
            places = places[torch.randperm(len(places), generator=generator).numpy()]
        shuffled: Frames = self.frames[places]
        return shuffled

    def _evened(self, places: Frames) -> Frames:
        """Return as many of every task: some of those with many, those with few more than once."""
        assert self.tasks is not None
        of = self.tasks[places]
        tasks = np.unique(of)
        each = self.frames_per_epoch // len(tasks)
        return np.concatenate([np.resize(places[of == task], each) for task in tasks])

    def position(self, step: int) -> Position:
        """Return where the batch of ``step`` begins, the first step being 0."""
        epoch, offset = divmod(step, self.batches_per_epoch)
        return Position(epoch, offset * self.step_size)

    def batches(self, first: int, last: int) -> Iterator[Frames]:
        """Yield the batches of the steps from ``first`` up to, but without, ``last``."""
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
    """Return the frames a sample may begin at, episodes of these ``lengths`` lying one by one.

    Of each episode the last ``drop_last`` are left out: chunks from there would be mostly padding.

    Raises:
        UsageError: none is left.
    """
    ends = np.cumsum(np.asarray(lengths, np.int64))
    kept = [np.arange(end - n, end - drop_last) for n, end in zip(lengths, ends, strict=True)]
    frames: Frames = np.concatenate(kept) if kept else np.empty(0, np.int64)
    if len(frames) == 0:
        longest = max(lengths, default=0)
        raise UsageError(
            f"the dataset leaves no frame to train on: its longest episode has {longest} frames, "
            f"and the last {drop_last} of each are left out (--policy.drop_n_last_frames)",
            code="dataset.no-usable-frame",
        )
    return frames


def split_episodes(tasks: Sequence[str], fraction: float) -> tuple[list[int], list[int]]:
    """Return which episodes are trained on and which are held out, given each episode's task.

    Of every task the last ``fraction``, rounded up, is held out.
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
