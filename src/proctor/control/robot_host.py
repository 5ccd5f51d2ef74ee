"""Serves a robot to another computer, with the protocol of LeRobot's LeKiwi host.

    client -> host   one action as a JSON object; only the newest one that waits counts
    host -> client   parts of one message: a JSON object with the state and the names of the
                     cameras ("_cams"), then one JPEG for each camera

``--robot.type=lekiwi_client`` of Proctor and LeRobot's client speak it. When no action comes for
``watchdog_timeout_ms``, channels of velocity get 0, so the base stops; the arm holds its pose.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor.config.robot_host import HostSettings
from proctor.control.keys import ControlKey
from proctor.control.pacing import Jitter, Pacer
from proctor.control.session import ControlSession
from proctor.errors import MissingExtra, UsageError
from proctor.robots.base import Action, DeviceHealth, Robot, RobotObservation, Unit
from proctor.robots.cameras.opencv import import_cv2

_JPEG_QUALITY = 90
_MOST_WAITING = 2
"""Observations that wait for a slow client; newer ones are left out."""
_MOST_BYTES = 1 << 16
"""Size of an action's message; ZMQ drops the connection of a client that sends more."""
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


class HostSockets:
    """The two sockets of a host; closed at the end of a ``with`` block."""

    def __init__(self, settings: HostSettings) -> None:
        """Bind the sockets.

        Raises:
            MissingExtra: pyzmq is not installed.
            UsageError: an address cannot be used.
        """
        try:
            import zmq
        except ModuleNotFoundError:
            raise MissingExtra("pyzmq", "wire") from None
        self._zmq: Any = zmq
        self._cv2 = import_cv2()
        self.invalid = 0
        self._context = zmq.Context()
        self._commands = self._context.socket(zmq.PULL)
        self._commands.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
        self._observations = self._context.socket(zmq.PUSH)
        self._observations.setsockopt(zmq.SNDHWM, _MOST_WAITING)
        try:
            self.command_port = self._bind(self._commands, settings.address, settings.port_zmq_cmd)
            self.observation_port = self._bind(
                self._observations, settings.address, settings.port_zmq_observations
            )
        except BaseException:
            self.__exit__()
            raise

    def _bind(self, socket: Any, address: str, port: int) -> int:
        try:
            socket.bind(f"tcp://{address}:{port or '*'}")
        except self._zmq.ZMQError as bad:
            raise UsageError(
                f"cannot serve on {address}:{port}: {bad}; choose another --host.address or port",
                code="robot.host-address",
            ) from None
        return int(socket.getsockopt_string(self._zmq.LAST_ENDPOINT).rpartition(":")[2])

    def __enter__(self) -> HostSockets:
        return self

    def __exit__(self, *_: object) -> None:
        for socket in (self._commands, self._observations):
            socket.close(linger=0)
        self._context.term()

    def newest_action(self, robot: Robot) -> Action | None:
        """Return the newest valid action that waits, of the robot's channels; None: no action."""
        newest: Action | None = None
        while True:
            try:
                parts = self._commands.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return newest
            found = _parse_action(parts, robot)
            if found is None:
                self.invalid += 1
            else:
                newest = found

    def push(self, observation: RobotObservation, robot: Robot) -> None:
        """Send an observation; without a client, or with a slow one, leave it out."""
        cameras = list(robot.cameras)
        state = {name: float(observation[name]) for name in robot.action_features}
        header = json.dumps({**state, "_cams": cameras}).encode()
        parts = [header, *(self._jpeg(observation[name]) for name in cameras)]
        try:
            self._observations.send_multipart(parts, self._zmq.NOBLOCK)
        except self._zmq.Again:
            return

    def _jpeg(self, image: Any) -> bytes:
        """Return an image as JPEG; the channels stay in order, as the client expects."""
        options = [self._cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
        coded = self._cv2.imencode(".jpg", np.ascontiguousarray(image), options)[1]
        return bytes(coded.tobytes())


def _parse_action(parts: list[bytes], robot: Robot) -> Action | None:
    """Return the targets of a message for the robot's channels; None if it is invalid."""
    try:
        [message] = parts
        content = dict(json.loads(message))
        action = {name: float(content[name]) for name in robot.action_features if name in content}
    except (ValueError, TypeError, RecursionError):
        return None
    return action if action and all(map(math.isfinite, action.values())) else None


def serve_robot(
    session: ControlSession, sockets: HostSockets, settings: HostSettings
) -> HostResult:
    """Drive the robot by the client's actions until time, Esc, q or a signal ends it.

    Raises:
        RobotError: a device fails, or the emergency key was pressed.
    """
    robot, keys = session.robot, session.keys.reader()
    still = {name: 0.0 for name, unit in robot.action_features.items() if unit in _VELOCITIES}
    pacer = Pacer(robot.clock, settings.max_loop_freq_hz)
    began = heard_at = robot.clock.now()
    actions = stops = 0
    moves = False
    while not session.should_end() and not any(key in ControlKey.STOP for key in keys.poll()):
        now = pacer.tick()
        if settings.connection_time_s is not None and now - began >= settings.connection_time_s:
            break
        action = sockets.newest_action(robot)
        if action is not None:
            robot.send_action(action)
            actions, heard_at, moves = actions + 1, now, True
        elif moves and (now - heard_at) * 1000 >= settings.watchdog_timeout_ms:
            if still:
                robot.send_action(still)
            stops, moves = stops + 1, False
        sockets.push(robot.get_observation(), robot)
    return HostResult(actions, sockets.invalid, stops, pacer.jitter(), robot.health())
