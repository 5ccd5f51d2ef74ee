"""A worker that broke: what is reported of it, and whether the policy may have caused it.

A broken simulator is not a failed policy, and a policy that breaks the simulator is. Two things
decide. Where the error arose: only the simulator's own code counts (``benchmarks/guarded_sim``),
never recording, encoding, shared memory or an adapter. And a second try: an error that comes back
at the same step of the same episode is the policy's doing. Some never are: memory, files and
imports are the machine's, and so is a kill from outside.
"""

from __future__ import annotations

import re
import signal
import traceback
from dataclasses import replace

from proctor.engine.messages import WorkerFailed
from proctor.errors import SimulatorFault, truncate_text
from proctor.system import clock
from proctor.types import EpisodeResult, EpisodeSpec, Outcome

_MACHINES = (MemoryError, OSError, ImportError)
_CRASHES = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT)
"""How a simulator's own code ends a process. SIGKILL is the system's (out of memory) or a
person's, SIGBUS a disk's or a memory's, SIGTERM a person's."""
_UNKNOWN_EXIT = 255
"""What multiprocessing says of a process when the fork server that knew has died."""


def failure_report(error: BaseException, so_far: EpisodeResult | None) -> WorkerFailed:
    """Return the report of a worker in which ``error`` was raised."""
    return WorkerFailed(format_traceback(error), cause=failure_cause(error), so_far=so_far)


def process_death_report(exit_code: int | None, *, in_simulator: bool) -> WorkerFailed:
    """Return the report of a worker whose process is gone, in the simulator's code or outside."""
    where = " in the simulator" if in_simulator else ""
    if exit_code is None or exit_code >= 0:
        reason = f"worker process ended{where} (exit code {exit_code})"
        simulators = in_simulator and exit_code not in (None, _UNKNOWN_EXIT)
        return WorkerFailed(reason, cause=reason if simulators else None)
    killer = signal.Signals(-exit_code)
    hint = " (out of memory?)" if killer is signal.SIGKILL else ""
    reason = f"worker process was killed by {killer.name}{where}{hint}"
    return WorkerFailed(reason, cause=reason if in_simulator and killer in _CRASHES else None)


def broken_by_hang(limit_s: float, *, in_simulator: bool) -> WorkerFailed:
    """Return the report of a worker that was killed because it took no step for ``limit_s``."""
    where = " in the simulator" if in_simulator else ""
    reason = f"no sign of life{where} for {limit_s:g} s; killed"
    return WorkerFailed(reason, cause=reason if in_simulator else None)


def format_traceback(error: BaseException) -> str:
    """Return the traceback of ``error`` as text of a length that can be handed around."""
    return truncate_text("".join(traceback.format_exception(raised_by(error))).strip())


def raised_by(error: BaseException) -> BaseException:
    """Return what the simulator raised where ``error`` is a simulator's fault, else ``error``."""
    return (error.__cause__ or error) if isinstance(error, SimulatorFault) else error


def failure_cause(error: BaseException) -> str | None:
    """Return a text that is equal when the same error repeats; None if not the simulator's."""
    raised = raised_by(error)
    if not isinstance(error, SimulatorFault) or isinstance(raised, _MACHINES):
        return None
    text = truncate_text("".join(traceback.format_exception_only(raised)))
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)  # addresses differ, times and counters may


def errored_result(spec: EpisodeSpec) -> EpisodeResult:
    """Return an episode that no worker completed, of which only its end is known."""
    now = clock.now()
    return EpisodeResult(spec, Outcome.ERROR, started_at=now, ended_at=now)


def diverged_result(spec: EpisodeSpec, given: int, broken: WorkerFailed) -> EpisodeResult:
    """Return what is known of an episode whose simulator the policy broke."""
    if broken.so_far is not None:
        return broken.so_far
    return replace(errored_result(spec), outcome=Outcome.DIVERGED, steps=given, measured=False)
