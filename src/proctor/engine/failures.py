"""Reports of failed workers, and whether the policy may have caused the failure.

A broken simulator is not a failed policy, but a policy may break the simulator. Two facts decide.
First, where the error arose: only the simulator's own code counts (``benchmarks/guarded_sim``), not
recording, encoding, shared memory or an adapter. Second, a retry: an error that repeats at the same
step of the same episode is caused by the policy. Errors of memory, files and imports, and kills
from outside, are always the machine's.
"""

from __future__ import annotations

import re
import signal
import traceback
from dataclasses import replace

from proctor.engine.transport.messages import WorkerFailed
from proctor.errors import SimulatorFault, truncate_text
from proctor.system import clock
from proctor.types import EpisodeResult, EpisodeSpec, Outcome

_MACHINES = (MemoryError, OSError, ImportError)
_CRASHES = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT)
"""Signals by which a simulator's own code ends a process. SIGKILL comes from the system (out of
memory) or a person, SIGBUS from a disk or memory, SIGTERM from a person."""
_UNKNOWN_EXIT = 255
"""Exit code that multiprocessing reports if the fork server died and the real code is unknown."""


def failure_report(error: BaseException, so_far: EpisodeResult | None) -> WorkerFailed:
    """Return the report of a worker in which ``error`` was raised."""
    return WorkerFailed(format_traceback(error), cause=failure_cause(error), so_far=so_far)


def process_death_report(exit_code: int | None, *, in_simulator: bool) -> WorkerFailed:
    """Return the report of a worker whose process ended, inside or outside the simulator's code."""
    where = " in the simulator" if in_simulator else ""
    if exit_code is None or exit_code >= 0:
        reason = f"worker process ended{where} (exit code {exit_code})"
        simulator_exited = in_simulator and exit_code not in (None, _UNKNOWN_EXIT)
        return WorkerFailed(reason, cause=reason if simulator_exited else None)
    killer = signal.Signals(-exit_code)
    hint = " (out of memory?)" if killer is signal.SIGKILL else ""
    reason = f"worker process was killed by {killer.name}{where}{hint}"
    return WorkerFailed(reason, cause=reason if in_simulator and killer in _CRASHES else None)


def hang_report(limit_s: float, *, in_simulator: bool) -> WorkerFailed:
    """Return the report of a worker that was killed after ``limit_s`` seconds without a step."""
    where = " in the simulator" if in_simulator else ""
    reason = f"no sign of life{where} for {limit_s:g} s; killed"
    return WorkerFailed(reason, cause=reason if in_simulator else None)


def format_traceback(error: BaseException) -> str:
    """Return the traceback of ``error`` as text of limited length."""
    raised = original_error(error)
    elsewhere = getattr(raised, "foreign_traceback", None)  # of a world in another process
    frames = traceback.format_exception(type(raised), raised, raised.__traceback__)
    text = elsewhere or "".join(frames)
    return truncate_text(text.strip())


def original_error(error: BaseException) -> BaseException:
    """Return the simulator's own exception if ``error`` wraps one, else ``error``."""
    return (error.__cause__ or error) if isinstance(error, SimulatorFault) else error


def failure_cause(error: BaseException) -> str | None:
    """Return a text that is equal if the same error repeats; None if it is not the simulator's."""
    raised = original_error(error)
    if not isinstance(error, SimulatorFault) or isinstance(raised, _MACHINES):
        return None
    text = truncate_text("".join(traceback.format_exception_only(type(raised), raised)))
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)  # addresses differ, times and counters may


def errored_result(spec: EpisodeSpec) -> EpisodeResult:
    """Return the result of an episode that no worker completed."""
    now = clock.now()
    return EpisodeResult(spec, Outcome.ERROR, started_at=now, ended_at=now)


def diverged_result(spec: EpisodeSpec, n_actions: int, failure: WorkerFailed) -> EpisodeResult:
    """Return the result of an episode whose simulator failed because of the policy."""
    if failure.so_far is not None:
        return failure.so_far
    return replace(errored_result(spec), outcome=Outcome.DIVERGED, steps=n_actions, measured=False)
