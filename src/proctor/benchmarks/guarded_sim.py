"""Boundary to the simulator: it tells the simulator's errors from Proctor's own.

An error counts as the policy's failure only if the simulator itself caused it. Exceptions that
leave a simulator become ``SimulatorFault``. For crashes and hangs, a byte in shared memory says
whether the process is inside the simulator's code; the engine reads it after the process died.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from types import TracebackType
from typing import NoReturn

from proctor.benchmarks.base import AnnouncedSim, LocatedSim, MeasuredSim, PipelinedSim, Sim
from proctor.benchmarks.starts import start_tolerance
from proctor.errors import PluginError, SimulatorFault
from proctor.features import Array, Observation
from proctor.system.user_code import plugin_error
from proctor.types import MAX_START_VALUES, EpisodeSpec, StepResult


class Phase(IntEnum):
    """Whose code a worker process runs."""

    PROCTOR = 0
    SIMULATOR = 1


_PROCTOR, _SIMULATOR = int(Phase.PROCTOR), int(Phase.SIMULATOR)  # ints are faster to write
_phase = memoryview(bytearray(1))
"""The phase of this process, one byte; a process runs one simulator at a time."""


_shared = False


def share_phase(byte: Array) -> None:
    """Write this process's phase to ``byte`` (uint8 [1], in shared memory) from now on."""
    global _phase, _shared
    _phase, _shared = byte.data, True
    _phase[0] = _PROCTOR


def in_worker_process() -> bool:
    """Return whether this process is a worker, whose death the engine expects and explains."""
    return _shared


class proctor_code:  # noqa: N801  used as a context manager, like contextlib.suppress
    """Mark a block inside a simulator's methods as Proctor's own code, not the simulator's.

    Adapters put it around conversions, rendering and the success rule. An exception that leaves the
    block keeps the mark, so ``GuardedSim`` passes it on as it is.
    """

    def __enter__(self) -> None:
        self._before = _phase[0]
        _phase[0] = _PROCTOR

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            _phase[0] = self._before


class GuardedSim:
    """Wrapper of a simulator that raises its exceptions as ``SimulatorFault``, as their cause.

    It has the optional methods of ``LocatedSim``, ``MeasuredSim``, ``AnnouncedSim`` and
    ``PipelinedSim`` if the simulator has them.
    """

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        if isinstance(sim, LocatedSim):
            self.coordinates = partial(_named_numbers, sim.coordinates)
        self.start_tolerance = start_tolerance(sim)
        if isinstance(sim, MeasuredSim):
            self.start_state = partial(_start_state, sim)
        if isinstance(sim, AnnouncedSim):
            self.announce_reset, self.announce = sim.announce_reset, sim.announce
        if isinstance(sim, PipelinedSim):
            self.request_images = sim.request_images

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset the world."""
        _phase[0] = _SIMULATOR
        try:
            self._sim.reset(spec)
        except BaseException as error:  # noqa: BLE001  raised again
            _raise_marked(error)
        _phase[0] = _PROCTOR

    def step(self, action: Array) -> StepResult:
        """Advance the world.

        Raises:
            PluginError: the simulator returned no ``StepResult``.
        """
        _phase[0] = _SIMULATOR
        try:
            step = self._sim.step(action)
        except BaseException as error:  # noqa: BLE001  raised again
            _raise_marked(error)
        _phase[0] = _PROCTOR
        if not isinstance(step, StepResult):
            made = type(step).__name__
            raise plugin_error(
                self._sim.step,
                f"{type(self._sim).__name__}.step returned a {made}, not a StepResult",
            )
        return step

    def observe(self, keys: Sequence[str]) -> Observation:
        """Observe ``keys``."""
        _phase[0] = _SIMULATOR
        try:
            observation = self._sim.observe(keys)
        except BaseException as error:  # noqa: BLE001  raised again
            _raise_marked(error)
        _phase[0] = _PROCTOR
        return observation

    def physics(self) -> Array:
        """Return the physics state."""
        _phase[0] = _SIMULATOR
        try:
            world = self._sim.physics()
        except BaseException as error:  # noqa: BLE001  raised again
            _raise_marked(error)
        _phase[0] = _PROCTOR
        return world

    def close(self) -> None:
        """Close the simulator; its errors are not attributed to an episode."""
        self._sim.close()


def _start_state(sim: MeasuredSim) -> dict[str, float]:
    """Return what tells the simulator's start from others.

    Raises:
        PluginError: it is not at most ``MAX_START_VALUES`` numbers by name.
    """
    found = _named_numbers(sim.start_state)
    if len(found) > MAX_START_VALUES:
        made = f"returned {len(found)} numbers, more than {MAX_START_VALUES}"
        raise plugin_error(sim.start_state, f"{sim.start_state.__qualname__} {made}")
    return found


def _named_numbers(method: Callable[[], Mapping[str, float]]) -> dict[str, float]:
    """Return the numbers by name that a simulator's optional method gives.

    Raises:
        PluginError: it did not return numbers by name.
    """
    try:
        return {str(name): float(value) for name, value in method().items()}
    except Exception as error:
        name = getattr(method, "__qualname__", repr(method))
        raise plugin_error(method, f"{name} failed: {type(error).__name__}: {error}") from error


def _raise_marked(error: BaseException) -> NoReturn:
    """Raise ``error`` as a SimulatorFault, or unchanged if the simulator did not cause it.

    PluginError ends the run, and KeyboardInterrupt is the user's: both stay unchanged.
    """
    ours = _phase[0] == _PROCTOR
    _phase[0] = _PROCTOR
    if ours or isinstance(error, (PluginError, KeyboardInterrupt)):
        raise error
    raise SimulatorFault(f"{type(error).__name__} in the simulator") from error
