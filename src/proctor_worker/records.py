"""The interface of worlds: what ``proctor_worker/worlds/NAME.py`` defines.

A world's module has ``make(config) -> World``; ``config`` holds the benchmark's flags as JSON.
"""

from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Optional, Protocol, Sequence

if TYPE_CHECKING:
    import numpy as np

EXPERT_ACTION = "expert.action"
"""Observation key of the scripted expert's next action, computed only if it is asked for."""


class Step(NamedTuple):
    """The result of one step."""

    reward: float
    success: Optional[bool]
    """None if the world has no success criterion."""
    terminated: bool
    scores: Optional[Mapping[str, float]] = None
    """Other measures of this step, by name."""


class Refused(Exception):
    """The world cannot be used as configured: one line for the user, and a stable code."""

    def __init__(self, text: str, code: str = "env.cannot-open") -> None:
        super().__init__(text)
        self.code = code


class AdapterError(Exception):
    """An error of the code around a simulator: it is never counted as the policy's."""


class WorldSim(Protocol):
    """A live simulator of one task. ``step`` never renders; ``observe`` does.

    Optional: ``coordinates() -> {name: float}``, positions of things for the report page, and
    ``start_state() -> {name: float}``, at most 64 numbers that tell the start of an episode from
    others, called after a reset. An attribute ``start_tolerance`` says how far the numbers of equal
    starts may be apart. Without it, Proctor compares starts by ``physics``.
    """

    def reset(self, spec: Dict[str, Any]) -> None:
        """Reset to the start of episode ``spec``, which its seed and init_state determine.

        ``random`` and ``np.random`` are seeded with the spec's seed just before.
        """

    def step(self, action: "np.ndarray[Any, Any]") -> Any:
        """Advance by one action; return a ``Step`` or a tuple of its fields."""

    def observe(self, keys: Sequence[str]) -> Dict[str, Any]:
        """Return the current observation for ``keys`` only."""

    def physics(self) -> "np.ndarray[Any, Any]":
        """Return the physics state, float64, for digests."""

    def close(self) -> None:
        """Free the simulator."""


class World(Protocol):
    """The tasks of a world, and their simulators.

    Optional: ``preflight(keys) -> {variable: value}``: check that ``keys`` can be observed, and
    return environment variables that the process needs from its start.
    """

    def describe(self) -> Dict[str, Any]:
        """Return what Proctor must know, as JSON values; creates no simulator if it can.

        Required: ``tasks`` [{suite, task_id, name, instruction, max_steps, fps}] (a task with a
        list of starts has their number as ``init_states`` too), ``features``
        {key: {kind, shape, dtype}} (kind: STATE, ENV, VISUAL, FILM or ACTION), ``action`` {size,
        low, high}, ``protocol`` (the rules that define an episode), ``distributions`` [names].
        Optional: ``action.clipped``, ``action.names``, ``judged`` (default true), ``scores``
        [{name, label}], ``notes``, ``warnings``.
        """

    def open(self, task: Dict[str, Any]) -> WorldSim:
        """Make the simulator of ``task``, an entry of ``tasks``."""
