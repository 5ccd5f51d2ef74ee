"""The pool of actor processes: which ended actors are restarted."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proctor.rl.actor import pool as actor_pool
from proctor.rl.actor.pool import ActorPool


class EndedProcess:
    """A process that has ended by a signal."""

    exitcode = -signal.SIGTERM

    def is_alive(self) -> bool:
        return False

    def join(self, timeout: float | None = None) -> None:
        pass

    def terminate(self) -> None:
        pass


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ActorPool, list[str]]:
    notes: list[str] = []
    config: Any = SimpleNamespace(rl=SimpleNamespace(actors=1))
    endpoint: Any = SimpleNamespace(position=lambda name: SimpleNamespace(stored=0))
    made = ActorPool(config, endpoint, tmp_path / "logs", notes.append)
    monkeypatch.setattr(ActorPool, "_started", lambda self, index: EndedProcess())
    monkeypatch.setattr(actor_pool, "_SIGNAL_S", 0.01)
    return made, notes


def test_a_signal_to_the_whole_group_restarts_no_actor(
    pool: tuple[ActorPool, list[str]],
) -> None:
    made, notes = pool
    asked: list[bool] = []
    again = threading.Event()

    def handles_the_signal_later() -> bool:
        asked.append(True)
        if len(asked) > 3:
            again.set()  # a second look at the ended actor has begun
        return len(asked) > 1

    made._is_stopping = handles_the_signal_later
    made.start()
    assert again.wait(60)
    made.stop()
    assert notes == []
    assert made.failure is None


def test_an_actor_that_was_terminated_alone_is_restarted(
    pool: tuple[ActorPool, list[str]],
) -> None:
    made, notes = pool
    failed = threading.Event()
    made.on_failure = failed.set
    made.start()
    assert failed.wait(60)
    made.stop()
    assert len(notes) == 2
