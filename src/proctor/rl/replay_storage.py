"""The replay buffers of a learner and their journals on disk.

replay/online/    every received transition, in the order of arrival, with its actor and number
replay/offline/   the interventions, which the offline buffer has besides the demonstrations

The journals are the permanent storage, the buffers are in memory. A journal is ahead of its buffer:
a transition is acknowledged when it is in the journal, and admitted to the buffer when its turn has
come. A checkpoint holds only the number of admitted transitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from proctor.config.sections.online import LeRobotFix
from proctor.features import ACTION
from proctor.policies.lerobot.processors.processors import Pipeline
from proctor.rl.learner.metrics import BufferSizes
from proctor.rl.link.links import ActorPosition, ReceivedTransition
from proctor.rl.replay.buffer import ReplayBuffer, ReplaySettings
from proctor.rl.replay.datasets import DEFAULT_TASK, write_dataset
from proctor.rl.replay.journal import Journal, JournalFormat
from proctor.rl.replay.mixer import OnlineOfflineMixer
from proctor.rl.transitions import TransitionBatch
from proctor.training.rng import RngStreams


@dataclass(frozen=True)
class StorageSettings:
    """What the buffers keep and how batches are sampled."""

    keys: tuple[str, ...]
    """Observations of the policy."""
    action_size: int
    """Actions of the policy's Gaussian, without the gripper command."""
    online_capacity: int
    offline_capacity: int
    batch_size: int
    online_ratio: float
    seed: int
    fixes: frozenset[LeRobotFix]
    storage_device: str
    device: torch.device
    memory_bytes: int
    """Size of a buffer above which it is a mapped file."""

    def buffer(self, capacity: int, folder: Path) -> ReplayBuffer:
        """Make an empty buffer."""
        return ReplayBuffer(
            ReplaySettings(
                capacity=capacity,
                keys=self.keys,
                own_next=LeRobotFix.TRUNCATION in self.fixes,
                storage_device=self.storage_device,
                device=str(self.device),
                mapped_above_bytes=self.memory_bytes,
                folder=folder,
            )
        )


@dataclass(frozen=True)
class ReplayCursor:
    """How many transitions the buffers of a checkpoint had got."""

    online: int = 0
    interventions: int = 0


class ReplayStorage:
    """Both buffers of a learner, their journals, and the batches of its updates."""

    def __init__(
        self,
        folder: Path,
        settings: StorageSettings,
        preprocessor: Pipeline,
        fill_offline: Callable[[ReplayBuffer], None] | None = None,
        admitted: ReplayCursor | None = None,
    ) -> None:
        """Open the storage in ``folder`` as it was after ``admitted`` transitions.

        ``fill_offline`` adds the demonstrations to the offline buffer; None: there is no such
        buffer.
        """
        self._settings = settings
        self._preprocess = preprocessor.on(settings.device)
        self._rng = RngStreams(settings.seed)
        admitted = admitted or ReplayCursor()
        what = JournalFormat(settings.keys)
        self._journal = Journal(folder / "online", what)
        self._online = settings.buffer(settings.online_capacity, folder)
        self._first_unadmitted = admitted.online
        self._unchecked = len(self._journal) - admitted.online
        """Transitions to admit next that were in the journal at the start."""
        self.left_out = _restore(self._online, self._journal, admitted.online)
        """Stored transitions that cannot be learned from, left out of the buffers."""
        self._offline: ReplayBuffer | None = None
        self._interventions: Journal | None = None
        if fill_offline is not None:
            self._offline = settings.buffer(settings.offline_capacity, folder)
            fill_offline(self._offline)
            self._interventions = Journal(folder / "offline", what)
            self._interventions.truncate(admitted.interventions)
            self.left_out += _restore(self._offline, self._interventions, admitted.interventions)
        self._mixer = OnlineOfflineMixer(
            self._online,
            self._offline,
            settings.batch_size,
            settings.online_ratio,
            full_batch=LeRobotFix.BATCH in settings.fixes,
        )

    @property
    def sizes(self) -> BufferSizes:
        """Transitions in both buffers."""
        return BufferSizes(len(self._online), None if self._offline is None else len(self._offline))

    @property
    def positions(self) -> dict[str, ActorPosition]:
        """What the journal has of each actor."""
        return dict(self._journal.positions)

    def unadmitted(self) -> Iterator[ReceivedTransition]:
        """Yield the transitions of the journal that the online buffer lacked at the start."""
        yield from self._journal.read(self._first_unadmitted, len(self._journal))

    def write(self, received: Sequence[ReceivedTransition]) -> None:
        """Write transitions to the journal, and wait until they are on disk."""
        for one in received:
            self._journal.append(one)
        self._journal.sync()

    def admit(self, one: ReceivedTransition) -> bool:
        """Add a transition of the journal to the online buffer; an intervention to both.

        Returns False for one that cannot be learned from, in a journal of an earlier version: it
        is only counted.
        """
        is_learnable = self._unchecked < 1 or one.transition.is_learnable
        self._unchecked -= 1
        self.left_out += not is_learnable
        if is_learnable:
            self._online.add(one.transition)
        if self._offline is not None and one.transition.is_intervention:
            assert self._interventions is not None
            self._interventions.append(one)
            if is_learnable:
                self._offline.add(one.transition)
        return is_learnable

    def can_sample(self) -> bool:
        """Return whether both buffers have something to sample."""
        return self._online.n_sampleable > 0 and (
            self._offline is None or self._offline.n_sampleable > 0
        )

    def batches(self, update: int) -> Iterator[TransitionBatch]:
        """Yield the batches of an update, normalised: a function of the seed and its number."""
        generator = self._rng.batch_generator(update)
        while True:
            yield self._normalised(self._mixer.sample(generator))

    def sync(self) -> None:
        """Wait until all admitted transitions are on disk, before a checkpoint counts them."""
        if self._interventions is not None:
            self._interventions.sync()

    def write_datasets(self, folder: Path, fps: int, task: str) -> None:
        """Write both buffers as datasets beside the checkpoints, as LeRobot does."""
        for name, buffer in (("dataset", self._online), ("dataset_offline", self._offline)):
            if buffer is not None and len(buffer):
                write_dataset(buffer, folder / name, fps, task or DEFAULT_TASK)

    def forget_before(self, admitted: ReplayCursor) -> None:
        """Delete journal segments that a checkpoint of ``admitted`` transitions does not need."""
        if self._interventions is not None:
            kept = admitted.interventions - self._settings.offline_capacity
            self._interventions.drop_before(kept)
        self._journal.drop_before(admitted.online - self._settings.online_capacity)

    def _normalised(self, batch: TransitionBatch) -> TransitionBatch:
        batch.observation = self._preprocess(batch.observation)
        batch.next_observation = self._preprocess(batch.next_observation)
        if LeRobotFix.NORMALISATION in self._settings.fixes:
            size = self._settings.action_size
            normalised = self._preprocess({ACTION: batch.action[:, :size]})[ACTION]
            batch.action = torch.cat([normalised, batch.action[:, size:]], dim=1)
        return batch


def _restore(buffer: ReplayBuffer, journal: Journal, stop: int) -> int:
    """Add the records before ``stop`` that a buffer still has, each in its own row of the ring.

    Returns how many were left out, since nothing can be learned from them.
    """
    first, left_out = max(0, stop - buffer.settings.capacity), 0
    buffer.total += first
    for one in journal.read(first, stop):
        if one.transition.is_learnable:
            buffer.add(one.transition)
        else:
            left_out += 1
    return left_out
