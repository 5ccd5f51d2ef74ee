"""The action queue of --eval.latency_steps: the old chunk is executed while the policy computes.

A real robot cannot wait for inference. A chunk is timed by the observation of its request. If the
request is made ``latency`` steps before the old chunk ends, the first ``latency`` actions of the
new chunk lie in the past when it arrives. They are never executed.
"""

from __future__ import annotations

import numpy as np

from proctor.errors import PolicyError
from proctor.features import Array
from proctor.types import EpisodeSpec


class ActionQueue:
    """The actions of one episode that are executed while the next chunk is computed.

    The simulator waits for the first chunk only: before it there is no action to execute. The queue
    counts steps and never reads a clock, so inference time does not change an episode.
    """

    def __init__(self, spec: EpisodeSpec, latency: int) -> None:
        self._spec = spec
        self._latency = latency
        self._left: Array | None = None  # [latency, action size]

    def next_actions(self, chunk: Array) -> Array:
        """Return the actions to execute before the next request, given the last one's chunk."""
        if not self._latency:
            return chunk
        if len(chunk) <= self._latency:
            raise PolicyError(
                f"a chunk of {len(chunk)} actions is over before it comes on {self._spec}: "
                f"--eval.latency_steps={self._latency} must be below it",
                code="policy.chunk-too-short",
            )
        if self._left is not None:
            chunk = np.concatenate([self._left, chunk[self._latency :]])
        self._left = chunk[-self._latency :].copy()  # not a row of the whole batch
        return chunk[: -self._latency]
