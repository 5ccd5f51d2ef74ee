"""A robot, a teleoperator and a camera without hardware, on a clock that tests control.

A test makes them directly, or a command makes them by ``--robot.type=tests.fake_robots:ROBOT`` and
``--teleop.type=tests.fake_robots:TELEOPERATOR``: the last one made is ``FakeRobot.made[-1]``.

Every call is noted in ``events``, in one list that the robot and its teleoperator may share. Faults
are scripted: ``robot.fail("get_observation", error, at=3)`` raises at the fourth call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from proctor.errors import DeviceNotConnected
from proctor.features import Array
from proctor.robots.base import (
    Action,
    Camera,
    CameraConfig,
    CameraFrame,
    CameraPlugin,
    Clock,
    DeviceHealth,
    ImageShape,
    Operator,
    RealClock,
    Robot,
    RobotConfig,
    RobotObservation,
    RobotPlugin,
    Teleoperator,
    TeleoperatorConfig,
    TeleoperatorPlugin,
    Unit,
)

UNITS = {"shoulder.pos": Unit.DEGREES, "elbow.pos": Unit.DEGREES, "gripper.pos": Unit.PERCENT}
LIMITS = {"shoulder.pos": (-90.0, 90.0), "elbow.pos": (-90.0, 90.0), "gripper.pos": (0.0, 100.0)}


class VirtualClock:
    """A clock that moves when the loop sleeps, or when a test calls ``advance``."""

    def __init__(self, start: float = 0.0) -> None:
        self.time = start
        self.on_time: Callable[[float], None] = lambda now: None
        """Called after every move of the clock; a test presses keys or raises signals here."""

    def now(self) -> float:
        return self.time

    def sleep_until(self, moment: float) -> None:
        if moment > self.time:
            self.time = moment
            self.on_time(self.time)

    def advance(self, seconds: float) -> None:
        self.sleep_until(self.time + seconds)


class Scripted:
    """Calls that are noted, and faults at chosen calls."""

    def __init__(self, label: str, events: list[str] | None = None) -> None:
        self.label = label
        self.events: list[str] = [] if events is None else events
        self.counts: dict[str, int] = {}
        self._faults: dict[str, dict[int, BaseException]] = {}
        self._always: dict[str, BaseException] = {}

    def fail(self, call: str, error: BaseException, at: int | None = None) -> None:
        """Raise ``error`` at call number ``at`` of the method ``call``; None: at every call."""
        if at is None:
            self._always[call] = error
        else:
            self._faults.setdefault(call, {})[at] = error

    def note(self, call: str) -> None:
        number = self.counts.get(call, 0)
        self.counts[call] = number + 1
        self.events.append(f"{self.label}.{call}")
        error = self._faults.get(call, {}).get(number) or self._always.get(call)
        if error is not None:
            raise error


@dataclass
class FakeCameraConfig(CameraConfig):
    """Flags of the fake camera."""

    width: int | None = 32
    height: int | None = 24
    fps: int | None = 30
    warmup_s: float = 0.0


class FakeCamera(Camera):
    """A camera whose image holds its number; ``frozen`` repeats the last image."""

    def __init__(self, config: FakeCameraConfig, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._connected = False
        self._number = 0
        self._image = np.zeros(self.shape, np.uint8)
        self.frozen = False

    @property
    def shape(self) -> ImageShape:
        return (self._config.height or 24, self._config.width or 32, 3)

    @property
    def is_connected(self) -> bool:
        return self._connected

    def connect(self) -> None:
        self._connected = True

    def latest(self, max_age_s: float = 0.5) -> CameraFrame:
        if not self._connected:
            raise DeviceNotConnected("the fake camera is closed", code="camera.not-connected")
        if not self.frozen:
            self._number += 1
            self._image = np.full(self.shape, self._number % 256, np.uint8)
        return CameraFrame(self._image, self._clock.now(), self._number)

    def disconnect(self) -> None:
        self._connected = False


class FakeScene:
    """A scene that succeeds when a test sets ``success``, or by ``rule``."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.state_names: tuple[str, ...] = ()
        self.success = False
        self.rule: Callable[[int], bool] | None = None
        """Seed of the episode -> success."""

    def joint_positions(self) -> Array:
        return np.zeros(len(UNITS), np.float32)

    def reset(self, seed: int) -> None:
        self.seeds.append(seed)

    def state(self) -> Array:
        return np.full(len(self.state_names), self.seeds[-1] if self.seeds else 0, np.float32)

    def succeeded(self) -> bool:
        return self.success if self.rule is None else self.rule(self.seeds[-1])


@dataclass
class FakeRobotConfig(RobotConfig):
    """Flags of the fake robot."""

    real_time: bool = field(default=False, metadata={"help": "use the computer's clock"})
    n_cameras: int = field(default=0, metadata={"help": "number of fake cameras"})
    simulated: bool = field(default=True, metadata={"help": "have a simulated scene"})
    disable_torque_on_disconnect: bool = field(
        default=True, metadata={"help": "switch motors off at the end"}
    )


def fail_after_connect(monkeypatch: pytest.MonkeyPatch, call: str, at: int) -> None:
    """Let every fake robot lose its bus at call number ``at`` of the method ``call``."""
    connect = FakeRobot.connect

    def connect_and_plan(self: FakeRobot, operator: Operator | None = None) -> None:
        connect(self, operator)
        at_call = self.script.counts.get(call, 0) + at
        self.script.fail(call, DeviceNotConnected("the bus is gone"), at=at_call)

    monkeypatch.setattr(FakeRobot, "connect", connect_and_plan)


class FakeRobot(Robot):
    """A robot of three joints that moves to its target at once, or by ``step`` per cycle."""

    name = "fake_robot"
    made: ClassVar[list[FakeRobot]] = []

    def __init__(
        self,
        config: FakeRobotConfig | None = None,
        clock: Clock | None = None,
        events: list[str] | None = None,
    ) -> None:
        self.config = config or FakeRobotConfig()
        self.script = Scripted("robot", events)
        self.clock = clock or (RealClock() if self.config.real_time else VirtualClock())
        self.positions: Action = dict.fromkeys(UNITS, 0.0)
        self.sent: list[Action] = []
        self.step: float | None = None
        self.torque = False
        self.connected = False
        self.calibrated = True
        self.world = FakeScene()
        self.scene = self.world if self.config.simulated else None
        names = [f"camera{number}" for number in range(self.config.n_cameras)]
        self.cameras: Mapping[str, FakeCamera] = {
            name: FakeCamera(FakeCameraConfig(), self.clock) for name in names
        }
        FakeRobot.made.append(self)

    @property
    def is_connected(self) -> bool:
        return self.connected

    @property
    def is_calibrated(self) -> bool:
        return self.calibrated

    @property
    def action_features(self) -> Mapping[str, Unit]:
        return UNITS

    @property
    def observation_features(self) -> Mapping[str, Unit | ImageShape]:
        return {**UNITS, **{name: camera.shape for name, camera in self.cameras.items()}}

    @property
    def limits(self) -> Mapping[str, tuple[float, float]]:
        return LIMITS

    def connect(self, operator: Operator | None = None) -> None:
        self.script.note("connect")
        for camera in self.cameras.values():
            camera.connect()
        self.connected = self.torque = True

    def calibrate(self, operator: Operator) -> None:
        self.script.note("calibrate")
        operator.tell("the fake robot moves its joints itself")
        self.calibrated = True

    def set_up_motors(self, operator: Operator) -> None:
        self.script.note("set_up_motors")
        for name in reversed(UNITS):
            operator.ask(f"connect only the motor {name}, then press Enter")

    def get_observation(self) -> RobotObservation:
        self.script.note("get_observation")
        if not self.connected:
            raise DeviceNotConnected("the fake robot is not connected", code="robot.not-connected")
        images = {name: camera.latest().image for name, camera in self.cameras.items()}
        return {**self.positions, **images}

    def send_action(self, action: Action) -> Action:
        self.script.note("send_action")
        if not self.connected:
            raise DeviceNotConnected("the fake robot is not connected", code="robot.not-connected")
        sent = {
            name: min(max(value, LIMITS[name][0]), LIMITS[name][1])
            for name, value in action.items()
        }
        self.sent.append(sent)
        for name, target in sent.items():
            move = target - self.positions[name]
            most = math.inf if self.step is None else self.step
            self.positions[name] += min(max(move, -most), most)
        return sent

    def stop(self) -> None:
        self.script.note("stop")
        self.torque = False

    def disconnect(self) -> None:
        if not self.connected:
            return
        self.connected = False
        for camera in self.cameras.values():
            camera.disconnect()
        if self.config.disable_torque_on_disconnect:
            self.torque = False
        self.script.note("disconnect")

    def health(self) -> DeviceHealth:
        return DeviceHealth(requests=self.script.counts.get("get_observation", 0))


@dataclass
class FakeTeleoperatorConfig(TeleoperatorConfig):
    """Flags of the fake teleoperator."""

    amplitude: float = field(default=20.0, metadata={"help": "amplitude of its motion in degrees"})


class FakeTeleoperator(Teleoperator):
    """A teleoperator that moves in slow sine waves, or as ``wish`` says."""

    name = "fake_teleoperator"
    made: ClassVar[list[FakeTeleoperator]] = []
    feedback_features = UNITS

    def __init__(
        self,
        config: FakeTeleoperatorConfig | None = None,
        clock: Clock | None = None,
        events: list[str] | None = None,
    ) -> None:
        self.config = config or FakeTeleoperatorConfig()
        self.script = Scripted("teleop", events)
        self.clock = clock or VirtualClock()
        self.connected = False
        self.actuated = False
        self.torque = False
        self.feedback: list[Action] = []
        self.episodes = 0
        self.wish: Callable[[float], Action] = self._wave
        FakeTeleoperator.made.append(self)

    def _wave(self, now: float) -> Action:
        value = self.config.amplitude * math.sin(now)
        return {"shoulder.pos": value, "elbow.pos": -value, "gripper.pos": 50.0}

    @property
    def is_connected(self) -> bool:
        return self.connected

    @property
    def action_features(self) -> Mapping[str, Unit]:
        return UNITS

    @property
    def is_actuated(self) -> bool:
        return self.actuated

    def attach(self, robot: Robot) -> None:
        self.script.note("attach")
        self.clock = robot.clock

    def start_episode(self) -> None:
        self.script.note("start_episode")
        self.episodes += 1

    def connect(self, operator: Operator | None = None) -> None:
        self.script.note("connect")
        self.connected = True

    def get_action(self) -> Action:
        self.script.note("get_action")
        return self.wish(self.clock.now())

    def set_torque(self, *, on: bool) -> None:
        self.script.note("set_torque")
        self.torque = on

    def send_feedback(self, feedback: Action) -> None:
        self.script.note("send_feedback")
        self.feedback.append(feedback)

    def disconnect(self) -> None:
        if self.connected:
            self.connected = self.torque = False
            self.script.note("disconnect")


class FakeOperator:
    """A person who answers from a list, then with Enter."""

    def __init__(self, answers: list[str] | None = None) -> None:
        self.answers = list(answers or [])
        self.told: list[str] = []
        self.asked: list[str] = []
        self.tables: list[Any] = []
        self.enter_after = 3
        """Calls of ``pressed_enter`` until it returns True."""

    def tell(self, text: str) -> None:
        self.told.append(text)

    def ask(self, text: str) -> str:
        self.asked.append(text)
        return self.answers.pop(0) if self.answers else ""

    def pressed_enter(self) -> bool:
        self.enter_after -= 1
        return self.enter_after < 0

    def show_table(self, header: Any, rows: Any) -> None:
        self.tables.append((header, rows))


ROBOT = RobotPlugin(FakeRobotConfig, FakeRobot, "a fake robot for tests")
TELEOPERATOR = TeleoperatorPlugin(
    FakeTeleoperatorConfig, FakeTeleoperator, "a fake teleoperator for tests"
)
CAMERA = CameraPlugin(FakeCameraConfig, FakeCamera, "a fake camera for tests")
