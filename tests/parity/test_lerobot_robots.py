"""Robots both ways with LeRobot (0.6.1): its unmodified commands on our emulated bus, and ours.

Needs LeRobot with the extras dataset, feetech and pyzmq-dep in a venv of its own: set
PROCTOR_LEROBOT_PYTHON to that venv's python. A person's hand in all tests is an order to the
emulated arm.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pty_arm import PtyArm

from proctor.datasets.format.info_file import read_info
from proctor.datasets.reader import open as open_dataset
from proctor.robots.emulation.arm_models import ARM_MODELS

zmq = pytest.importorskip("zmq", reason="the camera needs pyzmq: pip install 'proctor[zmq]'")
cv2 = pytest.importorskip("cv2", reason="the camera needs OpenCV: pip install 'proctor[robot]'")

HERE = Path(__file__).parent
PYTHON = os.environ.get("PROCTOR_LEROBOT_PYTHON", "")
pytestmark = [
    pytest.mark.skipif(
        not Path(PYTHON).is_file(), reason="LeRobot not installed (set PROCTOR_LEROBOT_PYTHON)"
    ),
    pytest.mark.timeout(1200),
]
MIDDLE = {name: sum(ends) / 2 for name, ends in ARM_MODELS["so_leader"].ranges.items()}
POSE = MIDDLE | {"shoulder_pan": 0.4, "elbow_flex": 0.3, "wrist_roll": -0.5}
MEMORY = Path("/dev/shm")
"""An arm writes its state to a file: on a busy disk that delays its answers."""
SWEEP_S = 9.0
"""One and a half sweeps: every joint reaches both ends."""
TICKS = 12
"""Positions of an arm that follows lag by a few of 4096 ticks."""
WIDTH, HEIGHT = 64, 48
CAMERA = "observation.images.front"
SESSION = ["--dataset.single_task=wave", "--dataset.fps=30", "--dataset.num_episodes=2"]
SESSION += ["--dataset.episode_time_s=1", "--dataset.reset_time_s=0.2", "--play_sounds=false"]
SESSION += ["--dataset.push_to_hub=false", "--dataset.repo_id=local/arm"]


@dataclass
class Bench:
    """A follower, a leader and a camera."""

    folder: Path
    follower: PtyArm
    leader: PtyArm
    camera: str

    def robot(self, calibration: str = "theirs") -> list[str]:
        return _device("robot", "so101_follower", self.follower, self.folder, calibration)

    def teleop(self, calibration: str = "ours_leader") -> list[str]:
        return _device("teleop", "so101_leader", self.leader, self.folder, calibration)

    def lerobot(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        return _run([*_lerobot(command), *words])

    def proctor(self, *words: str) -> subprocess.CompletedProcess[str]:
        return _run([sys.executable, "-m", "proctor", *words])

    def let_wave(self) -> None:
        """Let a person move the leader."""
        self.leader.order(hand=None, sweep=True)

    def let_hold(self) -> None:
        """Let a person hold the leader in one pose."""
        self.leader.order(sweep=False, hand=POSE)


def _device(part: str, kind: str, arm: PtyArm, folder: Path, calibration: str) -> list[str]:
    flags = {"type": kind, "port": arm.port, "id": calibration, "calibration_dir": folder}
    return [f"--{part}.{name}={value}" for name, value in flags.items()]


def _environment() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command without an input: one that asks a question fails."""
    done = subprocess.run(
        words, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{words[:3]}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
    return done


@cache
def _ahead() -> list[str]:
    """Return words that let a command run before other processes, where that is allowed.

    LeRobot waits only 53 ms for a motor, so on a busy machine it misses answers. A real-time
    priority would not help: Linux takes the processor from a busy real-time process for 50 ms.
    """
    words = ["nice", "-n", "-15"]
    tried = subprocess.run([*words, "true"], capture_output=True)
    return words if tried.returncode == 0 and not tried.stderr else []


def _lerobot(command: str) -> list[str]:
    return [*_ahead(), str(Path(PYTHON).with_name(f"lerobot-{command}"))]


def _serve_first(arm: PtyArm) -> None:
    """Let an arm answer before other processes run, where that is allowed; it is mostly idle."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(arm.process.pid, os.SCHED_FIFO, os.sched_param(10))


def _calibrate(words: list[str], arm: PtyArm) -> None:
    """Run a calibration of Proctor or LeRobot; both ask twice to press Enter."""
    arm.order(sweep=False, hand=MIDDLE)
    process = subprocess.Popen(
        words,
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    _read_until_asked(process)
    _press_enter(process)
    _read_until_asked(process)
    arm.order(hand=None, sweep=True)
    threading.Timer(SWEEP_S, _press_enter, [process]).start()
    shown = process.stdout.read()  # LeRobot prints a table all the time
    process.stdin.close()
    assert process.wait() == 0, shown[-3000:]
    arm.order(sweep=False, hand=MIDDLE)
    arm.order(hand=None)


def _press_enter(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def _read_until_asked(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    shown = b""
    while b"press enter" not in shown.lower():
        piece = os.read(process.stdout.fileno(), 4096)
        assert piece, shown[-3000:]
        shown += piece


@pytest.fixture(scope="module")
def camera() -> Iterator[str]:
    """Send images as LeRobot's image server does; return the camera's flags."""
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    image = np.full((HEIGHT, WIDTH, 3), (30, 120, 200), np.uint8)
    picture = base64.b64encode(cv2.imencode(".jpg", image)[1].tobytes()).decode()
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(1 / 30):
            message = {"timestamps": {"front": time.time()}, "images": {"front": picture}}
            socket.send_string(json.dumps(message))

    thread = threading.Thread(target=send)
    thread.start()
    flags = {"type": "zmq", "server_address": "127.0.0.1", "port": port, "camera_name": "front"}
    flags |= {"width": WIDTH, "height": HEIGHT, "fps": 30}
    yield f"--robot.cameras={json.dumps({'front': flags})}"
    stop.set()
    thread.join()
    context.destroy()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, camera: str) -> Iterator[Bench]:
    """Return arms of which Proctor has calibrated the leader, and LeRobot the follower."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY)) if MEMORY.is_dir() else tmp_path_factory.mktemp("b")
    with (
        PtyArm(folder, calibration_id="factory") as follower,
        PtyArm(folder, arm="so_leader", calibration_id="factory_leader") as leader,
    ):
        for arm in (follower, leader):
            _serve_first(arm)
        bench = Bench(folder, follower, leader, camera)
        proctor = [sys.executable, "-m", "proctor", "calibrate"]
        _calibrate([*proctor, *bench.teleop("ours_leader")], leader)
        _calibrate([*proctor, *bench.robot("ours")], follower)
        _calibrate([*_lerobot("calibrate"), *bench.robot("theirs")], follower)
        yield bench
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def theirs(bench: Bench) -> Path:
    """Return a dataset that LeRobot recorded."""
    root = bench.folder / "recorded_by_lerobot"
    bench.let_wave()
    devices = [*bench.robot(), *bench.teleop(), bench.camera]
    bench.lerobot("record", *devices, *SESSION, f"--dataset.root={root}")
    return root


@pytest.fixture(scope="module")
def ours(bench: Bench) -> Path:
    """Return a dataset that Proctor recorded with the same flags."""
    root = bench.folder / "recorded_by_proctor"
    bench.let_wave()
    devices = [*bench.robot(), *bench.teleop(), bench.camera]
    bench.proctor("record", *devices, *SESSION, f"--dataset.root={root}")
    return root


def lerobots_items(root: Path) -> dict[str, Any]:
    """Return what LeRobot reads in a dataset, by position and key."""
    out = root.with_suffix(".npz")
    _run([PYTHON, str(HERE / "lerobot_robots_side.py"), str(root), str(out)])
    with np.load(out) as read:
        return dict(read)


def same_pose(bench: Bench, expected: dict[str, float]) -> bool:
    """Return whether the follower is where ``expected`` (ticks) says, and limp."""
    state = bench.follower.state()
    distances = [abs(state["position"][name] - ticks) for name, ticks in expected.items()]
    return max(distances) <= TICKS and not any(state["torque"].values())


def ticks_of(bench: Bench, values: Any) -> dict[str, float]:
    """Return an action in ticks: degrees from the middle, of the gripper percent of its range."""
    entries = json.loads((bench.folder / "theirs.json").read_text())
    ticks = {}
    for (name, entry), value in zip(entries.items(), values, strict=True):
        low, high = entry["range_min"], entry["range_max"]
        share = low + value / 100 * (high - low)
        ticks[name] = share if name == "gripper" else (low + high) / 2 + value / 360 * 4095
    return ticks


def wait_for_last_target(bench: Bench, root: Path) -> None:
    """Wait until the follower is limp and its goal registers have the dataset's last action.

    The positions are no measure: an arm is many ticks behind a wave when its motors go off.
    """
    last = ticks_of(bench, open_dataset(root)[-1]["action"])

    def is_reached(state: dict[str, Any]) -> bool:
        distances = [abs(state["goal"][name] - ticks) for name, ticks in last.items()]
        return max(distances) <= 1 and not any(state["torque"].values())

    bench.follower.wait_for(is_reached)


def test_both_calibrations_of_one_arm_are_the_same(bench: Bench) -> None:
    ours, theirs = (
        json.loads((bench.folder / f"{name}.json").read_text()) for name in ("ours", "theirs")
    )
    assert list(ours) == list(theirs)
    for name, entry in theirs.items():
        assert set(ours[name]) == set(entry)
        for key, value in entry.items():
            assert ours[name][key] == pytest.approx(value, abs=TICKS), (name, key)


def test_lerobot_teleoperates_the_emulated_arms(bench: Bench) -> None:
    bench.let_hold()
    bench.lerobot("teleoperate", *bench.robot(), *bench.teleop(), "--teleop_time_s=3")
    leader = bench.leader.state()["position"]
    bench.follower.wait_for(lambda _: same_pose(bench, leader))


def test_proctor_teleoperates_with_lerobots_calibration(bench: Bench) -> None:
    bench.let_hold()
    bench.proctor("teleoperate", *bench.robot(), *bench.teleop(), "--teleop_time_s=3")
    leader = bench.leader.state()["position"]
    bench.follower.wait_for(lambda _: same_pose(bench, leader))


def test_recordings_have_the_same_features_besides_the_documented_extras(
    theirs: Path, ours: Path
) -> None:
    info, other = read_info(ours), read_info(theirs)
    assert (info.robot_type, info.fps) == (other.robot_type, other.fps) == ("so_follower", 30)
    assert info.total_episodes == other.total_episodes == 2
    extras = {key for key in info.features if key not in other.features}
    assert extras == {"extra.wished_action", "extra.time_s", "extra.repeated.front"}
    for key, entry in other.features.items():
        for field in ("dtype", "shape", "names"):
            assert info.features[key][field] == entry[field], (key, field)


@pytest.mark.parametrize("recorder", ["ours", "theirs"])
def test_both_read_the_same_values(recorder: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(recorder)
    read = lerobots_items(root)
    dataset = open_dataset(root)
    assert len(dataset) == int(read["length"]) > 30
    for position in range(len(dataset)):
        for key in ("action", "observation.state", "timestamp", "episode_index"):
            assert np.array_equal(dataset[position][key], read[f"{position}/{key}"]), key
    assert read[f"0/{CAMERA}"].shape == (3, HEIGHT, WIDTH)
    colours = read[f"0/{CAMERA}"].mean(axis=(1, 2)) * 255
    assert colours == pytest.approx(dataset[0][CAMERA].mean(axis=(0, 1)), abs=3)


@pytest.mark.parametrize("recorder", ["ours", "theirs"])
def test_the_check_of_datasets_passes(
    bench: Bench, recorder: str, request: pytest.FixtureRequest
) -> None:
    bench.proctor("data", "check", str(request.getfixturevalue(recorder)))


def test_proctor_replays_lerobots_recording(bench: Bench, theirs: Path) -> None:
    bench.proctor("replay", *bench.robot(), f"--dataset.root={theirs}", "--dataset.episode=1")
    wait_for_last_target(bench, theirs)


def test_lerobot_replays_proctors_recording(bench: Bench, ours: Path) -> None:
    dataset = [f"--dataset.root={ours}", "--dataset.repo_id=local/arm", "--dataset.episode=1"]
    bench.lerobot("replay", *bench.robot(), *dataset, "--play_sounds=false")
    wait_for_last_target(bench, ours)
