"""Cycle of a motor bus (sync read and sync write of six motors), ours and LeRobot's.

    python -m measurements robot_bus [--cycles=2000] [--rounds=5] [--tiny]

Both drive the same emulated Feetech motors on one pseudo terminal, served by another process, in
turns. LeRobot is measured if ``PROCTOR_LEROBOT_PYTHON`` names a Python with lerobot and its
Feetech SDK. A pseudo terminal has no wire: at 1 Mbaud the wire adds 0.9 ms to every cycle of both.

Each cycle sets new goals, which the motors report at once as positions. A cycle that reads older
positions is counted as stale and not timed: it did not wait for its own reply.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from measurements.command import machine, make_parser
from proctor.robots.base import Unit
from proctor.robots.buses.calibration import MotorCalibration
from proctor.robots.buses.motor_bus import MotorBus
from proctor.robots.buses.registers import Motor

IDS = range(1, 7)
WARM_UP = 50
_SYNC_READ, _SYNC_WRITE = 0x82, 0x83
LEROBOT = """
import json, sys, time
from lerobot.motors import Motor, MotorCalibration, MotorNormMode
from lerobot.motors.feetech import FeetechMotorsBus
port, cycles, warm_up = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
motors = {f"m{i}": Motor(i, "sts3215", MotorNormMode.DEGREES) for i in range(1, 7)}
calibration = {f"m{i}": MotorCalibration(i, 0, 0, 500, 3500) for i in range(1, 7)}
bus = FeetechMotorsBus(port, motors, calibration)
bus.connect(handshake=False)
times, stale, cpu = [], 0, 0.0
for cycle in range(warm_up + cycles):
    if cycle == warm_up:
        cpu = time.process_time()
    goals = dict.fromkeys(motors, cycle % 90)
    start = time.perf_counter()
    bus.sync_write("Goal_Position", goals)
    positions = bus.sync_read("Present_Position", num_retry=20)
    seconds = time.perf_counter() - start
    if any(abs(positions[name] - goals[name]) > 0.5 for name in motors):
        stale += 1
    elif cycle >= warm_up:
        times.append(seconds)
cpu = time.process_time() - cpu
bus.disconnect(disable_torque=False)
print(json.dumps({"times_s": times, "stale": stale, "cycles": cycles, "cpu_s": cpu}))
"""


def serve(terminal: int) -> None:
    """Answer sync reads with the goals of the last sync write, until this process is ended.

    Only what the measurement needs, so that the motors' own time hides little of the drivers'.
    """
    positions = dict.fromkeys(IDS, b"\0\x08")
    received = b""
    while True:
        received += os.read(terminal, 4096)
        while len(received) > 3 and len(received) >= 4 + received[3]:
            packet, received = received[: 4 + received[3]], received[4 + received[3] :]
            if packet[4] == _SYNC_WRITE:
                for start in range(7, len(packet) - 1, 3):
                    positions[packet[start]] = packet[start + 1 : start + 3]
            elif packet[4] == _SYNC_READ:
                os.write(terminal, b"".join(_status(one, positions[one]) for one in packet[7:-1]))


def _status(motor_id: int, data: bytes) -> bytes:
    body = bytes((motor_id, 4, 0)) + data
    return b"\xff\xff" + body + bytes((~sum(body) & 0xFF,))


@contextmanager
def emulated_port() -> Iterator[str]:
    """Serve six motors on a pseudo terminal; yield its path."""
    motors_end, host_end = os.openpty()
    tty.setraw(motors_end)
    tty.setraw(host_end)
    server = multiprocessing.get_context("fork").Process(target=serve, args=(motors_end,))
    server.start()
    try:
        yield os.ttyname(host_end)
    finally:
        server.kill()
        server.join()
        os.close(motors_end)
        os.close(host_end)


def measure_ours(port: str, cycles: int) -> dict[str, Any]:
    """Return the seconds of every cycle of our bus, and the CPU seconds of this process."""
    motors = {f"m{one}": Motor(one, "sts3215", Unit.DEGREES) for one in IDS}
    calibration = {f"m{one}": MotorCalibration(one, 0, 0, 500, 3500) for one in IDS}
    bus = MotorBus(port, motors, calibration)
    bus.connect(handshake=False)
    times, stale, cpu_s = [], 0, 0.0
    for cycle in range(WARM_UP + cycles):
        if cycle == WARM_UP:
            cpu_s = time.process_time()
        goals = dict.fromkeys(motors, cycle % 90)
        start = time.perf_counter()
        bus.sync_write("Goal_Position", goals)
        positions = bus.sync_read("Present_Position", retries=20)
        seconds = time.perf_counter() - start
        if any(abs(positions[name] - goals[name]) > 0.5 for name in motors):
            stale += 1
        elif cycle >= WARM_UP:
            times.append(seconds)
    cpu_s = time.process_time() - cpu_s
    bus.disconnect(disable_torque=False)
    return {"times_s": times, "stale": stale, "cycles": cycles, "cpu_s": cpu_s}


def measure_lerobot(python: str, port: str, cycles: int) -> dict[str, Any]:
    """Return the same of LeRobot's bus, measured in a process of its own."""
    words = [python, "-c", LEROBOT, port, str(cycles), str(WARM_UP)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)  # noqa: S603
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def summary(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return microseconds of the cycles with fresh readings, CPU time, and stale readings."""
    times = sorted(one for entry in rounds for one in entry["times_s"])
    cycles = sum(entry["cycles"] for entry in rounds)
    return {
        "p10_us": round(1e6 * times[len(times) // 10], 1),
        "median_us": round(1e6 * median(times), 1),
        "p99_us": round(1e6 * times[len(times) * 99 // 100], 1),
        "cpu_us": round(1e6 * sum(entry["cpu_s"] for entry in rounds) / cycles, 1),
        "stale_readings": sum(entry["stale"] for entry in rounds),
    }


def main(words: Sequence[str]) -> None:
    """Measure in turns; print the machine and one line of JSON for each driver."""
    parser = make_parser("robot_bus", __doc__)
    parser.add_argument("--cycles", type=int, default=2000, help="cycles of each round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each driver")
    args = parser.parse_args(words)
    cycles, rounds = (50, 1) if args.tiny else (args.cycles, args.rounds)
    python = os.environ.get("PROCTOR_LEROBOT_PYTHON", "")
    ours, lerobot = [], []
    with emulated_port() as port:
        for _ in range(rounds):
            ours.append(measure_ours(port, cycles))
            if python:
                lerobot.append(measure_lerobot(python, port, cycles))
    print(machine())
    print(json.dumps({"proctor": summary(ours)}))
    if lerobot:
        ratio = summary(lerobot)["median_us"] / summary(ours)["median_us"]
        print(json.dumps({"lerobot": summary(lerobot), "times_slower": round(ratio, 2)}))
