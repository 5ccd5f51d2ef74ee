"""The loop of ``proctor teleoperate``: a person drives a robot, and nothing is recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from proctor.control.loop.pacing import Jitter, Pacer
from proctor.control.loop.session import ControlSession
from proctor.control.recording.recorded_episode import LoopWatcher
from proctor.control.robot_frames import ControlStep
from proctor.control.terminal.keys import ControlKey
from proctor.robots.base import DeviceHealth


@dataclass(frozen=True)
class TeleoperationResult:
    """How regular the loop was, and what the devices counted."""

    seconds: float
    rate_hz: float | None
    jitter: Jitter
    robot: DeviceHealth
    teleop: DeviceHealth

    def text(self) -> str:
        """Return the result in one line."""
        rate = "n/a" if self.rate_hz is None else f"{self.rate_hz:.1f} Hz"
        parts = [f"{self.seconds:.1f} s at {rate}", str(self.jitter)]
        parts += [*_losses("robot", self.robot), *_losses("teleoperator", self.teleop)]
        if self.robot.clipped:
            parts.append(f"targets limited: {_counts(self.robot.clipped)}")
        return "; ".join(parts)


def _losses(device: str, health: DeviceHealth) -> Iterator[str]:
    """Yield what a device lost; nothing for one that does not count requests."""
    if health.requests:
        lost = sum(health.lost_replies.values())
        named = f" ({_counts(health.lost_replies)})" if lost else ""
        yield f"{device}: {health.requests} requests, {lost} replies lost{named}"
    if health.alerts:
        yield f"{device} alerts: {', '.join(f'{m} {a}' for m, a in health.alerts.items())}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def teleoperate(
    session: ControlSession, fps: int, seconds: float | None, watcher: LoopWatcher | None = None
) -> TeleoperationResult:
    """Drive the robot until the time is over, a signal comes, or a person presses Esc or q.

    ``watcher`` is called in every cycle.
    """
    robot, teleop = session.robot, session.teleop
    assert teleop is not None
    keys, pacer = session.keys.reader(), Pacer(robot.clock, fps)
    teleop.start_episode()
    began = now = robot.clock.now()
    while not session.should_end() and not any(key in ControlKey.STOP for key in keys.poll()):
        now = pacer.tick()
        if seconds is not None and now - began + 0.5 / fps >= seconds:
            break
        observation = robot.get_observation()
        requested = teleop.get_action()
        sent = robot.send_action(requested)
        if watcher is not None:
            watcher.on_tick(
                "driving",
                now - began,
                ControlStep(observation, requested, sent, now - began),
            )
    return TeleoperationResult(
        now - began, pacer.rate_hz, pacer.jitter(), robot.health(), teleop.health()
    )
