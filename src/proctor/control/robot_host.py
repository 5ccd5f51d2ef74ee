"""Serves a robot to another computer, with the protocol of LeRobot's LeKiwi host.

    client -> host   one action as a JSON object; only the newest one that waits counts
    host -> client   parts of one message: a JSON object with the state and the names of the
                     cameras ("_cams"), then one JPEG for each camera

``--robot.type=lekiwi_client`` of Proctor and LeRobot's client speak it. When no action comes for
``watchdog_timeout_ms``, channels of velocity get 0, so the base stops; the arm holds its pose.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor.config.robot_host import HostSettings
from proctor.control.host_ports import MOST_ACTION_BYTES, HostPorts
from proctor.control.loop.pacing import Jitter, Pacer
from proctor.control.loop.session import ControlSession
from proctor.control.terminal.keys import ControlKey
from proctor.errors import ProtocolError
from proctor.robots.base import Action, DeviceHealth, Robot, RobotObservation, Unit
from proctor.robots.cameras.opencv import import_cv2
from proctor.system.limits import CycleLimits, decode_json, is_finite_as

_JPEG_QUALITY = 90
_CYCLE = CycleLimits(messages=64, seconds=0.005)
_VELOCITIES = (Unit.METRES_PER_SECOND, Unit.DEGREES_PER_SECOND)


@dataclass(frozen=True)
class HostResult:
    """What the host did."""

    actions: int
    invalid: int
    """Messages that were no action of this robot."""
    watchdog_stops: int
    jitter: Jitter
    health: DeviceHealth


class ActionReader:
    """Finds the newest valid action among messages; counts the others and reports the first."""

    def __init__(self, robot: Robot, note: Callable[[str], None]) -> None:
        self._robot, self._note = robot, note
        self.invalid = 0

    def newest(self, messages: Sequence[list[bytes]]) -> Action | None:
        """Return the newest valid action, of the robot's channels; None: no action."""
        newest = None
        for _, message in zip(_CYCLE.turns(), reversed(messages), strict=False):
            try:
                action = parse_action(message, self._robot)
                newest = newest or action
            except ProtocolError as error:
                self.invalid += 1
                if self.invalid == 1:
                    self._note(f"a message is no action and is left out, as further ones: {error}")
        return newest


def parse_action(parts: list[bytes], robot: Robot) -> Action:
    """Return the targets of a message for the robot's channels."""
    content = decode_json(b"".join(parts), MOST_ACTION_BYTES)
    if not isinstance(content, dict):
        raise ProtocolError("it is not a JSON object", code="protocol.invalid-action")
    action = {name: content[name] for name in robot.action_features if name in content}
    values = list(action.values())
    if not values or {type(value) for value in values} - {int, float} or not is_finite_as(values):
        raise ProtocolError("it has no numbers of this robot", code="protocol.invalid-action")
    return {name: float(value) for name, value in action.items()}


class ObservationWriter:
    """Encodes observations: the state as JSON, images as JPEG."""

    def __init__(self, robot: Robot) -> None:
        """Prepare for a robot."""
        self._robot, self._cv2 = robot, import_cv2()

    def encode(self, observation: RobotObservation) -> list[bytes]:
        """Return the parts of a message."""
        cameras = list(self._robot.cameras)
        state = {name: float(observation[name]) for name in self._robot.action_features}
        header = json.dumps({**state, "_cams": cameras}).encode()
        return [header, *(self._jpeg(observation[name]) for name in cameras)]

    def _jpeg(self, image: Any) -> bytes:
        """Return an image as JPEG; the channels stay in order, as the client expects."""
        options = [self._cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
        coded = self._cv2.imencode(".jpg", np.ascontiguousarray(image), options)[1]
        return bytes(coded.tobytes())


def serve_robot(
    session: ControlSession,
    ports: HostPorts,
    settings: HostSettings,
    note: Callable[[str], None],
) -> HostResult:
    """Drive the robot by the client's actions until time, Esc, q or a signal ends it.

    Each cycle reads what has arrived, within limits: no message delays the watchdog, the keys or a
    signal.
    """
    robot, keys = session.robot, session.keys.reader()
    reader, writer = ActionReader(robot, note), ObservationWriter(robot)
    still = {name: 0.0 for name, unit in robot.action_features.items() if unit in _VELOCITIES}
    pacer = Pacer(robot.clock, settings.max_loop_freq_hz)
    began = heard_at = robot.clock.now()
    actions = stops = 0
    moves = False
    while not session.should_end() and not any(key in ControlKey.STOP for key in keys.poll()):
        now = pacer.tick()
        if settings.connection_time_s is not None and now - began >= settings.connection_time_s:
            break
        action = reader.newest(ports.receive_actions())
        if action is not None:
            robot.send_action(action)
            actions, heard_at, moves = actions + 1, now, True
        elif moves and (now - heard_at) * 1000 >= settings.watchdog_timeout_ms:
            if still:
                robot.send_action(still)
            stops, moves = stops + 1, False
        observation = robot.get_observation()
        if ports.wants_observation:
            ports.send_observation(writer.encode(observation))
    return HostResult(actions, reader.invalid, stops, pacer.jitter(), robot.health())
