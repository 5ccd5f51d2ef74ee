"""``proctor eval --robot.type``: blind, paired, interleaved, durable, and resumable."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.commands.evaluation.eval import run as eval_command
from proctor.config.robot_evaluation import RobotEvalConfig
from proctor.config.robot_recording import RobotRecordConfig
from proctor.config.rollout import RolloutConfig
from proctor.control.trials.plan import draw_trials
from proctor.control.trials.session import SEALED_FILE, read_session
from proctor.errors import UsageError
from proctor.report.compare.comparison import Criteria, compare_all
from proctor.report.run.run import load_run
from proctor.runs.journal import read_journal
from proctor.types import MAX_EPISODES, Outcome
from tests.refusals import refuses
from tests.unit.control.trial_robots import ReachPolicy, ReachRobot

HERE = "tests.unit.control.trial_robots"
GOOD, BAD = f"{HERE}-good", f"{HERE}-bad"


@pytest.fixture(autouse=True)
def _forget() -> None:
    ReachPolicy.acted.clear()
    ReachRobot.made.clear()


def evaluate(folder: Path, *flags: str, policies: str = f"{HERE}:good,{HERE}:bad") -> int:
    words = {
        "--robot.type": f"{HERE}:ROBOT",
        "--policy.type": policies,
        "--output_dir": str(folder),
        "--task": "reach the target",
        "--fps": "10",
        "--eval.episode_time_s": "0.5",
        "--eval.return_time_s": "0.2",
    }
    for flag in flags:
        name, _, value = flag.partition("=")
        words[name] = value or "true"
    return main(["eval", *(f"{name}={value}" for name, value in words.items())])


def trials() -> list[tuple[str, int]]:
    """Return (policy, seed) of the trials in order, without the dry runs."""
    return ReachPolicy.acted[2:]


def test_policies_alternate_in_random_order_on_the_same_scenes(tmp_path: Path) -> None:
    assert evaluate(tmp_path, "--eval.n_episodes=20", "--eval.stop_when=never") == 0
    acted = trials()
    assert len(acted) == 40
    for block in range(20):
        pair = acted[2 * block : 2 * block + 2]
        assert {name for name, _ in pair} == {"good", "bad"}
        assert {seed for _, seed in pair} == {1000 + block}
    firsts = [acted[2 * block][0] for block in range(20)]
    assert 0 < firsts.count("good") < 20  # wrong once in 500,000 sessions


def test_every_session_draws_an_order_of_its_own(tmp_path: Path) -> None:
    """An order that a person has seen once tells nothing of the next trials."""
    flags = ("--eval.n_episodes=30", "--eval.stop_when=never")
    orders = []
    for name in ("one", "two"):
        ReachPolicy.acted.clear()
        evaluate(tmp_path / name, *flags)
        orders.append(trials())
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


@pytest.mark.parametrize(
    "content", [None, "", "{}", '{"entropy": "12"}', f'{{"entropy": "{"0" * 32}", "start": 1}}']
)
def test_a_session_without_its_sealed_file_is_not_resumed(
    tmp_path: Path, content: str | None
) -> None:
    assert evaluate(tmp_path, "--eval.n_episodes=1", policies=f"{HERE}:good") == 0
    sealed = tmp_path / SEALED_FILE
    sealed.unlink() if content is None else sealed.write_text(content)
    words = [f"--output_dir={tmp_path}", f"--robot.type={HERE}:ROBOT", "--eval.n_episodes=2"]
    ReachPolicy.acted.clear()
    with refuses(UsageError, "run.damaged"):
        eval_command(["--resume", *words, f"--policy.type={HERE}:good"])
    assert ReachPolicy.acted == []


def test_by_default_no_recorded_scene_is_evaluated() -> None:
    default = {kind: fields(kind) for kind in (RobotRecordConfig, RolloutConfig, RobotEvalConfig)}
    seeds = {
        kind: next(item.default for item in found if item.name == "seed")
        for kind, found in default.items()
    }
    evaluated = range(seeds[RobotEvalConfig], seeds[RobotEvalConfig] + MAX_EPISODES)
    assert seeds[RobotRecordConfig] not in evaluated
    assert seeds[RolloutConfig] not in evaluated


def test_a_person_without_a_terminal_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.control.terminal.keys._controlling_terminal", lambda: None)
    with refuses(UsageError, "robot.no-terminal"):
        eval_command(
            [
                f"--robot.type={HERE}:ROBOT",
                f"--policy.type={HERE}:good",
                "--eval.judge=person",
                f"--output_dir={tmp_path / 'run'}",
            ]
        )
    assert ReachPolicy.acted == []
    assert not (tmp_path / "run").exists()


def test_every_policy_has_an_ordinary_run_folder(tmp_path: Path) -> None:
    evaluate(tmp_path, "--eval.n_episodes=12", "--eval.stop_when=never")
    good, bad = load_run(tmp_path / GOOD), load_run(tmp_path / BAD)
    assert (good.tally.successes, good.tally.episodes) == (12, 12)
    assert (bad.tally.successes, bad.tally.episodes) == (4, 12)
    comparison = compare_all([good, bad], Criteria())[0]
    assert (comparison.overall.only_a, comparison.overall.n_b) == (8, 12)
    assert not [line for line in comparison.warnings if "protocols differ" in line]
    assert (tmp_path / "compare.html").is_file()
    assert (tmp_path / GOOD / "report.html").is_file()
    assert main(["report", str(tmp_path / GOOD), "--csv=-"]) == 0
    assert main(["compare", str(tmp_path / GOOD), str(tmp_path / BAD)]) in (0, 1)


def test_the_trials_stop_once_one_policy_is_better(tmp_path: Path) -> None:
    assert evaluate(tmp_path, "--eval.n_episodes=60") == 0
    good, bad = load_run(tmp_path / GOOD), load_run(tmp_path / BAD)
    assert good.stopped is not None
    assert good.tally.episodes == bad.tally.episodes < 30
    assert good.record.resolved["eval"]["stop_when"] == "better"
    interval = json.loads((tmp_path / GOOD / "eval_info.json").read_text())["proctor"]["interval"]
    assert interval.startswith("anytime")


def test_the_screen_does_not_tell_which_policy_acts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown_before: list[str] = []
    reset = ReachRobot.get_observation

    def look(robot: ReachRobot) -> dict[str, object]:
        shown_before.append("".join(capsys.readouterr()))
        return reset(robot)

    monkeypatch.setattr(ReachRobot, "get_observation", look)
    evaluate(tmp_path, "--eval.n_episodes=2", "--eval.stop_when=never")
    during = "".join(shown_before[1:])
    assert "good" not in during
    assert "bad" not in during
    assert GOOD in capsys.readouterr().out


def test_a_dead_bus_is_no_failure_and_the_trial_is_repeated(tmp_path: Path) -> None:
    flags = ("--eval.n_episodes=6", "--eval.stop_when=never")
    assert evaluate(tmp_path, *flags, "--robot.fail_after=25") == 1
    rows = [row for name in (GOOD, BAD) for row in read_journal(tmp_path / name).rows]
    errors = [row for row in rows if row.outcome is Outcome.ERROR]
    assert len(errors) == 1
    judged = len(rows) - len(errors)
    assert judged > 1
    assert ReachRobot.made[-1].stops == 1
    assert not ReachRobot.made[-1].is_connected
    begun = trials()
    ReachPolicy.acted.clear()
    code = f"--policy.type={HERE}:good,{HERE}:bad", f"--robot.type={HERE}:ROBOT"
    words = ["eval", "--resume", f"--output_dir={tmp_path}", *code, "--robot.fail_after=none"]
    assert main(words) == 0
    drawn = draw_trials(2, 6, read_session(tmp_path).order_seed)
    names = ("good", "bad")
    planned = [(names[trial.policy], 1000 + trial.block) for trial in drawn]
    assert begun[:judged] + trials() == planned
    assert load_run(tmp_path / GOOD).tally.errors == 0
    assert load_run(tmp_path / GOOD).tally.episodes == 6
    assert json.loads((tmp_path / "trials.json").read_text())["names"] == [GOOD, BAD]


def test_one_policy_has_its_run_in_the_folder_itself(tmp_path: Path) -> None:
    assert evaluate(tmp_path, "--eval.n_episodes=3", policies=f"{HERE}:good") == 0
    run = load_run(tmp_path)
    assert run.tally.episodes == 3
    assert run.record.resolved["eval"]["stop_when"] == "never"


def test_an_interval_that_is_narrow_enough_stops_the_trials(tmp_path: Path) -> None:
    flags = ("--eval.n_episodes=100", "--eval.stop_when=ci_width<0.5")
    assert evaluate(tmp_path, *flags, policies=f"{HERE}:good") == 0
    run = load_run(tmp_path)
    assert run.stopped is not None
    assert 3 < run.tally.episodes < 40


def test_the_fingerprint_covers_the_robot(tmp_path: Path) -> None:
    short = "--eval.n_episodes=1"
    prints = {}
    for name, flag in {
        "plain": "--robot.port=sim",
        "other_port": "--robot.port=/dev/ttyUSB0",
        "fps": "--fps=20",
        "time": "--eval.episode_time_s=1",
        "speed": "--robot.speed=2",
    }.items():
        evaluate(tmp_path / name, short, flag, policies=f"{HERE}:good")
        prints[name] = load_run(tmp_path / name).fingerprint
    assert prints["other_port"] == prints["plain"]
    assert len({prints[name] for name in ("plain", "fps", "time", "speed")}) == 4
    protocol = load_run(tmp_path / "plain").record.protocol["benchmark"]
    assert protocol["units"] == {"arm.pos": "degrees", "gripper.pos": "percent"}
    assert protocol["cameras"] == {"front": [8, 6, 3]}
    assert protocol["horizon"] == 5


def test_reference_pictures_are_stored_once_per_scene(tmp_path: Path) -> None:
    evaluate(tmp_path, "--eval.n_episodes=2", "--eval.stop_when=never")
    pictures = sorted((tmp_path / "references").glob("*.png"))
    assert [path.name for path in pictures] == ["scene_0000_front.png", "scene_0001_front.png"]
    assert pictures[0].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--eval.n_episodes=0"], "flag.out-of-range"),
        (["--eval.stop_when=sometimes"], "flag.invalid-value"),
        (["--fps=0"], "flag.out-of-range"),
        (["--alpha=0.7"], "flag.out-of-range"),
        (["--live_port=70000"], "flag.out-of-range"),
        (["--seed=1,2"], "flag.invalid-value"),
        (["--env.type=fake"], "flag.unknown"),
    ],
)
def test_bad_flags_are_refused_before_the_robot_is_made(flags: list[str], code: str) -> None:
    words = [f"--robot.type={HERE}:ROBOT", f"--policy.type={HERE}:good", *flags]
    with refuses(UsageError, code):
        eval_command(words)
    assert ReachRobot.made == []


def test_a_folder_with_trials_is_not_overwritten(tmp_path: Path) -> None:
    assert evaluate(tmp_path, "--eval.n_episodes=1", policies=f"{HERE}:good") == 0
    assert evaluate(tmp_path, "--eval.n_episodes=1", policies=f"{HERE}:good") == 2


def test_other_trials_cannot_be_added_to_a_run(tmp_path: Path) -> None:
    evaluate(tmp_path, "--eval.n_episodes=2", policies=f"{HERE}:good")
    again = ("--resume", "--eval.n_episodes=4", "--fps=20")
    assert evaluate(tmp_path, *again, policies=f"{HERE}:good") == 2


def test_an_unfinished_session_stays_blind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(tmp_path, "--eval.n_episodes=6", "--robot.fail_after=40")
    out = capsys.readouterr().out
    assert "%" not in out
    assert "good" not in out
