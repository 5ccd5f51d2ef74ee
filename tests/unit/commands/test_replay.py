"""``proctor replay``: the actions of an episode, at its rate, in its units."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.datasets.format.info_file import read_info
from proctor.datasets.reader import open as open_dataset
from tests.fake_robots import FakeRobot

ROBOT = ["--robot.type=tests.fake_robots:ROBOT", "--robot.simulated=false"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two episodes of five frames."""
    root = tmp_path_factory.mktemp("recorded") / "data"
    words = [*ROBOT, "--teleop.type=tests.fake_robots:TELEOPERATOR", f"--dataset.root={root}"]
    words += ["--dataset.single_task=wave", "--dataset.fps=10", "--dataset.episode_time_s=0.5"]
    words += ["--dataset.reset_time_s=0.2", "--dataset.num_episodes=2"]
    assert main(["record", *words]) == 0
    return root


@pytest.fixture
def root(recorded: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    import shutil

    return Path(shutil.copytree(recorded, tmp_path / "data"))


def replay(root: Path, *more: str) -> int:
    return main(["replay", *ROBOT, f"--dataset.root={root}", "--dataset.episode=1", *more])


def edit_info(root: Path, change: dict[str, object]) -> None:
    path = root / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_the_actions_of_the_episode_are_sent_in_order(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(root) == 0
    robot = FakeRobot.made[-1]
    rows = open_dataset(root, episodes=[1]).batch(range(5), ["action"])["action"]
    sent = [[round(value, 4) for value in action.values()] for action in robot.sent]
    requested_action = [[round(float(value), 4) for value in row] for row in rows]
    assert sent[-5:] == requested_action
    assert sent[:-5] == requested_action[:1]  # the way to the first action
    assert not robot.torque
    assert "jitter" in capsys.readouterr().out
    assert robot.clock.now() == pytest.approx(0.5)


def test_actions_are_matched_by_name_not_by_order(root: Path) -> None:
    features = read_info(root).features
    for part in (features["action"]["names"], features["action"]["info"]["units"]):
        part.reverse()
    edit_info(root, {"features": features})
    assert replay(root) == 0
    first = open_dataset(root, episodes=[1])[0]["action"]
    assert FakeRobot.made[-1].sent[0]["gripper.pos"] == pytest.approx(max(0.0, float(first[0])))


def test_a_far_pose_is_approached_before_the_first_action(root: Path) -> None:
    made = FakeRobot.connect

    def connect(robot: FakeRobot, operator: object = None) -> None:
        robot.positions = dict.fromkeys(robot.positions, 40.0)
        made(robot)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeRobot, "connect", connect)
        assert replay(root) == 0
    assert len(FakeRobot.made[-1].sent) >= 6


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({}, ["--dataset.fps=15"]),
        ({"robot_type": "koch_follower"}, []),
    ],
    ids=["fps", "robot type"],
)
def test_another_rate_or_robot_is_refused_before_the_robot_connects(
    root: Path, change: dict[str, object], more: list[str]
) -> None:
    edit_info(root, change)
    assert replay(root, *more) == 2
    assert FakeRobot.made[-1].script.events == []


def test_another_unit_is_refused_and_both_are_named(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features = read_info(root).features
    features["action"]["info"]["units"][0] = "signed percent"
    edit_info(root, {"features": features})
    assert replay(root) == 2
    line = capsys.readouterr().err
    assert all(word in line for word in ("shoulder.pos", "signed percent", "degrees"))
    assert FakeRobot.made[-1].script.events == []


def test_a_dataset_without_units_is_replayed_with_a_note(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features = read_info(root).features
    del features["action"]["info"]
    edit_info(root, {"features": features})
    assert replay(root) == 0
    assert "units" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--dataset.episode=7"], ["--dataset.episode=-1"], []])
def test_an_episode_that_is_not_there_is_refused(root: Path, words: list[str]) -> None:
    assert main(["replay", *ROBOT, f"--dataset.root={root}", *words]) == 2
