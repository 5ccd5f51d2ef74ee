"""``proctor.evaluate`` with functions and objects, ``proctor.load_run``, and plain environments."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

import proctor
from proctor import PolicyFunction
from proctor.cli import main
from proctor.errors import MissingExtra, UsageError
from proctor.evaluation.gym.vector import GymEnv, _flat
from proctor.evaluation.run import Evaluation
from proctor.features import Array
from proctor.policies.base import Batch, Placement, Policy, PolicySpec
from proctor.report.run.run import Run
from proctor.runs.folder import RunFolder
from proctor.types import EpisodeSpec
from tests.conftest import digests
from tests.refusals import refuses

STATE = "observation.state"


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Evaluation]:
    """Evaluate on the fake benchmark, in this process; each call gets a folder of its own."""
    calls = iter(range(100))

    def play(policy: Any, **settings: Any) -> Evaluation:
        how = {"n_episodes": 3, "output_dir": tmp_path / f"run{next(calls)}"} | settings
        how["video"] = {"episodes": 0}
        env = {"type": "fake", "episode_length": 8}
        return proctor.evaluate(policy, env, eval={"use_async_envs": False}, **how)

    return play


def still(observation: dict[str, Any]) -> list[float]:
    return [0.0, 0.0]


def middle(observation: dict[str, Any]) -> Array:
    return -observation[STATE]


def test_a_function_plays_as_a_policy_and_sees_one_moment(play: Any) -> None:
    seen: list[dict[str, Any]] = []

    def look(observation: dict[str, Any]) -> Array:
        seen.append(observation)
        return middle(observation)

    run = play(look, n_episodes=1)
    assert {key: np.shape(value) for key, value in seen[0].items()} == {
        "observation.image": (16, 16, 3),
        STATE: (2,),
        "task": (),
    }
    assert seen[0]["task"] == "reach the goal"
    assert len(seen) == run.rows[0].steps


def test_a_function_for_batches_or_with_chunks_gives_the_same_episodes(play: Any) -> None:
    def of_two(observation: dict[str, Any]) -> list[list[float]]:
        return [[0.0, 0.0], [0.0, 0.0]]

    def for_all(observations: dict[str, Any]) -> Array:
        assert len(observations["task"]) == len(observations[STATE])
        return np.zeros((len(observations[STATE]), 2))

    alone = play(still)
    assert digests(play(PolicyFunction(of_two, inputs=[STATE]))) == digests(alone)
    assert digests(play(PolicyFunction(for_all, [STATE], batched=True))) == digests(alone)


def test_what_a_function_does_not_look_at_is_not_rendered(play: Any) -> None:
    assert play(still).rows[0].renders
    assert play(PolicyFunction(still, inputs=STATE)).rows[0].renders == 0


def test_tensors_of_a_graph_are_taken(play: Any) -> None:
    class Tensor:
        """What torch's tensors are, as far as we ask."""

        def detach(self) -> Tensor:
            return self

        def cpu(self) -> Array:
            return np.zeros(2)

    assert play(lambda observation: Tensor()).complete


class Counting(Policy):
    """Counts its calls, and asks to run in a worker."""

    spec = PolicySpec("counting", (STATE,), placement=Placement.WORKER)

    def __init__(self, version: str | None = None) -> None:
        self.asked = self.ended = 0
        self.closed = False
        self.version = version

    def new_episode(self, spec: EpisodeSpec) -> list[int]:
        return []

    def act(self, batch: Batch) -> Array:
        self.asked += len(batch.queries)
        for query in batch.queries:
            query.state.append(query.step)
        return np.zeros((len(batch.queries), 1, 2))

    def end_episode(self, state: list[int]) -> None:
        self.ended += bool(state == list(range(len(state))))

    def close(self) -> None:
        self.closed = True

    def protocol(self) -> dict[str, Any]:
        return {} if self.version is None else {"weights": self.version}


def test_an_object_acts_in_this_process_and_stays_the_callers(play: Any) -> None:
    policy = Counting()
    runs = [play(policy), play(policy)]
    assert policy.asked == sum(row.steps for run in runs for row in run.rows)
    assert policy.ended == 6
    assert not policy.closed


@pytest.mark.parametrize(
    ("first", "second", "goes_on"),
    [
        (Counting("a"), Counting("a"), True),
        (Counting("a"), Counting("b"), False),
        (PolicyFunction(still, version="1"), PolicyFunction(still, version="1"), True),
        (PolicyFunction(still, version="1"), PolicyFunction(still, version="2"), False),
        (still, still, False),
    ],
)
def test_a_run_of_an_object_is_resumed_by_one_that_says_it_is_the_same(
    first: Any, second: Any, goes_on: bool, play: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    play(first, output_dir=folder, n_episodes=1)
    again = {"output_dir": folder, "n_episodes": 2, "resume": True}
    if goes_on:
        assert play(second, **again).complete
    else:
        with pytest.raises(UsageError) as refused:
            play(second, **again)
        assert "--resume" in str(refused.value)


@pytest.mark.parametrize("n_envs", [0, -1, 1.5, "2"])
def test_a_number_of_environments_that_is_none_is_refused(n_envs: Any) -> None:
    with refuses(UsageError, "flag.out-of-range"):
        proctor.make_env({"type": "fake"}, n_envs=n_envs)


def test_a_run_is_resumed_by_its_folder_alone(play: Any, tmp_path: Path) -> None:
    env = {"type": "fake", "episode_length": 5}
    proctor.evaluate("random", env, n_episodes=2, output_dir=tmp_path / "run")
    more = proctor.evaluate(output_dir=tmp_path / "run", resume=True, n_episodes=4)
    assert [row.steps for row in more.rows] == [5] * 4
    with refuses(UsageError, "flag.missing"):
        proctor.evaluate("random", "fake", resume=True)
    with refuses(UsageError, "run.other-settings"):
        proctor.evaluate("zero", "fake", output_dir=tmp_path / "run", resume=True)


def test_no_command_can_run_an_object_again(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = play(still).path
    record = RunFolder(path).read()
    assert record is not None
    assert record.given["policy.type"] == "python"
    assert record.given["policy.name"] == "still"
    assert list(record.protocol["policy"]["code"])[-1].endswith("test_python_door.py")
    assert main(["audit", str(path)]) == 2
    assert "'still' is a Python object" in capsys.readouterr().err
    assert main(["eval", "--policy.type=python", "--env.type=fake"]) == 2
    assert "--policy.type=python is a Python object" in capsys.readouterr().err


def test_numbers_of_numpy_lists_and_paths_are_taken(tmp_path: Path) -> None:
    run = proctor.evaluate(
        {"type": "zero"},
        {"type": "fake", "n_tasks": np.int32(2), "task_ids": (0, np.int64(1))},
        task=["point"],
        n_episodes=np.int64(2),
        batch_size=np.uint8(1),
        seed=np.int64(7),
        eval={"use_async_envs": np.bool_(False), "episodes": np.arange(2)},
        output_dir=tmp_path / "run",
    )
    assert [(row.task_id, row.seed) for row in run.rows] == [(0, 7), (0, 8), (1, 7), (1, 8)]
    assert json.loads((run.path / "run.json").read_text())["config"]["given"]["seed"] == 7


MISTAKES = {
    "n_episode": ({"n_episode": 3}, "'n_episodes'"),
    "polcy": ({"polcy": 3}, "'policy'"),
    "nested": ({"eval": {"max_retry": 0}}, "--eval.max_retries"),
    "no section": ({"eval": 3}, "eval=3"),
    "twice": ({"n_episodes": 1, "eval": {"n_episodes": 2}}, "n_episodes"),
    "type": ({"policy": "exprt"}, "'expert'"),
    "no policy": ({"policy": 3}, "policy=3"),
    "class": ({"policy": Counting}, "policy=Counting"),
    "lerobot": (
        {"policy": types.SimpleNamespace(select_action=still)},
        "save_pretrained(FOLDER)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_an_argument_is_named(mistake: str) -> None:
    settings, named = MISTAKES[mistake]
    with pytest.raises(UsageError) as refused:
        proctor.evaluate(**{"policy": "zero", "env": "fake", **settings})
    assert named in str(refused.value)


def test_a_run_is_read_again_as_records_and_tables(play: Any, run: Any) -> None:
    there = run(env__n_tasks=2, eval__n_episodes=2, env__faults={"0/1/3": "raise"})
    loaded = proctor.load_run(str(there.path))
    assert isinstance(loaded, Run)
    assert loaded.episodes == sorted(there.rows, key=lambda row: row.key)
    assert loaded.complete
    assert [(one.task, one.tally.episodes) for one in loaded.per_task] == [
        ("point-0", 2),
        ("point-1", 2),
    ]
    assert loaded.per_task[0].rate == loaded.per_task[0].tally.rate
    assert loaded.per_group.keys() == {"point"}
    assert loaded.config["env"]["n_tasks"] == 2
    assert str(loaded) == str(there)
    rows = list(csv.DictReader(io.StringIO(loaded.to_csv())))
    assert [row["outcome"] for row in rows] == [row.outcome.value for row in loaded.rows]
    assert [int(row["seed"]) for row in rows] == [1000, 1001] * 2
    lines = loaded.to_markdown().splitlines()
    assert [line.split("|")[2].strip() for line in lines[2:5]] == ["point-0", "point-1", "all"]
    assert not any(line.startswith("|") for line in lines[5:])


def test_a_data_frame_is_made_where_pandas_is(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = proctor.load_run(play("zero").path)
    assert isinstance(loaded, Run)
    frames = types.SimpleNamespace(DataFrame=lambda rows, columns: (rows, columns))
    monkeypatch.setitem(sys.modules, "pandas", frames)
    rows, columns = loaded.to_pandas()
    assert [row["seed"] for row in rows] == [1000, 1001, 1002]
    assert set(rows[0]) == set(columns)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refuses(MissingExtra, "extra.missing") as refused:
        loaded.to_pandas()
    assert "proctor[pandas]" in str(refused.value)


def test_a_report_is_written_as_csv_and_markdown(
    play: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = play("zero").path
    (path / "report.html").unlink()
    assert main(["report", str(path), "--csv", "--markdown"]) == 0
    assert capsys.readouterr().out.split() == [
        "csv:", str(path / "episodes.csv"), "markdown:", str(path / "report.md"),
    ]  # fmt: skip
    assert len((path / "episodes.csv").read_text().splitlines()) == 4
    assert not (path / "report.html").exists(), "it was not asked for"
    assert main(["report", str(path), "--markdown=-"]) == 0
    assert capsys.readouterr().out == (path / "report.md").read_text()
    assert main(["report", str(path), "--marcdown=-"]) == 2
    assert "--markdown" in capsys.readouterr().err


def test_python_m_proctor_is_the_command() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "proctor", "--version"], capture_output=True, text=True
    )
    assert (told.returncode, told.stdout.split()[0]) == (0, "proctor")


def test_a_plain_environment_is_what_gymnasium_expects() -> None:
    env = proctor.make_env({"type": "fake", "episode_length": 3}, vector=False)["point"][0]
    assert isinstance(env, gymnasium.Env)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(we recommend|not within|Box observation).*")
        check_env(env, skip_render_check=True)
    env.reset(seed=3)
    ends = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    assert all(type(end) is bool for pair in ends for end in pair)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros(2, np.float32))
    env.close()


def test_a_plain_environment_plays_the_episode_of_its_seed(run: Any) -> None:
    (row,) = run(policy__type="zero", eval__n_episodes=1, seed=5).rows
    env = proctor.make_env({"type": "fake"}, vector=False)["point"][0]
    assert isinstance(env, GymEnv)
    env.reset(seed=5)
    ended, info = False, {}
    while not ended:
        _, _, terminated, truncated, info = env.step(np.zeros(2, np.float32))
        ended = terminated or truncated
    assert info["result"].digest == row.digest
    env.close()


def test_cameras_of_a_plain_environment_stand_side_by_side() -> None:
    box = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    nested = {"pixels": spaces.Dict({"top": box, "left": box}), "agent_pos": box}
    assert list(_flat(nested)) == ["pixels.left", "pixels.top", "agent_pos"]
    assert _flat({"pixels": {"top": 1}, "agent_pos": 2}) == {"pixels.top": 1, "agent_pos": 2}


def test_plain_environments_come_one_at_a_time() -> None:
    with refuses(UsageError, "flag.conflict"):
        proctor.make_env({"type": "fake"}, n_envs=2, vector=False)
