"""The actor processes of a learner on the same machine: started, watched, restarted, stopped."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from proctor.config.online_training import OnlineTrainConfig
from proctor.engine.worker.worker import exit_with_parent
from proctor.errors import ConnectionLost, WorkerError, summarize_traceback
from proctor.rl.link.links import LearnerEndpoint
from proctor.rl.link.pipe_link import PipeLink, serve_pipe
from proctor.system.files import MAX_JOURNAL_BYTES, read_regular_file

_LOOK_S = 0.2
_STOP_S = 5.0
_MAX_FAILURES = 3
_SIGNAL_S = 1.0
_STOP_CODES = (-signal.SIGTERM, -signal.SIGHUP)
"""Ends of an actor in a row, without a new transition, after which the training stops."""


@dataclass
class _Actor:
    """One actor process and its failures."""

    index: int
    process: SpawnProcess
    stored: int = 0
    """Transitions that the learner had of it when it was started."""
    failures: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name in messages and journals."""
        return actor_name(self.index)


def actor_name(index: int) -> str:
    """Return the name of an actor process of this machine."""
    return f"actor-{index}"


class ActorPool:
    """Runs the actors of a training in processes of their own."""

    def __init__(
        self,
        config: OnlineTrainConfig,
        endpoint: LearnerEndpoint,
        logs: Path,
        on_note: Callable[[str], None],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config, self._endpoint, self._logs, self._on_note = config, endpoint, logs, on_note
        self._is_stopping = is_stopping
        self._context = multiprocessing.get_context("spawn")
        self._actors: list[_Actor] = []
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="actor pool", daemon=True)
        self.failure: WorkerError | None = None
        """Why no actor can run; the training stops."""
        self.on_failure: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start all actors, and a thread that restarts those that end."""
        self._logs.mkdir(parents=True, exist_ok=True)
        indices = range(self._config.rl.actors)
        self._actors = [_Actor(index, self._started(index)) for index in indices]
        self._watcher.start()

    def stop_watching(self) -> None:
        """Restart no actor any more."""
        self._ended.set()

    def stop(self) -> None:
        """End all actors. Their transitions are acknowledged or will be collected again."""
        self.stop_watching()
        if self._watcher.is_alive():
            self._watcher.join()
        for actor in self._actors:
            actor.process.terminate()
        deadline = time.monotonic() + _STOP_S
        for actor in self._actors:
            actor.process.join(max(0.0, deadline - time.monotonic()))
            if actor.process.is_alive():
                actor.process.kill()
                actor.process.join()

    def _started(self, index: int) -> SpawnProcess:
        name = actor_name(index)
        ours, theirs = self._context.Pipe()
        serve_pipe(self._endpoint, name, ours)
        process = self._context.Process(
            target=_run_actor_process,
            args=(self._config, index, theirs, self._logs / f"{name}.log"),
            name=name,
            daemon=True,
        )
        process.start()
        theirs.close()
        return process

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            for actor in self._actors:
                if actor.process.is_alive() or self._is_over(actor.process.exitcode):
                    continue
                try:
                    self._restart(actor)
                except OSError as error:
                    self.failure = WorkerError(f"{actor.name} cannot be started: {error.strerror}")
                if self.failure is not None:
                    self.on_failure()
                    return

    def _is_over(self, code: int | None) -> bool:
        """Return whether the training stops, after an actor ended with ``code``.

        A signal to the whole process group ends an actor before this process handles it, so the
        answer waits for a moment.
        """
        if code in _STOP_CODES and not self._is_stopping():
            self._ended.wait(_SIGNAL_S)
        return self._ended.is_set() or self._is_stopping()

    def _restart(self, actor: _Actor) -> None:
        """Start an actor again, unless it has failed several times without a new transition."""
        actor.process.join()
        reason = _end_text(actor.process.exitcode)
        stored = self._endpoint.position(actor.name).stored
        if stored > actor.stored:
            actor.failures.clear()
        actor.stored = stored
        actor.failures.append(reason)
        log = self._logs / f"{actor.name}.log"
        if len(actor.failures) >= _MAX_FAILURES:
            self.failure = WorkerError(
                f"{actor.name} ended {len(actor.failures)} times without a new transition "
                f"({reason}): {_last_error(log)} (log: {log})"
            )
            return
        self._on_note(f"{actor.name} ended ({reason}) and is restarted; log: {log}")
        actor.process = self._started(actor.index)


def _end_text(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"


def _last_error(log: Path) -> str:
    try:
        text = read_regular_file(log, MAX_JOURNAL_BYTES).decode(errors="replace")
    except OSError as error:
        return f"its log cannot be read: {error.strerror}"
    return summarize_traceback(text)


def _run_actor_process(
    config: OnlineTrainConfig, index: int, connection: Connection, log: Path
) -> None:
    """Run an actor in this process, until the learner stops or the parent ends."""
    target = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the learner's affair
    exit_with_parent()
    from proctor.rl.actor.run import run_actor

    try:
        run_actor(config, PipeLink(connection), index)
    except ConnectionLost:
        return  # the training has ended
