"""A simulator in another process, behind the interface of ``Sim``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from proctor.benchmarks.base import ComingSteps
from proctor.benchmarks.isolated.task_fields import spec_fields, task_fields
from proctor.benchmarks.isolated.world_process import Reply, WorldProcess
from proctor.benchmarks.starts import START_TOLERANCE
from proctor.features import Array, Observation
from proctor.types import EpisodeSpec, StepResult, Task
from proctor_worker.records import EXPERT_ACTION
from proctor_worker.server import RESULT, unpack_numbers

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np


class IsolatedSim:
    """Passes every call on. Announced steps are one request, and so is a reset."""

    def __init__(self, world: WorldProcess, task: Task) -> None:
        self._world, self.origin = world, world.origin
        self._located: bool = world.request("open", task=task_fields(task))[0]["located"]
        self._first_keys: tuple[str, ...] = ()
        """Observed after the next reset."""
        self._waiting: list[Array] = []
        """Announced actions whose replies have not been read, the next one last."""
        self._expert_steps = 0
        """Announced steps after those, whose actions the world computes."""
        self._progress = StepProgress(world)
        self._observed: Observation = {}
        self._physics: Array | None = None
        self._coordinates: dict[str, float] | None = None
        self._start: dict[str, float] = {}
        self.start_tolerance = START_TOLERANCE

    def announce_reset(self, keys: Sequence[str]) -> None:
        """Observe ``keys`` after the next reset."""
        self._first_keys = tuple(keys)

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset the world."""
        self._waiting, self._expert_steps = [], 0
        keys, self._first_keys = self._first_keys, ()
        fields, numbers, seen = self._world.request("reset", spec=spec_fields(spec), keys=keys)
        start, found = fields["start"], unpack_numbers(numbers, 0)
        self._start = dict(zip(start, found, strict=False))
        self.start_tolerance = fields["start_tolerance"] or START_TOLERANCE
        self._update(fields["coordinates"], found[len(start) :], seen)

    def announce(self, coming: ComingSteps) -> None:
        """Send the next steps to the world."""
        assert not self._waiting
        assert not self._expert_steps
        self._waiting, self._expert_steps = list(coming.actions[::-1]), coming.expert_steps
        self._progress.count = coming.count
        key = (coming.keys, coming.first_observed, coming.located, coming.expert_steps)
        run = dict(zip(("keys", "observed", "located", "expert_steps"), key, strict=True))
        self._world.send({"op": "run", **run}, {"actions": coming.actions}, key=key)

    def step(self, action: Array) -> StepResult:
        """Advance the world by one action."""
        if not self._waiting and not self._expert_steps:
            self.announce(ComingSteps(np.asarray(action)[None], (), 1, (), _not_counted))
        if self._waiting:
            executed = self._waiting.pop()
        else:
            self._expert_steps -= 1
            executed = np.asarray(self._observed[EXPERT_ACTION], np.float32)
        assert executed.tobytes() == action.tobytes(), "an action differs from the announced one"
        fields, result, seen = self._progress.receive()
        reward, success, terminated = RESULT.unpack_from(result)
        if terminated:
            self._waiting, self._expert_steps = [], 0
        scores = None
        numbers = unpack_numbers(result) if len(result) > RESULT.size else ()
        if fields["scores"]:
            scores = dict(zip(fields["scores"], numbers, strict=False))
        self._update(fields["coordinates"], numbers[len(fields["scores"]) :], seen)
        return StepResult(reward, None if success < 0 else bool(success), bool(terminated), scores)

    def _update(
        self, names: Sequence[str], numbers: Sequence[float], seen: dict[str, Array]
    ) -> None:
        """Store what the reply to a reset or a step has of the new state."""
        self._physics = seen.pop("physics", None)
        self._observed = seen
        self._coordinates = dict(zip(names, numbers, strict=True)) if names else None

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation for ``keys``."""
        missing = [key for key in keys if key not in self._observed]
        if missing:
            self._observed = {**self._observed, **self._ask("observe", keys=missing)[2]}
        return {key: self._observed[key] for key in keys if key in self._observed}

    def physics(self) -> Array:
        """Return the physics state."""
        if self._physics is None:
            self._physics = self._ask("physics")[2]["physics"]
        return self._physics

    def coordinates(self) -> Mapping[str, float]:
        """Return named positions; empty if the world has none."""
        if not self._located:
            return {}
        if self._coordinates is None:
            self._coordinates = self._ask("coordinates")[0]["coordinates"]
        return self._coordinates

    def start_state(self) -> Mapping[str, float]:
        """Return what tells the start from others; empty if the world does not say it."""
        return self._start

    def close(self) -> None:
        """Close the simulator; the process stays for the next task."""
        if not self._world.is_closed:
            self._world.request("close")

    def _ask(self, op: str, **fields: Any) -> Any:
        """Send a request about the current state."""
        assert not self._waiting, f"{op} was not announced"
        assert not self._expert_steps, f"{op} was not announced"
        return self._world.request(op, **fields)


class StepProgress:
    """Counts the steps that a world has begun, while its replies to them are on their way.

    The engine reads the count if a world hangs or dies: it tells which step was the last one.
    """

    def __init__(self, world: WorldProcess) -> None:
        self.count: Callable[[int], None] = _not_counted
        """Adds to the engine's number of steps, which has the step that is waited for."""
        self._world = world
        self._answered = world.steps_begun
        self._ahead = 0

    def receive(self) -> Reply:
        """Return the reply to the next step."""
        try:
            return self._world.receive(self._update)
        finally:
            if not self._world.is_closed:  # else the last count stays
                self._answered += 1
                self._set(0)

    def _update(self) -> None:
        self._set(max(0, self._world.steps_begun - self._answered - 1))

    def _set(self, ahead: int) -> None:
        if ahead != self._ahead:
            self.count(ahead - self._ahead)
            self._ahead = ahead


def _not_counted(steps: int) -> None:
    """Stand in for the engine's count."""
