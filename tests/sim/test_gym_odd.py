"""Gymnasium environments with one peculiarity each: texts, horizons, images, no success signal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proctor
from proctor.benchmarks.gym import probe
from proctor.benchmarks.gym.env_inspection import inspect_env
from proctor.benchmarks.gym.probe import ProbeRequest
from proctor.benchmarks.gym.registered import GymOpener
from proctor.benchmarks.gym.success import parse_success
from proctor.cli import main
from proctor.datasets.format.info_file import read_info
from proctor.errors import UsageError
from proctor.evaluation.tracking import wandb_results
from proctor.features import FILM, REWARD, SUCCESS
from proctor.report.run.page_data import page_data
from proctor.report.run.run import load_run
from proctor.stats.anytime import NOT_MONITORED
from proctor.system.graphics.gl import choose_backend_on_import
from proctor.testing import check_sim
from proctor.types import Outcome
from tests.refusals import refuses
from tests.sim.adapted_benchmarks import made, make

pytestmark = pytest.mark.sim


def gym(name: str, **settings: Any) -> dict[str, Any]:
    return {"type": "gym", "id": f"tests.sim.small_gym:proctor/{name}-v0", **settings}


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect environments in this process, which saves the second that a new process takes."""
    monkeypatch.setattr("proctor.benchmarks.gym.benchmark.probe_env", inspect_env)


def play(folder: Path, env: dict[str, Any], **settings: Any) -> Any:
    how = {"n_episodes": 2, "video": {"episodes": 0}} | settings
    return proctor.evaluate(
        "random", env, eval={"use_async_envs": False}, output_dir=folder / "run", **how
    )


@pytest.mark.usefixtures("in_this_process")
def test_a_text_that_is_always_the_same_is_the_instruction() -> None:
    benchmark: Any = made(gym("Worded", success="none"))
    (task,) = benchmark.tasks()
    assert task.instruction == "open the door quickly"
    assert set(benchmark.features()) == {"observation.a", FILM}
    assert not benchmark.notes
    check_sim(benchmark, make=make)


@pytest.mark.usefixtures("in_this_process")
def test_a_text_that_differs_is_left_out_and_that_is_said() -> None:
    benchmark: Any = made(gym("Worded", success="none", kwargs={"varied": True}))
    assert benchmark.tasks()[0].instruction == ""
    assert "differs between episodes" in benchmark.notes[0]
    said: Any = made(gym("Worded", kwargs={"varied": True}, success="none", instruction="go"))
    assert said.tasks()[0].instruction == "go"


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("name", "horizon"), [("Ending", 7), ("Saying", 9)])
def test_a_horizon_that_nobody_registered_is_found(name: str, horizon: int) -> None:
    assert made(gym(name, success="truncated")).tasks()[0].max_steps == horizon


@pytest.mark.usefixtures("in_this_process")
def test_without_a_horizon_that_is_said_before_anything_of_success() -> None:
    with refuses(UsageError, "env.no-horizon") as refused:
        made(gym("Endless", success="info.nothing"))
    assert "--env.episode_length" in str(refused.value)
    assert made(gym("Endless", success="truncated", episode_length=3)).tasks()[0].max_steps == 3


@pytest.mark.usefixtures("in_this_process")
def test_a_key_that_looks_like_success_is_proposed() -> None:
    with refuses(UsageError, "env.no-success-key") as refused:
        made(gym("Saying"))
    assert "--env.success=info.success" in str(refused.value)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("rule", "solved_at"),
    [
        ("truncated", [7]),
        ("return>=7", [7]),
        ("return>=7.5", []),
        ("info.success", [2]),
        ("info.success at_end", []),
        ("terminated", []),
    ],
)
def test_rules_for_the_whole_episode(rule: str, solved_at: list[int]) -> None:
    benchmark = made(gym("Ending", success=rule))
    (task,) = benchmark.tasks()
    sim = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 3))
    steps = [sim.step(np.zeros(2)) for _ in range(7)]
    assert [number for number, step in enumerate(steps, 1) if step.success] == solved_at
    assert [step.terminated for step in steps] == [False] * 6 + [True]


@pytest.mark.usefixtures("in_this_process")
def test_rewards_only_are_no_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("av")
    env = gym("Ending", success="none")
    run = play(tmp_path, env, video={"episodes": 1})
    assert [row.outcome for row in run.rows] == [Outcome.ENDED] * 2
    assert [row.success_once for row in run.rows] == [None, None]
    assert (run.tally.rate, run.tally.interval, run.tally.avg_sum_reward) == (None, None, 7.0)
    assert str(run) == "not judged n=2, mean reward 7.0"
    assert run.filmed.videos == 1, "no failure is known, so the first is shown"
    assert "not judged n=2 | 7.0" in run.to_markdown()
    with pytest.raises(UsageError, match="rewards only"):
        load_run(run.path).require_rate()
    folder = str(run.path)
    assert main(["report", folder]) == 0
    assert main(["audit", folder, f"--env.id={env['id']}"]) == 0
    flags = [f"--env.{name}={value}" for name, value in env.items()] + ["--policy.type=random"]
    stops = [*flags, "--eval.stop_when=ci_width<0.5", f"--output_dir={tmp_path / 'b'}"]
    assert main(["eval", *stops]) == 2
    assert "--env.success=none gives rewards only" in capsys.readouterr().err


@pytest.mark.usefixtures("in_this_process")
def test_rollouts_of_unknown_success_have_no_column_of_it(tmp_path: Path) -> None:
    env = gym("Ending", success="none")
    play(tmp_path, env, record=tmp_path / "rollouts", record_images=False)
    features = read_info(tmp_path / "rollouts").features
    assert REWARD in features
    assert SUCCESS not in features


@pytest.mark.usefixtures("in_this_process")
def test_an_unknown_success_is_not_recorded_where_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--env.{name}={value}" for name, value in gym("Ending", success="none").items()]
    how = ["--policy.type=random", "--record.keep=all", f"--record.extra={SUCCESS}"]
    assert main(["record", *flags, *how, f"--dataset.root={tmp_path / 'demos'}"]) == 2
    assert SUCCESS in capsys.readouterr().err
    assert not (tmp_path / "demos").exists()


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("vector", [True, False])
def test_make_env_does_not_say_is_success_where_it_is_unknown(vector: bool) -> None:
    def infos(rule: str) -> list[dict[str, Any]]:
        found: Any = proctor.make_env(gym("Ending", success=rule), 1, False, vector=vector)
        (env,) = (env for of_suite in found.values() for env in of_suite.values())
        try:
            _, info = env.reset(seed=3)
            action = np.zeros((1, 2) if vector else 2, np.float32)
            return [info, *(env.step(action)[4] for _ in range(7))]
        finally:
            env.close()

    assert all("is_success" in info for info in infos("terminated"))
    assert not any("is_success" in info for info in infos("none"))


@pytest.mark.usefixtures("in_this_process")
def test_reports_and_wandb_count_no_successes_where_they_are_unknown(tmp_path: Path) -> None:
    run = play(tmp_path, gym("Ending", success="none"))
    page = page_data(load_run(run.path))
    assert [page["overall"]["k"], *(task["k"] for task in page["tasks"])] == [None, None]
    results = wandb_results(run.path, None, NOT_MONITORED)
    assert [task["successes"] for task in results.tasks] == [None]


@pytest.mark.usefixtures("in_this_process")
def test_what_a_function_makes_is_filmed_too() -> None:
    assert FILM in made(gym("Function", success="none")).features()


@pytest.mark.usefixtures("in_this_process")
def test_what_cannot_be_drawn_is_played_and_that_is_said(tmp_path: Path) -> None:
    benchmark: Any = made(gym("Unseen", success="none"))
    assert benchmark.notes == ("no videos: rendering fails with RuntimeError: no screen at all",)
    assert play(tmp_path, gym("Unseen", success="none")).complete


def test_an_error_keeps_its_exception_and_its_line() -> None:
    with refuses(UsageError, "env.cannot-open") as refused:
        made(gym("Broken"))
    text = str(refused.value)
    assert "ValueError: no world: file is missing see the manual" in text
    assert "tests/sim/small_gym.py:" in text
    assert "\n" not in text


def test_the_error_for_a_dead_process_names_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_CHILD", "tests.sim.dies_by_signal")
    with refuses(UsageError, "env.cannot-open") as refused:
        made(gym("Ending"))
    assert "SIGSEGV" in str(refused.value)
    assert "oh no" in str(refused.value)


@pytest.mark.parametrize(
    ("id", "hint"),
    [
        (
            "FetchReach-v4",
            "--env.id=gymnasium_robotics:FetchReach",
        ),
        ("MiniGrid-Empty-5x5-v0", "--env.id=minigrid:MiniGrid-Empty-5x5-v0"),
        ("dm_control/walker-run-v0", "--env.id=shimmy:dm_control/walker-run-v0"),
    ],
)
def test_the_package_that_registers_a_known_id_is_named(id: str, hint: str) -> None:
    with refuses(UsageError, "env.not-found") as refused:
        inspect_env(ProbeRequest(GymOpener(id, {}), parse_success("none"), None))
    assert hint in str(refused.value)


def test_a_package_that_is_not_installed_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    opener = GymOpener("gymnasium_robotics:FetchReach-v4", {})
    with refuses(UsageError, "env.not-found") as refused:
        inspect_env(ProbeRequest(opener, parse_success("none"), None))
    assert "pip install gymnasium-robotics" in str(refused.value)


def test_a_backend_is_chosen_when_mujoco_is_imported_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def chosen(*, needed: bool) -> dict[str, str]:
        asked.append(needed)
        return {"MUJOCO_GL": "chosen"}

    monkeypatch.setattr("proctor.system.graphics.gl.gl_variables", chosen)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    monkeypatch.setattr(sys, "meta_path", [])  # nobody finds it: it is not really imported
    for name in ("no_such_module", "mujoco", "mujoco"):
        with choose_backend_on_import(), pytest.raises(ModuleNotFoundError):
            __import__(name)
        assert asked == [True] * (name == "mujoco")
    assert os.environ["MUJOCO_GL"] == "chosen"
    assert sys.meta_path == []


def test_an_environment_of_a_module_in_the_current_folder_is_played_in_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrapped_here.py").write_text(
        "import gymnasium\n"
        "from tests.sim.small_gym import Ending\n"
        "gymnasium.register('MyGrid-v0', Ending, max_episode_steps=5)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2]), *filter(None, sys.path)])
    words = ["--env.type=gym", "--env.id=wrapped_here:MyGrid-v0", "--env.success=truncated"]
    words += ["--policy.type=zero", "--eval.n_episodes=1", "--output_dir=run"]
    assert main(["eval", *words]) == 0
    run = load_run("run")
    assert run.tally.successes == 1
    assert list(run.record.protocol["benchmark"]["files"]) == ["wrapped_here.py"]


@pytest.mark.usefixtures("in_this_process")
def test_an_episode_whose_success_is_unknown_is_no_failure(tmp_path: Path) -> None:
    results = play(tmp_path, gym("HalfJudged"), n_episodes=4)
    known = {row.episode_index: row.outcome for row in results.rows}
    assert [known[i] is Outcome.ERROR for i in range(4)] == [False, True, False, True]
    assert results.tally.diverged == 0
    assert results.tally.episodes == 2
