"""A world without physics, for tests and as an example: a point must reach a goal.

It draws the same episodes as Proctor's benchmark ``fake``.
"""

import ctypes
import os
import signal
import time
from typing import Any, Dict, Mapping, Sequence

import numpy as np

from proctor_worker.records import EXPERT_ACTION, Refused, Step

_RADIUS = 0.05


def make(config: Dict[str, Any]) -> "PointWorld":
    """Return the world."""
    return PointWorld(config)


class PointWorld:
    """Any number of equal tasks."""

    def __init__(self, config: Dict[str, Any]) -> None:
        if config.get("refuse"):
            raise Refused("the world cannot be used: %s" % config["refuse"])
        if "make" in config.get("faults", {}):
            raise ValueError("the world broke while it was made")
        self._config = config

    def describe(self) -> Dict[str, Any]:
        """Return tasks, features and rules."""
        size = self._config.get("image_size", 16)
        length = self._config.get("episode_length", 50)
        return {
            "tasks": [
                {
                    "suite": "point",
                    "task_id": number,
                    "name": "point-%d" % number,
                    "instruction": "reach the goal",
                    "max_steps": length,
                    "fps": 10,
                }
                for number in range(self._config.get("n_tasks", 1))
            ],
            "features": {
                "observation.image": {
                    "kind": "VISUAL",
                    "shape": [size, size, 3],
                    "dtype": "uint8",
                },
                "observation.state": {"kind": "STATE", "shape": [2], "dtype": "float32"},
                "observation.environment_state": {"kind": "ENV", "shape": [4], "dtype": "float64"},
                EXPERT_ACTION: {"kind": "ACTION", "shape": [2], "dtype": "float32"},
            },
            "action": {"size": 2, "low": -1.0, "high": 1.0},
            "protocol": {"horizon": length},
            "distributions": [],
        }

    def open(self, task: Dict[str, Any]) -> "PointSim":
        """Return the simulator of a task."""
        return PointSim(self._config, task)


class PointSim:
    """A point on a plane, moved by at most 0.1 per step and axis."""

    def __init__(self, config: Dict[str, Any], task: Dict[str, Any]) -> None:
        self._config = config
        self._task = task
        self._point = self._goal = np.zeros(2)
        self._place = ""
        self._steps = 0

    def reset(self, spec: Dict[str, Any]) -> None:
        """Draw point and goal from the seed."""
        rng = np.random.default_rng([spec["seed"], self._task["task_id"]])
        self._point, self._goal = rng.uniform(-1, 1, 2), rng.uniform(-1, 1, 2)
        self._steps = 0
        self._place = "%d/%d" % (self._task["task_id"], spec["index"])
        self._maybe_break()

    def step(self, action: Any) -> Step:
        """Move the point; the episode ends at the goal."""
        self._steps += 1
        self._maybe_break()
        self._point = self._point + 0.1 * np.clip(np.asarray(action, np.float64), -1, 1)
        distance = float(np.linalg.norm(self._point - self._goal))
        solved = distance < _RADIUS
        return Step(-distance, solved, solved)

    def observe(self, keys: Sequence[str]) -> Dict[str, Any]:
        """Return positions, the expert's action, or an image of one colour."""
        size = self._config.get("image_size", 16)
        made: Dict[str, Any] = {}
        for key in keys:
            if key == "observation.image":
                made[key] = np.full((size, size, 3), int(abs(self._point[0]) * 1000) % 256, "u1")
            elif key == "observation.state":
                made[key] = self._point.astype(np.float32)
            elif key == EXPERT_ACTION:
                away = (self._goal - self._point) * 10
                made[key] = np.clip(away, -1, 1).astype(np.float32)
            else:
                made[key] = np.concatenate([self._point, self._goal])
        return made

    def physics(self) -> Any:
        """Return the positions of point and goal."""
        return np.concatenate([self._point, self._goal])

    def coordinates(self) -> Mapping[str, float]:
        """Return the positions of point and goal."""
        names = ("robot x", "robot y", "goal x", "goal y")
        return dict(zip(names, self.physics().tolist()))

    def start_state(self) -> Mapping[str, float]:
        """Return the positions of point and goal."""
        return dict(zip(("point x", "point y", "goal x", "goal y"), self.physics().tolist()))

    def close(self) -> None:
        """Do nothing."""

    def _maybe_break(self) -> None:
        """Fail as ``faults`` says, {"TASK/EPISODE/STEP": KIND}; with ``once_in``, once."""
        place = "%s/%d" % (self._place, self._steps)
        fault = self._config.get("faults", {}).get(place)
        folder = self._config.get("once_in")
        if fault is not None and folder:
            mark = os.path.join(folder, place.replace("/", "-"))  # noqa: PTH118
            if os.path.exists(mark):  # noqa: PTH110
                return
            open(mark, "w").close()  # noqa: PTH123
        if fault == "raise":
            raise RuntimeError("the world broke at %s" % place)
        if fault == "hang":
            time.sleep(3600)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "segfault":
            ctypes.string_at(0)
        if fault == "exit":
            os._exit(3)
        if fault == "silent":
            os._exit(0)
