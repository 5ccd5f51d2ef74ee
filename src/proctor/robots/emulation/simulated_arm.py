"""Joins servos and joints: what a host writes moves the joints, what moves is what it reads."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from proctor.robots.emulation.emulated_bus import EmulatedBus
from proctor.robots.emulation.joints import Joints
from proctor.robots.emulation.servo import TICKS_PER_TURN, Motion, Servo

ZERO_TICKS = 2048
"""Encoder value of the angle 0: a horn that was mounted centred."""
RADIANS_PER_TICK = 2 * math.pi / TICKS_PER_TURN

HAND_SPEED = 2.0
"""Greatest speed of a person's hand, in rad/s."""


class _Command(NamedTuple):
    """What a servo's registers ask of its joint."""

    drives: bool
    goal_ticks: int | None
    ticks_per_s: float | None
    gain: float


_LIMP = _Command(drives=False, goal_ticks=None, ticks_per_s=None, gain=0.0)


class SimulatedArm:
    """An arm of emulated servos. ``bus`` is what a port leads to."""

    def __init__(
        self,
        joints: Joints,
        servos: Mapping[str, Servo],
        *,
        lock: threading.RLock | None = None,
        catch_up: Callable[[], None] | None = None,
    ) -> None:
        """Make an arm.

        Args:
            joints: what the servos drive and measure.
            servos: by the names of the joints.
            lock: held while packets are executed.
            catch_up: called before each packet; it steps the joints to the present time.
        """
        self.joints = joints
        self.servos = dict(servos)
        self.hand: dict[str, float] | None = None
        """Pose in which a person holds the limp arm; None: no hand holds it."""
        self.person: Callable[[float], Mapping[str, float]] | None = None
        """Moves limp joints: seconds -> pose; None: limp joints are left alone."""
        self._seconds = 0.0
        self._catch_up = catch_up
        self._obeyed: dict[str, _Command] = {}
        self.bus = EmulatedBus(
            list(self.servos.values()),
            lock=lock if lock is not None else threading.RLock(),
            before=self._before_packet,
            after=self.obey,
        )
        self.restart()

    def step(self, seconds: float) -> None:
        """Let time pass; an arm in a person's hand moves with the hand."""
        self._seconds += seconds
        if self.hand is not None:
            self.hold_by_hand(self.hand)
            return
        self.joints.step(seconds)
        if self.person is not None:
            self._follow(self.person(self._seconds), HAND_SPEED * seconds)

    def _follow(self, pose: Mapping[str, float], farthest: float) -> None:
        """Move limp joints towards a pose by at most ``farthest`` radians."""
        angles = self.joints.angles()
        for name, requested_action in pose.items():
            if self.servos[name].drives:
                continue
            way = min(max(requested_action - angles[name], -farthest), farthest)
            self.joints.set_angle(name, angles[name] + way)

    def hold_by_hand(self, pose: Mapping[str, float]) -> None:
        """Put joints at angles, where a person's hand keeps them until ``hand`` is None."""
        self.hand = dict(pose)
        for name, angle in self.hand.items():
            self.joints.set_angle(name, angle)

    def restart(self) -> None:
        """Begin anew after the joints were put elsewhere: motors that are on hold the new pose."""
        self.measure()
        self._obeyed.clear()
        for servo in self.servos.values():
            servo.hold()
        self.obey()

    def measure(self) -> None:
        """Report the joints' movement to the servos."""
        angles, velocities, loads = (
            self.joints.angles(),
            self.joints.velocities(),
            self.joints.loads(),
        )
        for name, servo in self.servos.items():
            ticks = ZERO_TICKS + round(angles[name] / RADIANS_PER_TICK)
            servo.observe(Motion(ticks, velocities[name] / RADIANS_PER_TICK, loads[name]))

    def obey(self) -> None:
        """Give the joints the commands in the servos' registers that are new."""
        for name, servo in self.servos.items():
            command = _command_of(servo)
            before = self._obeyed.get(name)
            if command != before:
                self._obeyed[name] = command
                self._apply(name, command, was_driven=before is not None and before.drives)

    def _apply(self, name: str, command: _Command, *, was_driven: bool) -> None:
        if command.drives != was_driven or not command.drives:
            self.joints.set_torque(name, on=command.drives)
        if not command.drives:
            return
        self.joints.set_gain(name, command.gain)
        if command.goal_ticks is not None:
            self.joints.set_target(name, (command.goal_ticks - ZERO_TICKS) * RADIANS_PER_TICK)
        elif command.ticks_per_s is not None:
            self.joints.set_speed(name, command.ticks_per_s * RADIANS_PER_TICK)

    def _before_packet(self) -> None:
        if self._catch_up is not None:
            self._catch_up()
        self.measure()


def _command_of(servo: Servo) -> _Command:
    if not servo.drives:
        return _LIMP
    return _Command(
        drives=True,
        goal_ticks=servo.goal_ticks(),
        ticks_per_s=servo.goal_ticks_per_s(),
        gain=servo.gain,
    )
