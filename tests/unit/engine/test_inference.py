"""The policy's thread: what it does before anybody asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from proctor.benchmarks.base import interface_of
from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.engine.inference import Answer, ThreadInference
from proctor.policies.base import Batch, Query
from proctor.policies.scripted.zero import ZeroConfig, ZeroPolicy


class Asked:
    """A thread with a policy, and one batch for it."""

    def __init__(self) -> None:
        benchmark = Fake(FakeConfig())
        self.answered = threading.Event()
        policy = ZeroPolicy(ZeroConfig(), interface_of(benchmark))
        self.thread = ThreadInference(policy, benchmark.action, self.answered.set)
        self.batch = Batch([Query(benchmark.spec(benchmark.tasks()[0], 0, 0), 0, None)], {})

    def answer(self) -> Answer:
        self.thread.submit(self.batch)
        assert self.answered.wait(10)
        answer = self.thread.take()
        assert answer is not None
        return answer


@pytest.fixture
def asked() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    asked.thread.close()


def test_warming_up_goes_on_until_somebody_asks(asked: Asked) -> None:
    done, first = [], threading.Event()

    def pieces() -> Iterator[None]:
        for piece in range(1000):
            yield
            done.append(piece)
            first.set()
            time.sleep(0.01)

    asked.thread.warm_up(pieces())
    assert first.wait(10)
    assert asked.answer().error is None
    assert 1 <= len(done) < 1000
    so_far = len(done)
    time.sleep(0.05)
    assert len(done) == so_far, "what is left is left"


def test_warming_up_that_fails_leaves_the_error_to_the_batch_that_meets_it(asked: Asked) -> None:
    def pieces() -> Iterator[None]:
        yield
        raise RuntimeError("no memory left")

    asked.thread.warm_up(pieces())
    assert asked.answer().error is None
