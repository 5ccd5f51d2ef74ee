"""Requests of several clients form batches."""

from __future__ import annotations

import queue
import threading

import numpy as np
import pytest

from proctor.features import Array
from proctor.policies.base import Batch, Policy, PolicySpec
from proctor.protocols.inference_messages import InferenceRequest
from proctor.serving.batcher import BatchedReply, RequestBatcher


class Counting(Policy):
    """Records batch sizes; its first call waits until the test continues."""

    def __init__(self, max_rows: int | None) -> None:
        self.spec = PolicySpec("counting", ("x",), max_rows=max_rows)
        self.sizes: list[int] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    def act(self, batch: Batch) -> Array:
        self.sizes.append(len(batch.queries))
        self.begun.set()
        assert self.go_on.wait(60)
        return np.zeros((len(batch.queries), 1, 2), np.float32)


@pytest.mark.parametrize(
    ("max_rows", "most", "sizes"),
    [(None, 64, [1, 7]), (3, 64, [1, 3, 3, 1]), (3, 2, [1, 2, 2, 2, 1])],
)
def test_no_more_are_answered_at_once_than_are_computed_at_once_or_asked_for(
    max_rows: int | None, most: int, sizes: list[int]
) -> None:
    policy = Counting(max_rows)
    batcher = RequestBatcher(policy, policy.act, max_batch=most, seed=0)
    heard: queue.SimpleQueue[object] = queue.SimpleQueue()
    try:
        for number in range(8):
            batcher.submit(
                batcher.open_session(),
                InferenceRequest({}),
                {"x": np.zeros(2, np.float32)},
                heard.put,
            )
            assert policy.begun.wait(60), number  # the first is being answered, the others wait
        policy.go_on.set()
        assert all(isinstance(heard.get(timeout=60), BatchedReply) for _ in range(8))
    finally:
        batcher.close()
    assert policy.sizes == sizes
