"""Failure analysis: start states, stalls, groups of failures, and plots under videos."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from proctor.benchmarks.base import xyz
from proctor.benchmarks.guarded_sim import GuardedSim
from proctor.engine.worker.state_sampler import StateSampler
from proctor.errors import PluginError
from proctor.evaluation.run import Evaluation
from proctor.features import Array
from proctor.report.run.failure_analysis import analyse_failures
from proctor.report.run.page_data import page_data
from proctor.report.run.run import load_run
from proctor.runs.journal import EpisodeRecord, read_journal
from proctor.runs.states import STATES_FILE, make_state_record, read_states
from proctor.runs.step_values import StepValues, read_step_values, step_values_path
from proctor.types import EpisodeResult, EpisodeSpec, Outcome, StateTrace, StepResult, Task
from tests.run_folders import RECORD, eight_episodes, episode, write_run

Run = Callable[..., Evaluation]
WON, LOST = Outcome.SUCCESS, Outcome.FAILURE
NAMES = ("block x", "block y", "robot hand x")
STEPS = np.arange(0, 101, 10)


def trace(
    path: Sequence[Sequence[float]], names: tuple[str, ...] = NAMES, best: float = 0.0
) -> StateTrace:
    states = np.array(path, np.float32)
    steps = np.linspace(0, 100, len(states)).astype(np.int64)
    return StateTrace(names, steps, states, np.full(len(states), best, np.float32))


def pushed_until(step: int, end: tuple[float, float]) -> StateTrace:
    """Return an episode whose block moves to ``end`` by ``step``, while the hand always moves."""
    share = np.minimum(1.0, STEPS / max(1, step))
    hand = np.where(STEPS % 20 == 0, 1.0, -1.0)
    return trace(np.column_stack([end[0] * share, end[1] * share, hand]).tolist())


def failures(n: int, first: int = 0) -> list[EpisodeRecord]:
    return [episode(0, index, LOST) for index in range(first, first + n)]


def write_states(folder: Path, rows: list[EpisodeRecord], traces: list[StateTrace]) -> None:
    lines = b""
    for row, states in zip(rows, traces, strict=True):
        task = Task(row.suite, row.task_id, row.task, "", 100, fps=10)
        spec = EpisodeSpec(task, row.episode_index, row.seed)
        record = make_state_record(EpisodeResult(spec, row.outcome, states=states))
        lines += msgspec.json.encode(record) + b"\n"
    (folder / STATES_FILE).write_bytes(lines)


def test_an_episode_stalled_when_its_objects_stop_although_the_robot_moves_on() -> None:
    rows = failures(4)
    traces = {
        row.key: pushed_until(at, (5, 5)) for row, at in zip(rows, (0, 30, 60, 100), strict=True)
    }
    analysis = analyse_failures(rows, traces)["point", 0]
    # The block is within 5% of its range of the end one sample before it stops, if at all.
    assert [analysis.stalled[row.key] for row in rows] == [10, 30, 60, 100]


def test_where_no_object_ever_moves_the_robot_counts() -> None:
    rows = failures(4)
    hand = np.minimum(STEPS, 40) / 40
    still = trace(np.column_stack([0 * hand, 0 * hand, hand]).tolist())
    analysis = analyse_failures(rows, {row.key: still for row in rows})["point", 0]
    assert set(analysis.stalled.values()) == {40}


def test_without_sampled_states_the_reward_says_when_progress_ended() -> None:
    rows = failures(4)
    states = np.full((11, 3), np.nan, np.float32)
    states[[0, -1]] = [[0, 0, 0], [1, 1, 1]]
    best = np.minimum(STEPS, 70).astype(np.float32)
    known = StateTrace(NAMES, STEPS, states, best)
    analysis = analyse_failures(rows, {row.key: known for row in rows})["point", 0]
    assert analysis.by_reward
    assert set(analysis.stalled.values()) == {70}


def test_failures_are_grouped_by_when_and_where_they_ended() -> None:
    rows = failures(24)
    early, late = [pushed_until(20, (9, -9))] * 14, [pushed_until(80, (-9, 9))] * 10
    traces = dict(zip((row.key for row in rows), early + late, strict=True))
    groups = analyse_failures(rows, traces)["point", 0].groups
    assert [len(group.episodes) for group in groups] == [14, 10]
    assert [group.stalled[1] for group in groups] == [20, 80]
    assert groups[0].ends["block x"] == 9
    assert set(groups[0].examples) <= set(groups[0].episodes)


def test_few_failures_are_not_grouped_and_successes_never() -> None:
    rows = [*failures(3), *(episode(0, index, WON) for index in range(3, 20))]
    analysis = analyse_failures(rows, {row.key: pushed_until(20, (1, 1)) for row in rows})
    assert analysis["point", 0].groups == []
    assert set(analysis["point", 0].stalled) == {row.key for row in rows[:3]}


def test_only_coordinates_that_differ_at_the_start_are_on_the_map() -> None:
    rows = failures(4)
    traces = {
        row.key: trace([[row.episode_index, 7.0, np.nan], [0, 0, 0], [0, 0, 0]]) for row in rows
    }
    analysis = analyse_failures(rows, traces)["point", 0]
    assert analysis.names == ["block x"]
    assert analysis.starts[rows[2].key] == [2.0]


def test_the_page_has_starts_stalls_and_groups(tmp_path: Path) -> None:
    rows = [*failures(8), episode(0, 8, WON), episode(0, 9, Outcome.ERROR)]
    folder = write_run(tmp_path, rows, replace(RECORD, planned_episodes=10))
    ends = [(float(index), 1.0) for index in range(9)]
    write_states(folder, rows[:9], [pushed_until(30, end) for end in ends])
    data = page_data(load_run(folder))["failures"]
    json.dumps(data, allow_nan=False)
    assert data["starts"][9] is None, "an errored episode has no states"
    assert data["stalled"][8] is None, "a success did not stall"
    assert sum(len(group["episodes"]) for group in data["tasks"][0]["groups"]) == 8


def test_a_run_of_an_older_version_has_no_analysis(tmp_path: Path) -> None:
    data = page_data(load_run(write_run(tmp_path, eight_episodes())))["failures"]
    assert data == {"tasks": [], "starts": None, "stalled": None, "plots": {}}


@pytest.mark.parametrize(
    "line",
    [
        b"{}\n",
        b'{"suite": "point", "ta',
        b'{"suite":"point","task_id":0,"episode_index":0,"names":["x"],"steps":[0,1],'
        b'"states":"AAAA","best_reward":"AAAAAAAAAAA="}\n',
        b"\xff\n",
    ],
)
def test_a_damaged_line_of_states_is_left_out(tmp_path: Path, line: bytes) -> None:
    rows = failures(4)
    folder = write_run(tmp_path, rows)
    write_states(folder, rows[1:], [pushed_until(30, (1, 1))] * 3)
    whole = (folder / STATES_FILE).read_bytes()
    (folder / STATES_FILE).write_bytes(whole + line)
    assert len(read_states(folder)) == 3
    assert page_data(load_run(folder))["failures"]["starts"][0] is None


def test_an_evaluation_records_where_each_episode_started_and_ended(run: Run) -> None:
    evaluation = run(policy__type="random", eval__n_episodes=3)
    states = read_states(evaluation.path)
    assert set(states) == {row.key for row in evaluation.rows}
    first = states["point", 0, 0]
    assert first.names == ("robot x", "robot y", "goal x", "goal y")
    rng = np.random.default_rng([evaluation.rows[0].seed, 0])
    assert first.states[0] == pytest.approx(rng.uniform(-1, 1, 4), abs=1e-6)
    assert first.steps[-1] == evaluation.rows[0].steps


def test_a_resumed_run_appends_its_states(run: Run) -> None:
    begun = run(policy__type="random", eval__n_episodes=1)
    (begun.path / STATES_FILE).open("ab").write(b'{"cut off')
    run(policy__type="random", eval__n_episodes=3, output_dir=str(begun.path), resume=True)
    assert len(read_states(begun.path)) == len(read_journal(begun.path).rows)


def test_a_filmed_episode_has_its_actions_and_rewards_beside_the_video(run: Run) -> None:
    evaluation = run(policy__type="random", video__episodes=1, env__endless=True)
    row = evaluation.rows[0]
    values = read_step_values(evaluation.path, row.key)
    assert values is not None
    assert (len(values.rewards), len(values.actions[0])) == (row.steps, 2)
    assert sum(values.rewards) == pytest.approx(row.sum_reward, rel=1e-3)
    assert values.steps_per_s == 10
    plot = page_data(load_run(evaluation.path))["failures"]["plots"]["0"]
    assert plot["steps"] == row.steps
    assert len(base64.b64decode(plot["reward"]["points"])) == row.steps


def test_a_long_curve_keeps_its_peaks_on_the_page(tmp_path: Path) -> None:
    rows = failures(1)
    folder = write_run(tmp_path, rows, replace(RECORD, planned_episodes=1))
    video = folder / rows[0].video
    video.parent.mkdir(parents=True)
    video.write_bytes(b"")
    rewards = [0.0] * 5000
    rewards[2345] = 1.0
    values = StepValues(10.0, [[0.5]] * 5000, rewards)
    (folder / step_values_path(rows[0].key)).write_bytes(msgspec.json.encode(values))
    plot = page_data(load_run(folder))["failures"]["plots"]["0"]
    points = base64.b64decode(plot["reward"]["points"])
    assert (len(points), max(points), plot["reward"]["high"]) == (200, 255, 1.0)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"steps_per_s":0,"actions":[],"rewards":[]}'])
def test_damaged_values_cost_the_plot_only(tmp_path: Path, content: bytes) -> None:
    rows = failures(1)
    folder = write_run(tmp_path, rows, replace(RECORD, planned_episodes=1))
    video = folder / rows[0].video
    video.parent.mkdir(parents=True)
    video.write_bytes(b"")
    (folder / step_values_path(rows[0].key)).write_bytes(content)
    assert page_data(load_run(folder))["failures"]["plots"] == {}


def test_values_are_never_read_through_a_link(tmp_path: Path) -> None:
    rows = failures(1)
    folder = write_run(tmp_path / "run", rows, replace(RECORD, planned_episodes=1))
    outside = tmp_path / "outside.json"
    outside.write_bytes(msgspec.json.encode(StepValues(10.0, [[0.5]], [1.0])))
    link = folder / step_values_path(rows[0].key)
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    assert read_step_values(folder, rows[0].key) is None


class PlainSim:
    """A simulator of a plug-in that was written before ``coordinates``."""

    def __init__(self, size: int = 4) -> None:
        self.size = size

    def physics(self) -> Array:
        return np.arange(self.size, dtype=np.float64)

    def reset(self, spec: EpisodeSpec) -> None:
        pass

    def step(self, action: Array) -> StepResult:
        return StepResult(0.0, success=False, terminated=False)

    def observe(self, keys: Sequence[str]) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


class BrokenCoordinates(PlainSim):
    def coordinates(self) -> dict[str, float]:
        return {"block x": float("one")}


def sampled(sim: PlainSim) -> StateTrace | None:
    sampler = StateSampler(GuardedSim(sim, {}), 48)
    sampler.begin(sim.physics())
    for step in range(1, 49):
        sampler.after_step(step, float(step))
    return sampler.end(48, sim.physics(), 48.0)


def test_a_simulator_without_coordinates_gives_the_numbers_of_its_physics_at_both_ends() -> None:
    found = sampled(PlainSim())
    assert found is not None
    assert found.names == ("state 0", "state 1", "state 2", "state 3")
    assert found.states[-1].tolist() == [0, 1, 2, 3]
    assert np.isnan(found.states[1:-1]).all()
    assert found.best_reward[-1] == 48
    assert len(found.steps) == 25
    assert sampled(PlainSim(size=500)) is None


def test_coordinates_that_are_no_numbers_are_the_plug_ins_mistake() -> None:
    with pytest.raises(PluginError):
        sampled(BrokenCoordinates())


def test_a_position_gets_a_name_for_each_axis() -> None:
    assert xyz("cube", np.array([1.0, 2.0])) == {"cube x": 1.0, "cube y": 2.0}
