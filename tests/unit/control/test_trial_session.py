"""A session judged by a person: guided resets, void trials, reasons, scores, emergency stop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proctor.config.builder import build
from proctor.config.robot_evaluation import RobotEvalConfig
from proctor.control.loop.stop_signals import StopSignals
from proctor.control.policy.driver import PolicyDriver, load_robot_policy
from proctor.control.terminal.live_page import LivePage
from proctor.control.trials.loop import Stopped, TrialLoop
from proctor.control.trials.plan import robot_task
from proctor.control.trials.records import PolicyUnderTest
from proctor.control.trials.session import SessionOptions, TrialSession
from proctor.control.trials.verdicts import Briefing, PersonJudge
from proctor.errors import RobotError
from proctor.report.run.run import load_run
from proctor.report.server.live_robot import LiveRobot
from proctor.robots.base import Action, RobotObservation
from proctor.runs.folder import EVAL_INFO_FILE, RunFolder
from proctor.runs.journal import read_journal
from proctor.stats.independent_units import independent_units
from proctor.types import Outcome
from tests.refusals import refuses
from tests.unit.control.trial_robots import ReachRobot

HERE = "tests.unit.control.trial_robots"


class Session:
    """A session of one policy on the tiny robot, with a person who presses keys in turn."""

    def __init__(self, folder: Path, keys: list[str], *, n: int = 2, resume: bool = False) -> None:
        settings = {
            "policy.type": f"{HERE}:good",
            "robot.type": f"{HERE}:ROBOT",
            "fps": 10,
            "eval.episode_time_s": 0.5,
            "eval.return_time_s": 0.2,
            "eval.n_episodes": n,
            "resume": resume,
        }
        config = build(RobotEvalConfig, settings)
        self.robot = ReachRobot(scene=False)
        self.robot.connect()
        self.keys = keys
        self.held = False
        self.heard: list[str] = []
        self.phases: list[str] = []
        self.references: list[dict[str, bytes]] = []
        self.live = LiveRobot("trials", [], ["front"], 10)
        page = LivePage(self.robot, self.live)
        judge = PersonJudge(self._next_key, self.heard.append)
        task = robot_task(config, self.robot.name)
        made = load_robot_policy(config.policy, self.robot, task)
        tested = PolicyUnderTest("good", config, settings, made, RunFolder(folder))
        self.signals = StopSignals()
        loop = TrialLoop(self.robot, judge, self._check, page)
        options = SessionOptions(folder, task, page)
        self.session = TrialSession([tested], self.robot, judge, loop, options)

    def _check(self) -> None:
        stop = self.signals.as_interrupt()
        if stop is not None:
            raise stop

    def _next_key(self) -> str | None:
        self.phases.append(self.live.status.phase)
        self.references.append(dict(self.live.references))
        if not self.keys:
            raise Stopped("the person pressed no more keys")
        key = self.keys.pop(0)
        return None if key == "-" else key


def test_a_person_starts_and_judges_every_trial(tmp_path: Path) -> None:
    keys = ["-", "enter", *"-----", "s", "enter", "space", "enter", "3", "t", *"slow", "enter"]
    session = Session(tmp_path, [*keys, "enter"])
    session.session.run()
    run = load_run(tmp_path)
    outcomes = [row.outcome for row in run.rows]
    assert outcomes == [Outcome.SUCCESS, Outcome.FAILURE]
    assert [row.scores for row in run.rows] == [{"score": 1.0}, {"score": 0.3}]
    assert [row.steps for row in run.rows] == [5, 1]
    starts = [row.start for row in run.rows]
    names = [start.names for start in starts if start is not None]
    assert names == [(f"scene {n}", "arm.pos", "gripper.pos") for n in range(len(run.rows))]
    assert len(independent_units(run.rows)) == len(run.rows), "each scene is placed anew"
    assert run.labels == {run.rows[1].key: ["slow"]}
    assert run.contamination is None, "a function was not trained"
    assert json.loads((tmp_path / EVAL_INFO_FILE).read_text())["proctor"]["contamination"] is None
    assert "trials" in run.record.protocol, "by which its contamination is known to be unknown"
    assert session.phases[0] == "reset the scene"
    assert {"running", "verdict"} <= set(session.phases)


def test_the_live_page_shows_the_reference_of_a_scene_that_was_set_up_before(
    tmp_path: Path,
) -> None:
    void = ["enter", "space", "r", "enter"]
    session = Session(tmp_path, [*void, "enter", "s", "enter", "enter", "s", "enter"])
    session.session.run()
    stored = (tmp_path / "references" / "scene_0000_front.png").read_bytes()
    assert session.references[0] == {}
    assert {"front": stored} in session.references
    assert "good" not in str(session.live.state())


def test_void_and_repeated_trials_run_again_and_are_counted(tmp_path: Path) -> None:
    judged = ["enter", "s", "enter"]
    void = ["enter", "space", "v", "t", *"bumped", "enter", "enter"]
    again = ["enter", "space", "r", "enter"]
    session = Session(tmp_path, [*void, *again, *judged, *judged])
    session.session.run()
    rows = read_journal(tmp_path).rows
    assert [row.outcome for row in rows] == [Outcome.SUCCESS] * 2
    assert [row.attempts for row in rows] == [3, 1]
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines()
    assert len(lines) == 4
    assert "void: bumped" in lines[0]


def test_a_judged_trial_survives_the_end_of_a_session(tmp_path: Path) -> None:
    first = Session(tmp_path, ["enter", "s", "enter", "q"])
    with pytest.raises(Stopped):
        first.session.run()
    assert len(read_journal(tmp_path).rows) == 1
    second = Session(tmp_path, ["enter", "f", "enter"], resume=True)
    second.session.run()
    assert [row.outcome for row in read_journal(tmp_path).rows] == [
        Outcome.SUCCESS,
        Outcome.FAILURE,
    ]


def test_the_robot_returns_to_its_first_pose_before_every_trial(tmp_path: Path) -> None:
    session = Session(tmp_path, ["enter", "f", "enter"] * 2)
    session.robot.world.target = 40.0
    session.session.run()
    assert [action["arm.pos"] for action in session.robot.sent] == [0, 0, 40, 20, 0, 40]


def test_a_resumed_session_starts_from_the_first_pose_of_the_earlier_one(tmp_path: Path) -> None:
    first = Session(tmp_path, ["enter", "s", "enter", "q"], n=3)
    with pytest.raises(Stopped):
        first.session.run()
    second = Session(tmp_path, ["enter", "f", "enter"] * 2, n=3, resume=True)
    second.robot.position["arm.pos"] = 30.0  # as an arm does whose motors were off
    second.session.run()
    starts = [row.start for row in read_journal(tmp_path).rows]
    assert [start.values[1:] for start in starts if start is not None] == [(0.0, 0.0)] * 3


def test_no_trial_starts_away_from_the_first_pose(tmp_path: Path) -> None:
    """Something holds the arm: the robot tries again, and then the trial is an error."""
    session = Session(tmp_path, ["enter", "f", "enter", "enter", "enter"])
    session.robot.world.target = 40.0
    send = session.robot.send_action

    def held(action: dict[str, float]) -> dict[str, float]:
        return send({**action, "arm.pos": max(action["arm.pos"], 4.0)} if session.held else action)

    session.robot.send_action = held  # type: ignore[method-assign]
    wait = session.session._loop.wait_for_start
    briefings: list[bool] = []

    def watched(briefing: Briefing) -> RobotObservation:
        briefings.append(briefing.is_repeat)
        session.held = True
        return wait(briefing)

    session.session._loop.wait_for_start = watched  # type: ignore[method-assign]
    with refuses(RobotError, "robot.start-pose"):
        session.session.run()
    assert briefings == [False, False, True]
    rows = read_journal(tmp_path).rows
    assert [row.outcome for row in rows] == [Outcome.FAILURE, Outcome.ERROR]


def test_a_slow_policy_gets_no_more_time_than_a_fast_one(tmp_path: Path) -> None:
    session = Session(tmp_path, ["enter", *"------", "f", "enter"], n=1)
    clock, act = session.robot.clock, PolicyDriver.act

    def slow(driver: PolicyDriver, observation: RobotObservation) -> Action:
        clock.sleep_until(clock.now() + 0.2)
        return act(driver, observation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PolicyDriver, "act", slow)
        session.session.run()
    (row,) = read_journal(tmp_path).rows
    assert row.steps == 2  # at 0.2 and 0.4 s; the action of 0.6 s would be too late


def test_the_times_of_a_trial_are_of_one_clock(tmp_path: Path) -> None:
    """The simulated clock of this robot is faster; the journal's times add up all the same."""
    session = Session(tmp_path, ["enter", *"-----", "s", "enter"] * 2)
    session.session.run()
    first, second = read_journal(tmp_path).rows
    for row in (first, second):
        assert row.open_s is not None
        assert row.sim_s is not None
        assert row.wait_s is not None
        assert row.sim_s + row.wait_s <= row.end_time - row.start_time + 0.001
        assert row.sim_s < 0.4  # by its own clock, a trial takes 0.5 s
    assert second.open_s is not None
    assert second.start_time - second.open_s >= first.end_time - 0.001
    record = load_run(tmp_path).record
    assert record.protocol["benchmark"]["clock"] == "simulated"
    assert any("simulation's clock" in line for line in record.warnings)


def test_a_signal_ends_the_session_between_two_steps(tmp_path: Path) -> None:
    session = Session(tmp_path, ["enter", *"----"])
    with session.signals, session.signals.deferred():
        _raise_after(session, 3)
        with pytest.raises(KeyboardInterrupt):
            session.session.run()
    assert read_journal(tmp_path).rows == []


def _raise_after(session: Session, steps: int) -> None:
    import signal

    send = session.robot.send_action

    def counting(action: dict[str, float]) -> dict[str, float]:
        if len(session.robot.sent) == steps:
            signal.raise_signal(signal.SIGTERM)
        return send(action)

    session.robot.send_action = counting  # type: ignore[method-assign]
