"""The guard process switches motors off when the driver dies, and only then."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from proctor.errors import DeviceNotConnected
from proctor.robots import torque_guard
from proctor.robots.base import GuardTarget, Unit
from proctor.robots.buses.motor_bus import MotorBus
from proctor.robots.buses.ports import open_port
from proctor.robots.buses.registers import Motor
from proctor.robots.emulation.emulated_bus import EmulatedBus
from proctor.robots.torque_guard import DriverWatch, TorqueGuard, is_busy, switch_off
from tests.refusals import refuses
from tests.unit.robots.arm_bench import koch_bus, so_bus, torques

DRIVER = """
import os, signal, sys, time
from proctor.errors import RobotError
from proctor.robots.arms.so import SoFollower, SoFollowerConfig
from proctor.robots.buses import serial_line
from pathlib import Path
serial_line._TIMEOUT_STEPS_S = (60.0,)  # the motors are a thread of the test, which may be late
arm = SoFollower(SoFollowerConfig(port=sys.argv[1], id="arm", calibration_dir=Path(sys.argv[2])))
arm.connect()
print("connected", flush=True)
while (order := sys.stdin.readline()) != "leave\\n":
    if order == "stop within a packet\\n":
        arm.bus.line.port.write(bytes.fromhex("fffffe1683"))  # a sync write of 24 bytes, cut off
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        while not arm._guard.loss:
            time.sleep(0.01)
        try:
            arm.get_observation()
        except RobotError as error:
            print(error.code, flush=True)
arm.disconnect()
"""


@contextlib.contextmanager
def on_a_pty(bus: EmulatedBus) -> Iterator[str]:
    """Serve ``bus`` on a pseudo-terminal, which outlives the process that has it open."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            readable, _, _ = select.select([master], [], [], 0.05)
            if readable:
                os.write(master, bus.receive(os.read(master, 4096), None))

    server = threading.Thread(target=serve)
    server.start()
    try:
        yield os.ttyname(slave)
    finally:
        ended.set()
        server.join()
        os.close(master)
        os.close(slave)


def wait_until_off(bus: EmulatedBus, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while any(torques(bus)) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(torques(bus))


@contextlib.contextmanager
def driving(port: str, bus: EmulatedBus, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that has an arm connected and its torque on."""
    entries = ", ".join(
        f'"{name}": {{"id": {n}, "drive_mode": 0, "homing_offset": 0, "range_min": 0, '
        '"range_max": 4095}'
        for n, name in enumerate(
            ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper"),
            start=1,
        )
    )
    (folder / "arm.json").write_text(f"{{{entries}}}")
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, port, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "connected\n"
        assert all(torques(bus))
        yield driver
    finally:
        driver.kill()
        driver.communicate()


def test_a_killed_driver_leaves_no_motor_on(tmp_path: Path) -> None:
    bus = so_bus()
    with on_a_pty(bus) as port, driving(port, bus, tmp_path) as driver:
        driver.send_signal(signal.SIGKILL)
        assert wait_until_off(bus, within_s=60.0)


def test_a_driver_that_is_stopped_within_a_packet_has_its_motors_switched_off(
    tmp_path: Path,
) -> None:
    bus = so_bus()
    with on_a_pty(bus) as port, driving(port, bus, tmp_path) as driver:
        order(driver, "stop within a packet")
        assert wait_until_off(bus, within_s=60.0)
        driver.send_signal(signal.SIGCONT)
        order(driver, "observe")
        assert driver.stdout is not None
        assert driver.stdout.readline() == "robot.guard-lost\n"


def order(driver: subprocess.Popen[str], line: str) -> None:
    assert driver.stdin is not None
    driver.stdin.write(f"{line}\n")
    driver.stdin.flush()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_driver_without_its_guard_switches_its_motors_off(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(torque_guard, "_GUARD_SILENT_S", 0.15)
    bus = so_bus()
    switch_on(bus)
    with on_a_pty(bus) as port:
        guard = TorqueGuard([target(port, bus)])
        os.kill(guard.pid, number)
        assert wait_until_off(bus, within_s=60.0)
        assert guard.loss
        guard.release()


def silence_until(watch: DriverWatch, end_s: float) -> float | None:
    """Return when a guard that looks every 50 ms takes the driver for silent."""
    ticks = [0.05 * n for n in range(round(end_s / 0.05) + 1)]
    return next((now for now in ticks if watch.is_silent(now)), None)


@contextlib.contextmanager
def sleeping() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            wait_until_asleep(process.pid)
            yield process.pid
        finally:
            process.kill()


def wait_until_asleep(process: int) -> None:
    end = time.monotonic() + 60
    while is_busy(process):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_guard_waits_a_fifth_of_a_second_for_a_driver_that_does_nothing(stopped: bool) -> None:
    with sleeping() as process:
        if stopped:
            os.kill(process, signal.SIGSTOP)
            wait_until_asleep(process)  # it wakes up to stop
        assert silence_until(DriverWatch(process, 0.0), 2.0) == pytest.approx(0.25)


def test_a_guard_waits_a_second_for_a_driver_that_computes() -> None:
    assert silence_until(DriverWatch(os.getpid(), 0.0), 2.0) == pytest.approx(1.05)


def test_heartbeats_and_a_late_guard_begin_the_silence_anew() -> None:
    with sleeping() as process:
        watch = DriverWatch(process, 0.0)
        assert not watch.is_silent(0.15)
        watch.note_beat(0.15)
        assert not watch.is_silent(0.3)
        assert not watch.is_silent(5.0), "the computer was asleep"
        assert not watch.is_silent(5.15)
        assert watch.is_silent(5.3)


def test_a_clean_end_releases_the_guard(tmp_path: Path) -> None:
    bus = so_bus()
    with on_a_pty(bus) as port, driving(port, bus, tmp_path) as driver:
        driver.communicate("leave\n", timeout=60)
        assert driver.returncode == 0
        assert not any(torques(bus))


def switch_on(bus: EmulatedBus) -> None:
    for servo in bus.servos:
        servo.put(servo.torque_enable, 1)


def target(port: str, bus: EmulatedBus) -> GuardTarget:
    ids = tuple(servo.id for servo in bus.servos)
    return GuardTarget(port, bus.protocol.value, 1_000_000, ids)


def test_a_guard_waits_through_signals_and_a_goodbye_leaves_the_motors_alone() -> None:
    bus = so_bus()
    switch_on(bus)
    with on_a_pty(bus) as port:
        guard = TorqueGuard([target(port, bus)])
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(guard.pid, number)
        guard.release()
        with pytest.raises(ProcessLookupError):
            os.kill(guard.pid, 0)
        assert all(torques(bus))


def test_a_trigger_switches_off_two_buses_of_both_protocols() -> None:
    one, other = so_bus(), koch_bus([1060, 1060, 1200, 1200, 1200, 1200])
    for bus in (one, other):
        switch_on(bus)
    with on_a_pty(one) as port, on_a_pty(other) as second:
        guard = TorqueGuard([target(port, one), target(second, other)])
        guard.trigger()
        assert wait_until_off(one, within_s=60.0)
        assert wait_until_off(other, within_s=60.0)
        os.waitpid(guard.pid, 0)  # else it would open the next test's pseudo terminal


def test_a_packet_sent_in_part_does_not_swallow_the_request() -> None:
    bus = so_bus()
    switch_on(bus)
    with on_a_pty(bus) as port:
        bus.receive(bytes.fromhex("fffffe1683"), None)  # a sync write of 24 bytes, cut off
        assert switch_off(port, "feetech", 1_000_000, [1, 2, 3, 4, 5, 6]) == []
    assert not any(torques(bus))


def test_a_motor_that_does_not_answer_is_named_and_the_others_are_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proctor.robots.torque_guard._GIVE_UP_S", 0.2)
    bus = so_bus()
    switch_on(bus)
    bus.burn(3)
    with on_a_pty(bus) as port:
        left = switch_off(port, "feetech", 1_000_000, [1, 2, 3])
    assert left == [f"motor 3 at {port}"]
    assert torques(bus) == [False, False, True, True, True, True]


def test_an_unplugged_port_is_tried_until_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proctor.robots.torque_guard._GIVE_UP_S", 0.3)
    with on_a_pty(so_bus()) as port:
        pass
    assert switch_off(port, "feetech", 1_000_000, [1]) == [f"motor 1 at {port}"]


def test_a_lock_of_a_forked_worker_does_not_keep_the_motors_on() -> None:
    bus = so_bus()
    switch_on(bus)
    with on_a_pty(bus) as port, contextlib.closing(open_port(port)):
        assert switch_off(port, "feetech", 1_000_000, [1, 2, 3, 4, 5, 6]) == []
    assert not any(torques(bus))


def test_the_next_driver_waits_for_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proctor.robots.buses.ports._BUSY_S", 60.0)
    with on_a_pty(so_bus()) as port:
        guard = torque_guard.open_port(port, 1_000_000)
        threading.Timer(0.2, guard.close).start()
        open_port(port).close()
        assert not guard.is_open


def test_a_port_that_another_program_keeps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_a_pty(so_bus()) as port, contextlib.closing(open_port(port)):
        monkeypatch.setattr("proctor.robots.buses.ports._BUSY_S", 0.1)
        with refuses(DeviceNotConnected, "robot.port-missing"):
            open_port(port)


def test_a_port_that_vanishes_is_not_connected() -> None:
    master, slave = pty.openpty()
    tty.setraw(slave)
    bus = MotorBus(os.ttyname(slave), {"gripper": Motor(6, "sts3215", Unit.PERCENT)})
    bus.open()
    os.close(master)
    os.close(slave)
    with pytest.raises(DeviceNotConnected):
        bus.read("Present_Position", "gripper", normalize=False)
    with pytest.raises(DeviceNotConnected):
        bus.disconnect()
    assert not bus.is_connected
