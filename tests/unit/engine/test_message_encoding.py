"""Messages between engine and workers as bytes."""

from __future__ import annotations

import numpy as np
import pytest

from proctor.engine.transport.message_encoding import decode, encode
from proctor.engine.transport.messages import ExecuteChunk, NeedsActions, SimClosed, WorkerFailed


@pytest.mark.parametrize("shape", [(1, 4), (10, 7), (1, 1)])
def test_a_chunk_keeps_its_bits_and_may_be_changed(shape: tuple[int, int]) -> None:
    actions = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    strided = np.repeat(actions, 2, axis=1)[:, ::2]
    got = decode(encode(ExecuteChunk(strided)))
    assert isinstance(got, ExecuteChunk)
    assert got.actions.dtype == np.float32
    assert got.actions.tobytes() == actions.tobytes()
    got.actions[0] = 0  # a simulator may


@pytest.mark.parametrize(
    "message", [NeedsActions(0), NeedsActions(2**40), SimClosed(), WorkerFailed("why", cause="c")]
)
def test_other_messages_are_equal_after_decoding(message: object) -> None:
    assert decode(bytearray(encode(message))) == message


def test_the_messages_of_every_decision_are_short() -> None:
    assert len(encode(NeedsActions(500))) < 16
    assert len(encode(ExecuteChunk(np.zeros((1, 4), np.float32)))) < 32
