"""Fake benchmark without physics, for tests and load measurements: a point must reach a goal.

Step time and faults are configurable, so the code around a simulator can be tested in milliseconds
and timed without one.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from proctor.benchmarks.base import (
    ROBOT,
    BenchmarkConfig,
    BenchmarkDefaults,
    BenchmarkPlugin,
    RobotControl,
    xyz,
)
from proctor.benchmarks.selection import LARGEST_SIDE, ids_in_group, require_positive
from proctor.errors import UsageError
from proctor.features import (
    ENVIRONMENT_STATE,
    IMAGE,
    STATE,
    ActionSpec,
    Array,
    Expert,
    Feature,
    FeatureKind,
    Observation,
)
from proctor.fingerprint import PRESENTATION
from proctor.settings import setting
from proctor.types import EpisodeSpec, StepResult, Task

_GOAL_RADIUS = 0.05
_PLACE = re.compile(r"(\d{1,9})/\d{1,9}/(\d{1,9})", re.ASCII)
_LEAK_BYTES = 2**28
_TALK_WORDS = 2_000_000
_TERMINAL_CODES = "\x1b[2J\x1b]0;title\x07\r"


class Fault(Enum):
    """Kinds of simulator faults."""

    RAISE = "raise"
    MEMORY = "memory"
    """Raise MemoryError."""
    LEAK = "leak"
    """Allocate memory until the process has none."""
    HANG = "hang"
    STOP = "stop"
    KILL = "kill"
    SEGFAULT = "segfault"
    EXIT = "exit"
    NAN = "nan"
    """Make the state NaN."""
    SHAPE = "shape"
    """Return observations of a wrong shape from then on."""
    TALK = "talk"
    """Raise with a text of megabytes and with terminal control codes."""


@dataclass
class FakeConfig(BenchmarkConfig):
    """Flags of the fake benchmark."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Tasks": "n_tasks",
        "Observations": "image_size",
    }

    type: str = "fake"
    task: str = setting("point", "task of the fake benchmark; only point")
    n_tasks: int = setting(1, "number of identical tasks", PRESENTATION)
    episode_length: int = setting(50, "maximum simulator steps per episode")
    image_size: int = setting(16, "height and width of the image in pixels")
    step_ms: float = setting(0.0, "duration of a simulator step in milliseconds", PRESENTATION)
    open_ms: float = setting(0.0, "time to open a simulator in milliseconds", PRESENTATION)
    endless: bool = setting(False, "never succeed: every episode runs to episode_length")
    faults: dict[str, Fault] = setting(
        {}, 'injected faults, as {"TASK/EPISODE/STEP": KIND} (default: no faults)', PRESENTATION
    )
    break_once_in: str | None = setting(
        None,
        "folder that records the injected faults, so that each occurs once (default: faults "
        "occur every time)",
        PRESENTATION,
    )


def _check_place(place: str, config: FakeConfig) -> None:
    """Refuse the place of a fault that no step can have."""
    found = _PLACE.fullmatch(place)
    task, step = map(int, found.groups()) if found else (config.n_tasks, 0)
    if task >= config.n_tasks or step > config.episode_length:
        raise UsageError(
            f"--env.faults: {place!r} is not TASK/EPISODE/STEP, three numbers from 0 on "
            f"(tasks below {config.n_tasks}, steps up to {config.episode_length})",
            code="flag.out-of-range",
        )


class Fake(BenchmarkDefaults):
    """The benchmark: ``n_tasks`` identical tasks."""

    name = "fake"
    action = ActionSpec(2, -1.0, 1.0)
    distributions: tuple[str, ...] = ()
    preload: tuple[str, ...] = ("proctor.benchmarks.fake",)
    expert_inputs: tuple[str, ...] = (ENVIRONMENT_STATE,)
    robot_control: RobotControl | None = RobotControl(
        action_noise=0.1, state_noise={STATE: 0.01, ENVIRONMENT_STATE: 0.01}, hold=(0.0, 0.0)
    )

    def __init__(self, config: FakeConfig) -> None:
        if config.task != "point":
            raise UsageError(
                f"fake has no task {config.task!r} (choose: point)", code="env.unknown-task"
            )
        require_positive("episode_length", config.episode_length)
        for name, most in (("n_tasks", 100_000), ("image_size", LARGEST_SIDE)):
            require_positive(name, getattr(config, name), most)
        for name in ("step_ms", "open_ms"):
            if not 0 <= getattr(config, name) <= 1e6:
                raise UsageError(
                    f"--env.{name} must be 0 to 1e6, not {getattr(config, name):g}",
                    code="flag.out-of-range",
                )
        for place in config.faults:
            _check_place(place, config)
        self._config = config

    def tasks(self) -> list[Task]:
        """List the tasks."""
        return [
            Task("point", i, f"point-{i}", "reach the goal", self._config.episode_length, fps=10)
            for i in ids_in_group("point", self._config.n_tasks, self._config.task_ids)
        ]

    def spec(self, task: Task, index: int, seed: int) -> EpisodeSpec:
        """Return episode ``index``; its seed is the run's seed plus the index."""
        return EpisodeSpec(task, index, seed + index)

    def features(self) -> dict[str, Feature]:
        """Return an image, the point's position, and the positions of point and goal."""
        size = self._config.image_size
        return {
            IMAGE: Feature(FeatureKind.VISUAL, (size, size, 3), "uint8"),
            STATE: Feature(FeatureKind.STATE, (2,), "float32"),
            ENVIRONMENT_STATE: Feature(FeatureKind.ENV, (4,), "float64"),
        }

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode."""
        return {"horizon": self._config.episode_length, "endless": self._config.endless}

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Return no variables; there is nothing to check."""
        return {}

    def make_sim(self, task: Task) -> FakeSim:
        """Make a simulator; this takes ``open_ms``."""
        time.sleep(self._config.open_ms / 1000)
        return FakeSim(self._config, task)

    def expert(self, task: Task) -> Expert:
        """Return a policy that moves straight to the goal."""

        def walk(observation: Observation) -> Array:
            state = observation[ENVIRONMENT_STATE]
            return np.asarray(np.clip((state[2:] - state[:2]) * 10, -1, 1))

        return walk


class FakeSim:
    """A point on a plane, moved by at most 0.1 per step and axis."""

    def __init__(self, config: FakeConfig, task: Task) -> None:
        self._config = config
        self._task = task
        self._steps = 0
        self._point = np.zeros(2)
        self._goal = np.zeros(2)
        self._misshapen = False

    def reset(self, spec: EpisodeSpec) -> None:
        """Draw point and goal from the seed."""
        rng = np.random.default_rng([spec.seed, spec.task.task_id])
        self._point, self._goal = rng.uniform(-1, 1, 2), rng.uniform(-1, 1, 2)
        self._steps = 0
        self._index = spec.index
        self._misshapen = False
        self._maybe_break()

    def step(self, action: Array) -> StepResult:
        """Move the point; the episode ends at the goal."""
        self._steps += 1
        self._maybe_break()
        if self._config.step_ms:
            time.sleep(self._config.step_ms / 1000)
        self._point = self._point + 0.1 * np.clip(np.asarray(action, np.float64), -1, 1)
        distance = float(np.linalg.norm(self._point - self._goal))
        success = distance < _GOAL_RADIUS and not self._config.endless
        return StepResult(reward=-distance, success=success, terminated=success)

    def observe(self, keys: Sequence[str]) -> Observation:
        """Return positions, or an image of one colour that depends on the point's position."""
        made: Observation = {}
        for key in keys:
            if key == IMAGE:
                shape = (self._config.image_size, self._config.image_size, 3)
                made[key] = np.full(shape, int(abs(self._point[0]) * 1000) % 256, np.uint8)
            elif key == STATE:
                made[key] = self._point.astype(np.float32)
            else:
                made[key] = np.concatenate([self._point, self._goal])
            if self._misshapen:
                made[key] = made[key][:1]
        return made

    def physics(self) -> Array:
        """Return the positions of point and goal."""
        return np.concatenate([self._point, self._goal])

    def coordinates(self) -> dict[str, float]:
        """Return the positions of point and goal."""
        return xyz(ROBOT, self._point) | xyz("goal", self._goal)

    def start_state(self) -> dict[str, float]:
        """Return the positions of point and goal."""
        names = ("point x", "point y", "goal x", "goal y")
        return dict(zip(names, self.physics().tolist(), strict=True))

    def close(self) -> None:
        """Do nothing."""

    def _maybe_break(self) -> None:
        place = f"{self._task.task_id}/{self._index}/{self._steps}"
        fault = self._config.faults.get(place)
        if fault is None or self._broke_before(place):
            return
        match fault:
            case Fault.RAISE:
                raise RuntimeError(f"the simulator broke at {place}")
            case Fault.MEMORY:
                raise MemoryError
            case Fault.TALK:
                codes = _TERMINAL_CODES
                raise RuntimeError(f"{codes}{'talk ' * _TALK_WORDS}\n{codes}broke at {place}")
            case Fault.LEAK:
                _leak()
            case Fault.HANG:
                time.sleep(3600)
            case Fault.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
            case Fault.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Fault.SEGFAULT:
                ctypes.string_at(0)
            case Fault.EXIT:
                os._exit(3)
            case Fault.NAN:
                self._point = np.full(2, np.nan)
            case Fault.SHAPE:
                self._misshapen = True

    def _broke_before(self, place: str) -> bool:
        if self._config.break_once_in is None:
            return False
        mark = Path(self._config.break_once_in, place.replace("/", "-"))
        if mark.exists():
            return True
        mark.touch()
        return False


def _leak() -> None:
    """Allocate memory until MemoryError, under a limit set for this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _LEAK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    kept = []
    while True:
        kept.append(bytearray(2**20))


PLUGIN = BenchmarkPlugin(
    config=FakeConfig, make=Fake, summary="fake world without physics, for tests and measurements"
)
