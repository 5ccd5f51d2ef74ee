"""``proctor record --robot.type``: the whole command, with a robot without hardware."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from proctor.cli import main
from proctor.control.recording.log import EpisodeEnd, read_recording_log
from proctor.datasets.format.info_file import read_info
from proctor.datasets.reader import open as open_dataset
from tests.fake_robots import FakeRobot, fail_after_connect

DEVICES = ["--robot.type=tests.fake_robots:ROBOT", "--teleop.type=tests.fake_robots:TELEOPERATOR"]
SESSION = [
    "--dataset.single_task=stack",
    "--dataset.fps=10",
    "--dataset.episode_time_s=0.5",
    "--dataset.reset_time_s=0.2",
    "--dataset.num_episodes=2",
]
REAL = ["--robot.simulated=false"]


def words_of(*words: str) -> list[str]:
    """Return flags of which a later one replaces an earlier one of the same name."""
    return list({word.partition("=")[0]: word for word in words}.values())


def record(root: Path, *more: str) -> int:
    return main(["record", *words_of(*DEVICES, *SESSION, f"--dataset.root={root}", *more)])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error line; there is exactly one."""
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1
    return lines[0]


def test_a_recording_is_a_dataset_that_the_checks_pass_and_training_reads(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record(root, *REAL, "--robot.n_cameras=1") == 0
    assert "2 episodes, 10 frames" in capsys.readouterr().out
    assert main(["data", "check", str(root)]) == 0
    dataset = open_dataset(root)
    assert dataset.spans.tolist() == [[0, 5], [5, 10]]
    assert dataset[0]["task"] == "stack"
    assert set(dataset.interface.features) == {"observation.state", "observation.images.camera0"}
    assert not FakeRobot.made[-1].torque


def test_a_lost_bus_keeps_the_running_episode_and_says_so(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_after_connect(monkeypatch, "get_observation", at=9)
    assert record(root, "--record.keep=all", "--dataset.episode_time_s=0.6") == 1
    shown = capsys.readouterr()
    assert [line for line in shown.err.splitlines() if "error:" in line]
    assert "2 episodes, 9 frames" in shown.out
    assert "proctor data delete" in shown.out
    assert [line.report.ended_by for line in read_recording_log(root).values()] == [
        EpisodeEnd.TIME,
        EpisodeEnd.ERROR,
    ]
    assert not FakeRobot.made[-1].torque


def test_units_and_the_robot_type_are_in_the_info_file(root: Path) -> None:
    record(root, *REAL)
    info = read_info(root)
    assert info.robot_type == "fake_robot"
    for key in ("action", "observation.state", "extra.wished_action"):
        assert info.features[key]["info"]["units"] == ["degrees", "degrees", "percent"]


def test_a_second_run_in_the_folder_needs_resume(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(root, *REAL)
    capsys.readouterr()
    made = len(FakeRobot.made)
    assert record(root, *REAL) == 2
    assert "--resume" in error_of(capsys)
    assert not any(robot.script.events for robot in FakeRobot.made[made:])
    assert record(root, *REAL, "--resume=true") == 0
    assert open_dataset(root).spans[:, 1].tolist() == [5, 10, 15, 20]
    assert main(["data", "check", str(root)]) == 0


def test_resume_takes_fps_and_instruction_from_the_dataset(root: Path) -> None:
    record(root, *REAL)
    words = ["record", *DEVICES, *REAL, f"--dataset.root={root}", "--resume=true"]
    more = ["--dataset.num_episodes=1", "--dataset.episode_time_s=0.3"]
    assert main([*words, *more]) == 0
    assert open_dataset(root)[12]["task"] == "stack"


def edit_info(root: Path, change: dict[str, object]) -> None:
    path = root / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    "change",
    [{"fps": 15}, {"robot_type": "koch_follower"}],
    ids=["fps", "robot type"],
)
def test_resume_refuses_another_dataset(
    root: Path, change: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    record(root, *REAL)
    edit_info(root, change)
    capsys.readouterr()
    assert record(root, *REAL, "--resume=true") == 2
    error_of(capsys)
    assert read_info(root).total_episodes == 2


def test_resume_refuses_another_unit_and_names_channel_and_units(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(root, *REAL)
    features = read_info(root).features
    features["action"]["info"]["units"][1] = "signed percent"
    edit_info(root, {"features": features})
    capsys.readouterr()
    assert record(root, *REAL, "--resume=true") == 2
    line = error_of(capsys)
    assert all(word in line for word in ("elbow.pos", "signed percent", "degrees"))


def test_resume_refuses_other_cameras(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(root, *REAL)
    capsys.readouterr()
    assert record(root, *REAL, "--resume=true", "--robot.n_cameras=1") == 2
    assert "camera0" in error_of(capsys)


def test_resume_of_a_dataset_of_lerobot_records_its_features_only(root: Path) -> None:
    from proctor.datasets.writer import DatasetWriter
    from proctor.datasets.writing.layout import FileLayout

    names = ["shoulder.pos", "elbow.pos", "gripper.pos"]
    vector = {"dtype": "float32", "shape": [3], "names": names}
    layout = FileLayout(robot_type="fake_robot")
    with DatasetWriter.create(
        root, 10, {"action": vector, "observation.state": vector}, layout=layout
    ) as writer:
        zeros = np.zeros(3, np.float32)
        writer.add_frame({"action": zeros, "observation.state": zeros}, "stack")
        writer.end_episode()
    assert record(root, *REAL, "--resume=true") == 0
    assert open_dataset(root).spans[:, 1].tolist() == [1, 6, 11]


@pytest.mark.parametrize(
    "words",
    [
        ["--dataset.single_task="],
        ["--dataset.fps=0"],
        ["--dataset.episode_time_s=0"],
        ["--dataset.num_episodes=0"],
        ["--dataset.codec=vhs"],
        ["--dataset.repo_id=no"],
        ["--dataset.push_to_hub=true"],
        ["--record.keep=success", *REAL],
        ["--dataset.rgb_encoder.crf=5"],
    ],
    ids=lambda words: words[0],
)
def test_bad_flags_are_refused_before_a_device_is_opened(
    root: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    made = len(FakeRobot.made)
    assert record(root, *words) == 2
    error_of(capsys)
    assert not root.exists()
    assert not any(robot.script.events for robot in FakeRobot.made[made:])


def test_a_teleoperator_is_required(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["record", DEVICES[0], *SESSION, f"--dataset.root={root}"]
    assert main(words) == 2
    assert "--teleop.type" in error_of(capsys)


def test_the_name_gets_a_date_only_if_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    words = ["record", *words_of(*DEVICES, *SESSION, *REAL, "--dataset.num_episodes=1")]
    assert main([*words, "--dataset.repo_id=me/plain"]) == 0
    assert main([*words, "--dataset.repo_id=me/dated", "--dataset.no_stamp=false"]) == 0
    names = sorted(path.name for path in (tmp_path / "me").iterdir())
    assert names[1] == "plain"
    assert names[0].startswith("dated_2")


def test_help_names_the_robot_s_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--robot.type=tests.fake_robots:ROBOT", "--help"]) == 0
    assert "--dataset.single_task" in capsys.readouterr().out


class TestProcesses:
    """Signals and kills of a real process."""

    WORDS = words_of(
        *DEVICES,
        *SESSION,
        *REAL,
        "--robot.real_time=true",
        "--robot.n_cameras=1",
        "--dataset.num_episodes=500",
        "--dataset.codec=h264",
    )

    def start(self, root: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "proctor", "record", *self.WORDS, f"--dataset.root={root}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=Path(__file__).parents[3],
        )

    @staticmethod
    def wait_for_episodes(root: Path, n: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if (root / "meta/info.json").exists() and read_info(root).total_episodes >= n:
                return
            time.sleep(0.01)
        raise AssertionError("no episodes")

    @pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_a_signal_keeps_all_and_says_so(self, root: Path, signum: signal.Signals) -> None:
        process = self.start(root)
        self.wait_for_episodes(root, 2)
        time.sleep(0.4)  # into the next episode or its reset phase
        os.kill(process.pid, signum)
        out, _ = process.communicate(timeout=60)
        assert process.returncode in (129, 130)
        assert b"dataset:" in out
        assert main(["data", "check", str(root)]) == 0
        log = read_recording_log(root)
        total = read_info(root).total_episodes
        assert total >= 2
        assert sorted(log) == list(range(total))
        ends = {line.report.ended_by for line in log.values()}
        assert ends <= {EpisodeEnd.TIME, EpisodeEnd.SIGNAL}

    def test_a_kill_loses_the_running_episode_only_and_resume_goes_on(self, root: Path) -> None:
        process = self.start(root)
        self.wait_for_episodes(root, 2)
        before = read_info(root).total_episodes
        process.kill()
        process.communicate()
        total = read_info(root).total_episodes
        assert total >= before
        assert main(["data", "check", str(root)]) == 0
        assert record(root, *REAL, "--robot.n_cameras=1", "--resume=true") == 0
        assert read_info(root).total_episodes == total + 2
        assert main(["data", "check", str(root)]) == 0
