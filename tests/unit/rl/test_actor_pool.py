"""The pool of actor processes: which ended actors are restarted."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proctor.rl import actor_pool
from proctor.rl.actor_pool import ActorPool


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
def pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ActorPool, list[str], threading.Event]:
    notes: list[str] = []
    stopping = threading.Event()
    config: Any = SimpleNamespace(rl=SimpleNamespace(actors=1))
    endpoint: Any = SimpleNamespace(position=lambda name: SimpleNamespace(stored=0))
    made = ActorPool(config, endpoint, tmp_path / "logs", notes.append, stopping.is_set)
    monkeypatch.setattr(ActorPool, "_started", lambda self, index: EndedProcess())
    monkeypatch.setattr(actor_pool, "_SIGNAL_S", 0.3)
    return made, notes, stopping


def test_a_signal_to_the_whole_group_restarts_no_actor(
    pool: tuple[ActorPool, list[str], threading.Event],
) -> None:
    made, notes, stopping = pool
    made.start()
    threading.Timer(0.35, stopping.set).start()  # this process handles the signal a little later
    stopping.wait(2)
    made.stop()
    assert notes == []
    assert made.failure is None


def test_an_actor_that_was_terminated_alone_is_restarted(
    pool: tuple[ActorPool, list[str], threading.Event],
) -> None:
    made, notes, _ = pool
    failed = threading.Event()
    made.on_failure = failed.set
    made.start()
    assert failed.wait(5)
    made.stop()
    assert len(notes) == 2
