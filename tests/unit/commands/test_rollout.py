"""``proctor rollout``: the whole command, with a robot without hardware."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.config.builder import build
from proctor.config.rollout import RolloutConfig
from proctor.control.recording.log import EpisodeEnd, read_recording_log
from proctor.datasets.format.info_file import read_info
from proctor.errors import UsageError
from tests.fake_robots import FakeRobot, fail_after_connect
from tests.refusals import refuses

ROBOT = {"robot.type": "tests.fake_robots:ROBOT", "policy.type": "zero"}
TELEOP = {"teleop.type": "tests.fake_robots:TELEOPERATOR"}
DATASET = {
    "dataset.single_task": "stack",
    "dataset.episode_time_s": "0.5",
    "dataset.reset_time_s": "0.2",
    "dataset.num_episodes": "2",
    "fps": "10",
}


def roll_out(**more: object) -> int:
    flags = {**ROBOT, **{name.replace("__", "."): value for name, value in more.items()}}
    return main(["rollout", *(f"--{name}={value}" for name, value in flags.items())])


def test_a_rollout_of_base_returns_to_the_start_pose() -> None:
    assert roll_out(duration=1, fps=10) == 0
    robot = FakeRobot.made[-1]
    assert len(robot.sent) == 10 + 31  # three seconds of return and the last pose
    assert not robot.torque


def test_random_weights_do_not_move_a_robot(capsys: pytest.CaptureFixture[str]) -> None:
    before = len(FakeRobot.made)
    assert roll_out(policy__type="act", duration=1, fps=10) == 2
    assert "--policy.path=DIR" in capsys.readouterr().err
    assert not any(robot.sent for robot in FakeRobot.made[before:])


def test_a_rollout_is_shown_on_the_live_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert roll_out(duration=0.5, fps=10, live="true", live_port=0) == 0
    assert "live: http://127.0.0.1:" in capsys.readouterr().err


def test_episodes_are_recorded_and_more_are_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    flags = {name.replace(".", "__"): value for name, value in DATASET.items()}
    wanted = {**flags, "strategy__type": "episodic", "dataset__root": root}
    assert roll_out(**wanted) == 0
    assert read_info(root).total_episodes == 2
    assert main(["data", "check", str(root)]) == 0
    assert roll_out(**wanted) == 2
    assert roll_out(**wanted, resume="true") == 0
    assert read_info(root).total_episodes == 4


def test_a_lost_bus_keeps_the_running_episode_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_after_connect(monkeypatch, "get_observation", at=8)
    flags = {name.replace(".", "__"): value for name, value in DATASET.items()}
    root = tmp_path / "data"
    assert roll_out(**flags, strategy__type="sentry", dataset__root=root, duration=5) == 1
    shown = capsys.readouterr()
    assert "1 episode, 7 frames" in shown.out
    assert "error:" in shown.err
    assert read_info(root).total_episodes == 1


def test_corrections_have_the_feature_of_lerobot(tmp_path: Path) -> None:
    root = tmp_path / "data"
    flags = {name.replace(".", "__"): value for name, value in {**DATASET, **TELEOP}.items()}
    run = {**flags, "strategy__type": "dagger", "strategy__record_autonomous": "true"}
    assert roll_out(**run, dataset__root=root, duration=2) == 0
    entry = read_info(root).features["intervention"]
    assert (entry["dtype"], list(entry["shape"]), entry["names"]) == ("bool", [1], None)


def test_dagger_needs_a_teleoperator() -> None:
    with refuses(UsageError, "flag.missing"):
        build(RolloutConfig, {**ROBOT, **DATASET, "strategy.type": "dagger", "dataset.root": "x"})


def test_the_frames_per_second_of_loop_and_dataset_must_agree() -> None:
    settings = {**ROBOT, **DATASET, "strategy.type": "sentry", "dataset.root": "x"}
    with refuses(UsageError, "flag.conflict"):
        build(RolloutConfig, {**settings, "dataset.fps": "30"})


@pytest.mark.parametrize(
    ("flag", "value"),
    [("fps", "0"), ("duration", "-1"), ("interpolation_multiplier", "0"), ("seed", "-1")],
)
def test_numbers_out_of_range_are_refused(flag: str, value: str) -> None:
    with refuses(UsageError, "flag.out-of-range"):
        build(RolloutConfig, {**ROBOT, flag: value})


def test_real_time_chunking_needs_a_policy_that_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert roll_out(inference__type="rtc", duration=1) == 2
    assert "async" in capsys.readouterr().err


def test_a_typo_in_a_flag_is_refused_before_anything_moves() -> None:
    made = len(FakeRobot.made)
    assert roll_out(duratoin=1) == 2
    assert len(FakeRobot.made) == made


def test_sigterm_keeps_the_running_episode(tmp_path: Path) -> None:
    for wait_s in (1, 10, 30):  # on a busy machine the first frame may take longer
        root = tmp_path / f"after{wait_s}"
        returncode = sigterm_after(wait_s, root)
        if read_info(root).total_episodes:
            break
    assert returncode == 130
    logged = read_recording_log(root)
    assert logged[0].report.ended_by is EpisodeEnd.SIGNAL
    assert read_info(root).total_episodes == 1


def sigterm_after(wait_s: float, root: Path) -> int:
    """Roll out in a process and end it ``wait_s`` after it began to drive; return its exit code."""
    words = [f"--{name}={value}" for name, value in {**ROBOT, **DATASET}.items()]
    command = [sys.executable, "-m", "proctor.cli", "rollout", *words, "--strategy.type=sentry"]
    command += [f"--dataset.root={root}", "--robot.real_time=true"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "keys:" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(wait_s)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    return process.returncode
