"""``OnlineOfflineMixer``: batches of online and offline transitions in a fixed ratio."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from proctor.rl.replay.buffer import ReplayBuffer
from proctor.rl.transitions import TransitionBatch

IS_DEMONSTRATION = "is_demonstration"
"""Key of the complementary info: 1 for rows of the offline buffer, 0 for online rows."""


@dataclass
class OnlineOfflineMixer:
    """Samples batches from both buffers.

    Without an offline buffer LeRobot asks the online one for its share of the batch only: with the
    default ratio, for half of it. ``full_batch`` (the fix ``batch``) asks for the whole batch.
    """

    online: ReplayBuffer
    offline: ReplayBuffer | None
    batch_size: int
    online_ratio: float = 0.5
    full_batch: bool = False

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows of a batch that are online and offline."""
        n_online = max(1, int(self.batch_size * self.online_ratio))
        if self.offline is None:
            return (self.batch_size if self.full_batch else n_online), 0
        return n_online, self.batch_size - n_online

    def sample(self, generator: torch.Generator) -> TransitionBatch:
        """Return a batch, online rows first."""
        n_online, n_offline = self.sizes
        online = _marked(self.online.sample(n_online, generator), 0.0)
        if self.offline is None or not n_offline:
            return online
        return concatenate(online, _marked(self.offline.sample(n_offline, generator), 1.0))


def concatenate(first: TransitionBatch, second: TransitionBatch) -> TransitionBatch:
    """Return the rows of both batches.

    As in LeRobot, complementary info that only one batch has keeps the length of that batch.
    """
    return TransitionBatch(
        _joined(first.observation, second.observation),
        torch.cat([first.action, second.action]),
        torch.cat([first.reward, second.reward]),
        _joined(first.next_observation, second.next_observation),
        torch.cat([first.done, second.done]),
        torch.cat([first.truncated, second.truncated]),
        second.complementary_info | _joined(first.complementary_info, second.complementary_info),
    )


def _joined(
    first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    return {
        key: torch.cat([value, second[key]]) if key in second else value
        for key, value in first.items()
    }


def _marked(batch: TransitionBatch, is_demonstration: float) -> TransitionBatch:
    batch.complementary_info[IS_DEMONSTRATION] = torch.full_like(batch.reward, is_demonstration)
    return batch
