"""Faults while a robot is recorded: kills, signals, pulled cables, damaged and late replies.

    python -m measurements robot_faults [kill term unplug reply] [--runs=100] [--seed=7] [--tiny]

An emulated SO-101 bus runs in its own process behind a pseudo terminal. ``proctor record`` drives
it in a forked process and saves short episodes. Each run ends by the fault at a random moment.
Counted are finished episodes that are gone, datasets that fail ``proctor data check`` and motors
that are still on six seconds later. Damaged and late replies are tried on the simulated arm with a
virtual clock, where the true joint positions are known: a stale reading differs from them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from measurements.command import make_parser, run_parts, say
from proctor.cli import main as proctor_main
from proctor.datasets.format.info_file import read_info
from proctor.errors import DatasetError
from proctor.robots.base import (
    Action,
    Operator,
    RealClock,
    Robot,
    RobotObservation,
    Teleoperator,
    TeleoperatorConfig,
    TeleoperatorPlugin,
    Unit,
)
from proctor.robots.emulation.cell import cell_for
from proctor.robots.emulation.emulated_bus import Fault, FaultKind

FPS = 10
SPEED = 20.0
"""Degrees per second of the waving joint."""
GUARD_S = 6.0
MOST_FAILED_STARTS = 50
RESOLUTION = 0.25
"""Largest error of a true reading: two ticks of an encoder, in degrees; the gripper in percent."""
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")


class Wave(Teleoperator):
    """Moves one joint up and down at a constant speed."""

    name = "wave"

    def __init__(self, config: TeleoperatorConfig) -> None:
        self.clock = RealClock()

    @property
    def is_connected(self) -> bool:
        """Always."""
        return True

    @property
    def action_features(self) -> Mapping[str, Unit]:
        """The channels of an SO-101."""
        units = dict.fromkeys((f"{name}.pos" for name in JOINTS), Unit.DEGREES)
        return units | {"gripper.pos": Unit.PERCENT}

    def connect(self, operator: Operator | None = None) -> None:
        """Need nothing."""

    def get_action(self) -> Action:
        """Return the target of the present time."""
        phase = math.fmod(self.clock.now() * SPEED, 80)
        still = dict.fromkeys(self.action_features, 0.0)
        return still | {"shoulder_pan.pos": abs(phase - 40) - 20, "gripper.pos": 50.0}

    def disconnect(self) -> None:
        """Need nothing."""


WAVE = TeleoperatorPlugin(TeleoperatorConfig, Wave, "one joint moves up and down")


@dataclass
class Counts:
    """What was found after the runs of one fault."""

    runs: int = 0
    episodes: int = 0
    lost: int = 0
    damaged: int = 0
    motors_on: int = 0
    failed_starts: int = 0
    """Recorders that ended before the fault: on a busy computer the emulated bus answers late."""
    exits: dict[int, int] = field(default_factory=dict)


class Bus:
    """The process of the emulated bus."""

    def __init__(self, folder: Path) -> None:
        self.link, self._state = folder / "bus", folder / "state.json"
        self.calibration = folder / "calibration"
        self.calibration.mkdir(parents=True)
        words = [sys.executable, "-m", "proctor.robots.emulation.pty_bus", f"--link={self.link}"]
        words += [f"--state={self._state}", f"--calibration={self.calibration / 'arm.json'}"]
        self._process = subprocess.Popen(  # noqa: S603  our own module
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def order(self, **order: Any) -> None:
        """Send one order, as unplug=True."""
        assert self._process.stdin is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)

    def motors_on(self, wait_s: float) -> int:
        """Return how many motors are on after at most ``wait_s``."""
        deadline = time.monotonic() + wait_s
        while True:
            on = sum(json.loads(self._state.read_text())["torque"].values())
            if not on or time.monotonic() > deadline:
                return int(on)
            time.sleep(0.02)

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


@contextlib.contextmanager
def recorder(bus: Bus, root: Path, *words: str) -> Iterator[int]:
    """Fork a process that records on ``bus``; yield its process id."""
    flags = ["--robot.type=so101_follower", f"--robot.port={bus.link}", "--robot.id=arm"]
    flags += [f"--robot.calibration_dir={bus.calibration}", f"--dataset.root={root}"]
    flags += ["--teleop.type=measurements.robot_faults:WAVE", "--dataset.single_task=wave"]
    flags += [f"--dataset.fps={FPS}", "--dataset.num_episodes=100000", *words]
    flags += ["--dataset.reset_time_s=0.1", f"--resume={'true' if root.exists() else 'false'}"]
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setsid()
            log = os.open(root.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            code = proctor_main(["record", *flags])
        except BaseException:  # noqa: BLE001  the child must not return into the parent's loop
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    yield child


def n_episodes(root: Path) -> int:
    try:
        return read_info(root).total_episodes
    except DatasetError:
        return 0


def has_recorded(root: Path, n: int, child: int) -> bool:
    """Wait until the dataset has ``n`` episodes; return False if the recorder ends before."""
    deadline = time.monotonic() + 60
    while n_episodes(root) < n:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return False
        if time.monotonic() > deadline:
            raise SystemExit("the recorder saves no episodes")
        time.sleep(0.01)
    return True


def run_fault(bus: Bus, root: Path, fault: str, counts: Counts, rng: random.Random) -> None:
    """Record two episodes or more, inject the fault, and count what is left."""
    before = n_episodes(root)
    with recorder(bus, root, "--dataset.episode_time_s=0.3") as child:
        starts = has_recorded(root, before + 1, child)
        time.sleep(rng.random() * 0.6)
        finished = n_episodes(root)
        if not starts:
            counts.failed_starts += 1
        elif fault == "unplug":
            bus.order(unplug=True)
            time.sleep(0.3)
            bus.order(plug_in=True)
        else:
            os.kill(child, signal.SIGKILL if fault == "kill" else signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    counts.motors_on += bus.motors_on(GUARD_S)
    counts.episodes = n_episodes(root)
    counts.lost += max(0, finished - counts.episodes)
    if starts:
        code = os.waitstatus_to_exitcode(status)
        counts.exits[code] = counts.exits.get(code, 0) + 1
        counts.runs += 1
    elif counts.failed_starts > MOST_FAILED_STARTS:
        raise SystemExit(f"the recorder ended: {root.with_suffix('.log').read_text()[-2000:]}")


def is_damaged(root: Path) -> bool:
    """Check a dataset in its own process; threads of the check would disturb later forks."""
    words = [sys.executable, "-m", "proctor", "data", "check", str(root)]
    return subprocess.run(words, check=False, capture_output=True).returncode != 0  # noqa: S603


def measure(fault: str, runs: int, seed: int, folder: Path) -> None:
    """Run one fault ``runs`` times on one dataset, which is resumed after each."""
    rng, counts = random.Random(seed), Counts()  # noqa: S311  repeatable, not secret
    place = folder / fault
    place.mkdir()
    bus, root = Bus(place), place / "data"
    try:
        while counts.runs < runs:
            run_fault(bus, root, fault, counts, rng)
            print(f"\r{fault} {counts.runs}/{runs}", end="", file=sys.stderr, flush=True)
    finally:
        print(file=sys.stderr)
        bus.close()
        counts.damaged = int(is_damaged(root))
        say(f"{fault}: runs", str(counts.runs))
        say(f"{fault}: episodes in the dataset", str(counts.episodes))
        say(f"{fault}: finished episodes lost", str(counts.lost), "0")
        say(f"{fault}: datasets damaged", str(counts.damaged), "0")
        say(f"{fault}: motors left on", str(counts.motors_on), "0")
        say(f"{fault}: recorders that ended before the fault", str(counts.failed_starts))
        say(f"{fault}: exit codes", str(counts.exits))


def measure_replies(runs: int, seed: int, folder: Path) -> None:
    """Damage, delay and drop replies of the simulated arm, and compare each reading with the truth.

    The clock is virtual: a slow computer delays no reply, and the true joint positions at the
    moment of a reading are known.
    """
    from proctor.config.builder import build
    from proctor.config.robot_recording import RobotRecordConfig
    from proctor.control.recording.session import (
        SessionContext,
        prepare_recording,
        run_recording_session,
    )
    from proctor.control.terminal.keys import KeyHub

    root = folder / "replies"
    settings = {"robot.type": "so101_follower", "robot.port": "sim:virtual", "dataset.fps": "30"}
    settings |= {"teleop.type": "scripted", "dataset.root": str(root), "record.keep": "all"}
    settings |= {"dataset.single_task": "pick", "dataset.episode_time_s": "4"}
    settings |= {"dataset.num_episodes": str(max(1, runs // 10))}
    prepared = prepare_recording(build(RobotRecordConfig, settings))
    readings = Readings(prepared.robot, runs, seed)
    prepared.robot.get_observation = readings.observe  # type: ignore[method-assign]
    outcome = run_recording_session(prepared, SessionContext(KeyHub()))
    lost = sum(outcome.health.lost_replies.values())
    say("reply: faults", str(readings.injected))
    say("reply: replies lost and asked again", str(lost))
    say("reply: readings", str(readings.count))
    say("reply: stale readings", str(readings.stale), "0")
    say("reply: largest error of a reading, degrees or percent", f"{readings.largest:.2f}")
    say("reply: episodes lost", str(prepared.plan.n_episodes - outcome.saved.n_episodes), "0")
    say("reply: datasets damaged", str(int(is_damaged(root))), "0")


class Readings:
    """Injects a fault before every tenth reading, and compares readings with the true positions."""

    def __init__(self, robot: Robot, most: int, seed: int) -> None:
        self._robot, self._observe, self._most = robot, robot.get_observation, most
        self._rng = random.Random(seed)  # noqa: S311  repeatable, not secret
        self.count = self.injected = self.stale = 0
        self.largest = 0.0

    def observe(self) -> RobotObservation:
        """Read the robot as its own method does."""
        self.count += 1
        if self.count % 10 == 5 and self.injected < self._most:
            kind = self._rng.choice(["drop", "corrupt", "late", "garbage"])
            fault = Fault(FaultKind(kind), self._rng.randint(1, 6))
            cell_for("sim:virtual").follower.bus.inject(fault)
            self.injected += 1
        seen = self._observe()
        assert self._robot.scene is not None
        true = self._robot.scene.joint_positions()
        read = [seen[name] for name in self._robot.action_features]
        error = float(np.abs(true - np.array(read)).max())
        self.largest = max(self.largest, error)
        self.stale += error > RESOLUTION
        return seen


def main(words: Sequence[str]) -> None:
    """Run the parts that ``words`` name."""
    parser = make_parser("robot_faults", __doc__, ("kill", "term", "unplug", "reply"))
    parser.add_argument("--runs", type=int, default=100, help="faults of each kind")
    parser.add_argument("--seed", type=int, default=7, help="seed of the moments of faults")
    given = parser.parse_args(words)
    runs = 2 if given.tiny else given.runs
    parts = {
        fault: lambda folder, fault=fault: measure(fault, runs, given.seed, folder)
        for fault in ("kill", "term", "unplug")
    }
    run_parts(
        given.parts, {**parts, "reply": lambda folder: measure_replies(runs, given.seed, folder)}
    )
