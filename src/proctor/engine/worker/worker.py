"""The worker: owns at most one simulator, executes whole chunks, replies with small messages.

The same class works in a process of its own or inside the parent. It never imports torch, never
prints, and does not outlive the parent. This module and those that it imports at its top run in
Python 3.8 too, in the interpreter of a simulator.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from proctor.benchmarks.base import Benchmark, Sim
from proctor.benchmarks.guarded_sim import GuardedSim, share_phase
from proctor.benchmarks.isolated.local_sim import run_worlds_here
from proctor.engine.action_queue import ActionQueue
from proctor.engine.failures import failure_report, format_traceback
from proctor.engine.transport.channel import WorkerEnd
from proctor.engine.transport.message_encoding import decode
from proctor.engine.transport.messages import (
    EpisodeEnded,
    EpisodeStarted,
    ExecuteChunk,
    NeedsActions,
    Order,
    PluginFailed,
    PolicyFailed,
    RecordingFailed,
    Report,
    SimClosed,
    StartEpisode,
    WorkerReady,
)
from proctor.engine.transport.shared_memory import ObservationBuffer
from proctor.engine.worker.episode import ObservedEpisode, Window
from proctor.engine.worker.exec import WorkerState, move_to, read_state
from proctor.engine.worker.settings import WorkerSettings
from proctor.errors import PluginError, PolicyError, RunFolderError, truncate_text
from proctor.system import clock
from proctor.system.dependent_process import exit_at_end_of
from proctor.system.global_rng import SEED_BEFORE_RESET, seed_global_rng
from proctor.system.user_code import check_contract
from proctor.types import EpisodeResult, Task
from proctor_worker.guard import start_guard
from proctor_worker.spinning import SpinWait

if TYPE_CHECKING:
    from proctor.engine.worker.policy import WorkerPolicy

_NOT_HERE = (ImportError, SyntaxError, TypeError, AttributeError)
"""Errors of an interpreter that is too old for a module of Proctor, or lacks its dependencies."""


class Worker:
    """Executes the orders for one slot of the observation buffer."""

    def __init__(
        self,
        settings: WorkerSettings,
        buffer: ObservationBuffer,
        slot: int,
        send: Callable[[Report], None],
    ) -> None:
        """Prepare the worker of ``slot``; ``send`` sends reports besides those of ``handle``."""
        self._slot, self._send = slot, send
        self._action, self._latency = settings.action, settings.latency
        self._judged_images = settings.judged_images
        self._is_judged = False
        self._beats = buffer.beats.data
        self._window = Window(
            buffer.slot(slot), buffer.features, buffer.n_obs_steps, settings.start_keys
        )
        self._benchmark = settings.make_benchmark()
        self._policy: WorkerPolicy | None = None
        if settings.make_policy is not None:
            from proctor.engine.worker.policy import WorkerPolicy  # needs Python 3.11

            self._policy = WorkerPolicy(settings, self._benchmark)
        self._sim: Sim | None = None
        self._task: Task | None = None
        self._episode: ObservedEpisode | None = None
        self._action_queue: ActionQueue | None = None
        self._asked_at = 0.0

    def handle(self, order: Order) -> Report:
        """Execute an order and return its report."""
        try:
            return self._handle(order)
        except PolicyError as error:
            raised = error.__cause__ is not None  # without a cause the message says everything
            traceback = format_traceback(error) if raised else None
            return PolicyFailed(truncate_text(str(error)), traceback, error.code)
        except PluginError as error:
            return PluginFailed(truncate_text(str(error)), error.code)
        except RunFolderError as error:
            return RecordingFailed(truncate_text(str(error)), error.code)

    def _handle(self, order: Order) -> Report:
        if isinstance(order, StartEpisode):
            self._begin(order)
        elif isinstance(order, ExecuteChunk):
            self._run(order)
        else:
            self.close_sim()
            return SimClosed()
        return self._report()

    def close_sim(self) -> None:
        """Close the simulator, if one is open."""
        if self._sim is not None:
            self._sim.close()
            self._sim = self._task = self._episode = None
            _trim_memory()

    def _begin(self, order: StartEpisode) -> None:
        start, spec = time.perf_counter(), order.spec
        task = self._benchmark.sim_task(spec.task)
        if self._task != task or self._sim is None:
            self.close_sim()
            seed_global_rng(SEED_BEFORE_RESET)
            self._sim = self._make_sim(task)
            self._task = task
            _trim_memory()  # compiling a model needs far more memory than the model
        open_s = time.perf_counter() - start
        self._is_judged = bool(self._judged_images) and order.actions is None
        self._episode = self._new_episode(self._sim, order)
        self._episode.timings.open_s = open_s
        self._action_queue = ActionQueue(spec, self._latency)
        self._episode.begin()
        if order.reports_start and self._episode.start is not None:
            self._send(EpisodeStarted(self._episode.start))
        if order.actions is not None:
            self._episode.replay(order.actions)
        elif self._policy is not None:
            self._policy.play(self._episode, self._action_queue, self._window.arrays)

    def _make_sim(self, task: Task) -> Sim:
        sim = self._benchmark.make_sim(task)
        check_contract(sim, Sim)  # first: an object that is no Sim need not have close()
        # Innermost: wrappers around it are Proctor's code.
        return GuardedSim(sim, self._benchmark.features())

    def _new_episode(self, sim: Sim, order: StartEpisode) -> ObservedEpisode:
        """Return the episode as the order asks for it: with video, with recording, or plain.

        Videos and recordings need packages that other interpreters may lack: imported here.
        """
        if order.camera is not None:
            from proctor.engine.worker.video_sim import VideoSim

            sim = VideoSim(sim, order.camera)
        parts = (sim, order.spec, self._action, self._window, self._beat)
        recording = order.recording
        if recording is None:
            return ObservedEpisode(*parts)
        from proctor.engine.expert_labeler import ExpertLabeler
        from proctor.engine.worker.recorded_episode import EpisodeRecording, RecordingEpisode

        labeler = None
        if recording.expert_labeling is not None:
            benchmark = cast("Benchmark", self._benchmark)
            labeler = ExpertLabeler(benchmark, order.spec, recording.expert_labeling)
        return RecordingEpisode(*parts, EpisodeRecording(recording, labeler))

    def _run(self, order: ExecuteChunk) -> None:
        assert self._episode is not None
        assert self._action_queue is not None
        self._episode.timings.wait_s += time.perf_counter() - self._asked_at
        self._episode.run(self._action_queue.next_actions(order.actions))

    def _report(self) -> Report:
        assert self._episode is not None
        if self._episode.ended:
            images = self._episode.final_images(self._judged_images) if self._is_judged else None
            result = self._episode.result(self._slot)
            result.final_images = images
            return EpisodeEnded(result)
        self._asked_at = time.perf_counter()
        return NeedsActions(self._episode.steps)

    def partial_result(self) -> EpisodeResult | None:
        """Return the episode's result up to the simulator's failure."""
        return None if self._episode is None else self._episode.diverged(self._slot)

    def _beat(self, steps: int) -> None:
        """Count steps that have begun; a negative number takes them back."""
        self._beats[self._slot] += steps


def _trim_memory() -> None:
    """Return freed memory to the system, if the C library can.

    A closed model leaves holes in the heap that the next model does not fit. Over Meta-World's 50
    tasks a worker grows to 220-260 MB without this, and stays at 140 MB with it.
    """
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def worker_main(
    orders: WorkerEnd, settings: WorkerSettings, buffer: ObservationBuffer, slot: int
) -> None:
    """Run a worker in this process until the parent closes the channel."""
    _detach_from_terminal(settings.log_file)
    exit_with_parent()
    os.environ.update(settings.environment)
    if settings.interpreter is not None:
        move_to(settings.interpreter, orders, settings, buffer, slot)
    _serve(orders, settings, buffer, slot, None)


def resume_worker(descriptor: str) -> None:
    """Run a worker that has moved to this interpreter; its state is in the file ``descriptor``."""
    state = read_state(int(descriptor))
    faulthandler.enable()
    if state.parent is not None:
        exit_at_end_of(state.parent)
    if state.is_home:
        sys.path[:] = state.home_path
    else:
        run_worlds_here()
        sys.path.append(str(Path.cwd()))  # last: user code named by the flags
        os.setpgid(0, 0)
        assert state.process is not None
        start_guard(state.process)
    try:
        settings = state.settings()
    except _NOT_HERE:
        if state.is_home:
            raise
        state.move_home()
    # Polling while a core is free makes up for a slower Python.
    spin = None if state.is_home else SpinWait(state.orders).wait
    orders = WorkerEnd(socket.socket(fileno=state.orders), spin)
    window = (settings.features, settings.n_obs_steps)
    buffer = ObservationBuffer(state.n_slots, *window, fd=state.memory)
    _serve(orders, settings, buffer, state.slot, state)


def _serve(
    orders: WorkerEnd,
    settings: WorkerSettings,
    buffer: ObservationBuffer,
    slot: int,
    state: WorkerState | None,
) -> None:
    """Execute orders; those that this interpreter cannot execute move the worker home."""
    share_phase(buffer.phases[slot : slot + 1])
    clock.use_offset(settings.clock_offset)
    gc.freeze()  # imported modules stay: exclude them from collection
    worker: Worker | None = None
    try:
        worker = Worker(settings, buffer, slot, orders.send)
        pending = None if state is None else state.order
        if pending is None:
            orders.send(WorkerReady())
        while True:
            received, pending = pending or orders.recv_bytes(), None
            order = _read_order(received, is_home=state is None or state.is_home)
            if order is None:
                assert state is not None
                worker.close_sim()
                state.move_home(received)
            orders.send(worker.handle(order))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent closed the channel
    except BaseException as error:  # noqa: BLE001  reported to the engine
        so_far = None if worker is None else worker.partial_result()
        orders.send(replace(failure_report(error, so_far), at_start=worker is None))
    finally:
        # Skip the interpreter's shutdown: GL drivers may hang there, and nothing is left to save.
        os._exit(0)


def _read_order(received: bytes, *, is_home: bool) -> Order | None:
    """Return the order; None if it needs Proctor's own interpreter and this is another one."""
    try:
        order: Order = decode(received)
    except _NOT_HERE:
        if is_home:
            raise
        return None
    films = isinstance(order, StartEpisode) and (order.camera or order.recording) is not None
    return None if films and not is_home else order


def _detach_from_terminal(log_file: Path | None) -> None:
    """Redirect output to the log, and leave Ctrl-C to the parent.

    If the log cannot be opened (a full disk), output is dropped: episodes do not depend on it, and
    the journal's own error ends the run.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        target = os.open(log_file or os.devnull, flags, 0o644)
    except OSError:
        target = os.open(os.devnull, flags)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@lru_cache(maxsize=None)
def exit_with_parent() -> None:
    """Ensure that this process does not outlive its parent, however the parent ends.

    A thread waits for the parent's end. A simulator that hangs inside a C call may hold the
    interpreter lock and block that thread. On Linux the kernel is therefore asked as well: the fork
    server exits with the parent, and each worker is killed with the fork server.
    """
    _close_fork_server_pipe()
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    parent = parent_process()
    if parent is not None:
        exit_at_end_of(parent.sentinel)


def _close_fork_server_pipe() -> None:
    """Close this process's end of the pipe that keeps the fork server alive.

    multiprocessing passes it to every child, so that children may have children. A worker that is
    stopped, or that hangs with the interpreter locked, would keep the server alive, and thereby
    itself.
    """
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None and parent_process() is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
