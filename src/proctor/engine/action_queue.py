"""What is played while a policy thinks: the chunk it gave before, as on a robot that cannot wait.

A chunk is timed by the observation that it was asked for with. Asked ``latency`` steps before the
last one is used up, it comes when its first ``latency`` actions are past: those are never played.
"""

from __future__ import annotations

import numpy as np

from proctor.errors import PolicyError
from proctor.features import Array
from proctor.types import EpisodeSpec


class ActionQueue:
    """The actions of one episode that are still to be played when the policy is asked again.

    The world stands still for the first chunk only: before it there is nothing to play. Nothing
    here looks at a clock, so that an episode is the same however long a policy really takes.
    """

    def __init__(self, spec: EpisodeSpec, latency: int) -> None:
        self._spec = spec
        self._latency = latency
        self._left: Array | None = None  # [latency, action size]

    def next_actions(self, chunk: Array) -> Array:
        """Return what is played from here to the next question, given the answer to the last.

        Raises:
            PolicyError: the chunk is over by the time it comes.
        """
        if not self._latency:
            return chunk
        if len(chunk) <= self._latency:
            raise PolicyError(
                f"a chunk of {len(chunk)} actions is over before it comes on {self._spec}: "
                f"--eval.latency_steps={self._latency} must be below it"
            )
        if self._left is not None:
            chunk = np.concatenate([self._left, chunk[self._latency :]])
        self._left = chunk[-self._latency :].copy()  # not a row of the whole batch
        return chunk[: -self._latency]
