"""A simulator that broke: what is said of it, and whether the policy may have done it.

A broken simulator is not a failed policy, and a policy that breaks the simulator is. What tells
them apart is a second try: an error that comes back at the same step of the same episode is the
policy's doing. Some never are, however often they come: memory, files and imports are the
machine's, so are a kill from outside and a hang.
"""

from __future__ import annotations

import re
import signal
import time
import traceback
from dataclasses import replace

from proctor.engine.messages import Broken
from proctor.errors import bounded
from proctor.types import EpisodeResult, EpisodeSpec, Outcome

_MACHINES = (MemoryError, OSError, ImportError)
_CRASHES = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT)
"""How a simulator's own code ends a process. SIGKILL is the system's (out of memory) or a
person's, SIGBUS a disk's or a memory's, SIGTERM a person's."""
_UNKNOWN_EXIT = 255
"""What multiprocessing says of a process when the fork server that knew has died."""


def broken_by(error: BaseException, so_far: EpisodeResult | None) -> Broken:
    """Return the report of a worker in which ``error`` was raised."""
    return Broken(describe(error), cause=cause_of(error), so_far=so_far)


def broken_by_death(exit_code: int | None) -> Broken:
    """Return the report of a worker whose process is gone."""
    if exit_code is None or exit_code >= 0:
        reason = f"worker process ended (exit code {exit_code})"
        return Broken(reason, cause=None if exit_code in (None, _UNKNOWN_EXIT) else reason)
    killer = signal.Signals(-exit_code)
    hint = " (out of memory?)" if killer is signal.SIGKILL else ""
    reason = f"worker process was killed by {killer.name}{hint}"
    return Broken(reason, cause=reason if killer in _CRASHES else None)


def describe(error: BaseException) -> str:
    """Return the traceback of ``error`` as text of a length that can be handed around."""
    return bounded("".join(traceback.format_exception(error)).strip())


def cause_of(error: BaseException) -> str | None:
    """Return what is the same when the same error comes again; None where it is the machine's."""
    if isinstance(error, _MACHINES):
        return None
    text = bounded("".join(traceback.format_exception_only(error)))
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)  # addresses differ, times and counters may


def given_up(spec: EpisodeSpec) -> EpisodeResult:
    """Return an episode that no worker completed, of which only its end is known."""
    now = time.time()
    return EpisodeResult(spec, Outcome.ERROR, started_at=now, ended_at=now)


def diverged_at(spec: EpisodeSpec, given: int, broken: Broken) -> EpisodeResult:
    """Return what is known of an episode whose simulator the policy broke."""
    if broken.so_far is not None:
        return broken.so_far
    return replace(given_up(spec), outcome=Outcome.DIVERGED, steps=given, measured=False)
