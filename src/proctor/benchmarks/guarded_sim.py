"""Boundary to the simulator: checks its values, and tells its errors from Proctor's own.

An error counts as the policy's failure only if the simulator itself caused it. Exceptions that
leave a simulator become ``SimulatorFault``. For crashes and hangs, a byte in shared memory says
whether the process is inside the simulator's code; the engine reads it after the process died.

What a simulator returns is checked here, before anything counts it (``proctor_worker.boundary``): a
value of the wrong type is a ``PluginError``, since no policy can cause it. Numbers that are not
finite and shapes that are wrong are a ``SimulatorFault``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from proctor.benchmarks.base import (
    AnnouncedSim,
    LocatedSim,
    MeasuredSim,
    PendingImage,
    PipelinedSim,
    Sim,
)
from proctor.benchmarks.starts import start_tolerance
from proctor.errors import PluginError, SimulatorFault
from proctor.features import Array, Feature, Observation
from proctor.system.user_code import plugin_error
from proctor.types import MAX_START_VALUES, EpisodeSpec, StepResult
from proctor_worker.boundary import (
    WrongValue,
    as_declared,
    as_flag,
    as_number,
    as_numbers,
    is_finite,
    is_reward,
    numbers_by_name,
)

if TYPE_CHECKING:
    import numpy as np
else:  # `proctor eval --help` comes here
    from proctor_worker.lazy_numpy import np


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
    """Wrapper of a simulator that checks its values against the benchmark's ``features``.

    It raises the simulator's exceptions as ``SimulatorFault``, as their cause.

    It has the optional methods of ``LocatedSim``, ``MeasuredSim``, ``AnnouncedSim`` and
    ``PipelinedSim`` if the simulator has them.
    """

    def __init__(self, sim: Sim, features: Mapping[str, Feature]) -> None:
        self._sim, self._features = sim, features
        self._usual = {key: (f.shape, np.dtype(f.dtype)) for key, f in features.items()}
        if isinstance(sim, LocatedSim):
            self.coordinates = partial(_named_numbers, sim, "coordinates")
        self.start_tolerance = start_tolerance(sim)
        if isinstance(sim, MeasuredSim):
            self.start_state = partial(_start_state, sim)
        if isinstance(sim, AnnouncedSim):
            self.announce_reset, self.announce = sim.announce_reset, sim.announce
        if isinstance(sim, PipelinedSim):
            self.request_images = self._request_images

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset the world."""
        _phase[0] = _SIMULATOR
        try:
            self._sim.reset(spec)
        except BaseException as error:  # noqa: BLE001  raised again
            _raise_marked(error)
        _phase[0] = _PROCTOR

    def step(self, action: Array) -> StepResult:
        """Advance the world."""
        _phase[0] = _SIMULATOR
        try:
            step = self._sim.step(action)
        except BaseException as error:  # noqa: BLE001  raised again
            _raise_marked(error)
        _phase[0] = _PROCTOR
        return self._checked_step(step)

    def _checked_step(self, step: StepResult) -> StepResult:
        if not isinstance(step, StepResult):
            made = type(step).__name__
            raise _contract_error(self._sim, "step", f"returned a {made}, not a StepResult")
        reward, success, ended = step.reward, step.success, step.terminated
        usual = type(reward) is float and type(success) is bool and type(ended) is bool
        if not usual or step.scores is not None:
            step = self._with_own_types(step)
        if not is_reward(step.reward):
            raise SimulatorFault(f"the simulator gave reward {step.reward}")
        return step

    def _with_own_types(self, step: StepResult) -> StepResult:
        """Return a step whose numbers and flags have Python's own types."""
        try:
            scores = None if step.scores is None else numbers_by_name(step.scores)
            step = StepResult(
                as_number(step.reward, "the reward"),
                None if step.success is None else as_flag(step.success, "success"),
                as_flag(step.terminated, "terminated"),
                scores,
            )
        except WrongValue as wrong:
            raise _contract_error(self._sim, "step", str(wrong)) from None
        for name, value in (scores or {}).items():
            if not is_reward(value):
                raise SimulatorFault(f"the simulator gave {name} {value}")
        return step

    def observe(self, keys: Sequence[str]) -> Observation:
        """Observe ``keys``."""
        _phase[0] = _SIMULATOR
        try:
            observation = self._sim.observe(keys)
        except BaseException as error:  # noqa: BLE001  raised again
            _raise_marked(error)
        _phase[0] = _PROCTOR
        if not isinstance(observation, Mapping):
            made = type(observation).__name__
            raise _contract_error(self._sim, "observe", f"returned a {made}, not a dict of arrays")
        return {key: self._checked_value(key, observation) for key in keys}

    def _checked_value(self, key: str, observation: Observation) -> Array:
        """Return the value of a feature.

        Without these checks numpy would cast another dtype, so that images are black, and broadcast
        another shape; and the policy would be blamed for NaN.
        """
        if key not in observation:
            raise SimulatorFault(f"the simulator was asked for {key} and gave none")
        value, feature = observation[key], self._features[key]
        if (
            type(value) is np.ndarray
            and (value.shape, value.dtype) == self._usual[key]
            and (value.dtype.kind != "f" or np.isfinite(value).all())
        ):
            return value  # the usual case, at every step
        try:
            value = as_declared(value, feature.dtype, key)
        except WrongValue as wrong:
            raise _contract_error(self._sim, "observe", str(wrong)) from None
        if value.shape != feature.shape:
            raise SimulatorFault(
                f"the simulator gave {key} of shape {value.shape}, not {feature.shape}"
            )
        if not is_finite(value, feature.dtype):
            raise SimulatorFault(f"the simulator gave a {key} that is not finite")
        return value

    def _request_images(self, keys: Sequence[str]) -> Mapping[str, PendingImage] | None:
        """Request images, which are checked as they arrive."""
        assert isinstance(self._sim, PipelinedSim)
        requested = self._sim.request_images(keys)
        if requested is None:
            return None
        return {key: partial(self._arrived_image, key, requested[key]) for key in requested}

    def _arrived_image(self, key: str, pending: PendingImage) -> Array:
        return self._checked_value(key, {key: pending()})

    def physics(self) -> Array:
        """Return the physics state."""
        _phase[0] = _SIMULATOR
        try:
            world = self._sim.physics()
        except BaseException as error:  # noqa: BLE001  raised again
            _raise_marked(error)
        _phase[0] = _PROCTOR
        try:
            return as_numbers(world, "the physics state")
        except WrongValue as wrong:
            raise _contract_error(self._sim, "physics", str(wrong)) from None

    def close(self) -> None:
        """Close the simulator; its errors are not attributed to an episode."""
        self._sim.close()


def _start_state(sim: MeasuredSim) -> dict[str, float]:
    """Return what tells the simulator's start from others."""
    found = _named_numbers(sim, "start_state")
    if len(found) > MAX_START_VALUES:
        made = f"returned {len(found)} numbers, more than {MAX_START_VALUES}"
        raise _contract_error(sim, "start_state", made)
    return found


def _named_numbers(sim: Any, method: str) -> dict[str, float]:
    """Return the numbers by name that a simulator's optional method gives."""
    try:
        return numbers_by_name(getattr(sim, method)())
    except WrongValue as wrong:
        raise _contract_error(sim, method, str(wrong)) from None
    except PluginError:
        raise
    except Exception as error:
        text = f"failed: {type(error).__name__}: {error}"
        raise _contract_error(sim, method, text) from error


def _contract_error(sim: Any, method: str, text: str) -> PluginError:
    """Return the error that names the simulator whose ``method`` breaks its contract.

    A simulator in another interpreter is named by its ``origin``.
    """
    while type(sim).__module__.startswith("proctor.") and hasattr(sim, "_sim"):
        sim = sim._sim  # a wrapper of ours
    origin = getattr(sim, "origin", None)
    if origin is not None:
        return PluginError(f"{origin}: {method} {text}", code="plugin.contract-violation")
    return plugin_error(getattr(sim, method, sim), f"{type(sim).__name__}.{method} {text}")


def _raise_marked(error: BaseException) -> NoReturn:
    """Raise ``error`` as a SimulatorFault, or unchanged if the simulator did not cause it.

    PluginError ends the run, and KeyboardInterrupt is the user's: both stay unchanged.
    """
    ours = _phase[0] == _PROCTOR
    _phase[0] = _PROCTOR
    if ours or isinstance(error, (PluginError, KeyboardInterrupt)):
        raise error
    raise SimulatorFault(f"{type(error).__name__} in the simulator") from error
