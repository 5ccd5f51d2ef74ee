"""A simulator in another process, behind the interface of ``Sim``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from proctor.benchmarks.foreign.world_process import WorldProcess
from proctor.features import Array, Observation
from proctor.types import EpisodeSpec, StepResult, Task
from proctor_worker.frames import encode_header
from proctor_worker.server import RESULT

if TYPE_CHECKING:
    import numpy as np
else:
    from proctor_worker.lazy_numpy import np


class ForeignSim:
    """Passes every call on. Announced actions are executed while this side works on replies."""

    def __init__(self, world: WorldProcess, task: Task) -> None:
        self._world = world
        self._located: bool = world.request("open", task=task_fields(task))[0]["located"]
        self._waiting: list[Array] = []
        """Announced actions whose replies have not been read, the next one last."""
        self._observed: Observation = {}
        self._coordinates: dict[str, float] | None = None
        self._headers: dict[tuple[Any, ...], bytes] = {}

    def reset(self, spec: EpisodeSpec) -> None:
        """Reset the world."""
        self._waiting, self._observed, self._coordinates = [], {}, None
        fields = {"seed": spec.seed, "index": spec.index, "init_state": spec.init_state}
        self._world.request("reset", spec={**fields, "max_steps": spec.task.max_steps})

    def announce(
        self, actions: Array, keys: Sequence[str], first_observed: int, located: Sequence[int]
    ) -> None:
        """Send actions that ``step`` will be called with, and what will be read after them."""
        assert not self._waiting
        actions = np.ascontiguousarray(actions)
        header = self._run_header(actions, keys, first_observed, located)
        self._waiting = list(actions[::-1])
        self._world.send(header, [actions.tobytes()])

    def step(self, action: Array) -> StepResult:
        """Advance the world by one action."""
        if not self._waiting:
            self.announce(np.asarray(action)[None], (), 1, ())
        announced = self._waiting.pop()
        assert np.array_equal(announced, action), "an action differs from the announced one"
        header, result, self._observed = self._world.receive()
        self._coordinates = header.get("coordinates")
        reward, success, terminated = RESULT.unpack_from(result)
        if terminated:
            self._waiting = []
        known = None if success < 0 else bool(success)
        return StepResult(reward, known, bool(terminated), header.get("scores"))

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return the current observation for ``keys``."""
        missing = [key for key in keys if key not in self._observed]
        if missing:
            self._observed = {**self._observed, **self._ask("observe", keys=missing)[2]}
        return {key: self._observed[key] for key in keys if key in self._observed}

    def physics(self) -> Array:
        """Return the physics state."""
        world: Array = self._ask("physics")[2]["physics"]
        return world

    def coordinates(self) -> Mapping[str, float]:
        """Return named positions; empty if the world has none."""
        if not self._located:
            return {}
        if self._coordinates is None:
            self._coordinates = self._ask("coordinates")[0]["coordinates"]
        return self._coordinates

    def close(self) -> None:
        """Close the simulator; the process stays for the next task."""
        if not self._world.is_closed:
            self._world.request("close")

    def _ask(self, op: str, **fields: Any) -> Any:
        """Send a request about the current state."""
        assert not self._waiting, f"{op} was not announced"
        return self._world.request(op, **fields)

    def _run_header(
        self, actions: Array, keys: Sequence[str], first_observed: int, located: Sequence[int]
    ) -> bytes:
        """Return the encoded header of announced actions; most are equal to an earlier one."""
        key = (actions.shape, actions.dtype.str, tuple(keys), first_observed, tuple(located))
        if key not in self._headers:
            if len(self._headers) > 256:
                self._headers.clear()
            run = {"op": "run", "keys": keys, "observed": first_observed, "located": list(located)}
            listed = [["actions", actions.dtype.str, list(actions.shape), None]]
            self._headers[key] = encode_header({**run, "arrays": listed})
        return self._headers[key]


def task_fields(task: Task) -> dict[str, Any]:
    """Return a task as the JSON record that worlds receive."""
    return {
        "suite": task.suite,
        "task_id": task.task_id,
        "name": task.name,
        "instruction": task.instruction,
        "max_steps": task.max_steps,
        "fps": task.fps,
    }
