"""Gymnasium environments as benchmarks, and the errors for those that cannot be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from proctor import evaluate
from proctor.benchmarks.gym import probe as gym_probe
from proctor.benchmarks.gym.env_inspection import inspect_env
from proctor.benchmarks.gym.probe import ProbeRequest
from proctor.benchmarks.gym.registered import GymOpener
from proctor.benchmarks.gym.success import parse_success
from proctor.cli import main
from proctor.errors import UsageError, WorkerError
from tests.refusals import refuses
from tests.sim.adapted_benchmarks import GYM, HUB, HUB_FILE, made
from tests.sim.small_gym import Reach

pytestmark = pytest.mark.sim


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect environments in this process, which saves the second that a new process takes."""
    monkeypatch.setattr("proctor.benchmarks.gym.benchmark.probe_env", inspect_env)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    "id",
    [
        id
        for id, spec in gymnasium.registry.items()
        if "classic_control" in str(spec.entry_point) or "toy_text" in str(spec.entry_point)
    ],
)
@pytest.mark.filterwarnings("ignore:.*out of date.*:DeprecationWarning")
def test_gymnasiums_own_small_environments_are_evaluated(id: str, tmp_path: Path) -> None:
    run = evaluate(
        policy={"type": "random", "n_action_steps": 2, "inputs": ["observation.state"]},
        env={"type": "gym", "id": id, "success": "terminated", "episode_length": 10},
        eval={"n_episodes": 2, "use_async_envs": False},
        output_dir=tmp_path / "run",
    )
    assert len(run.rows) == 2
    assert not run.tally.errors
    assert all(row.steps for row in run.rows)


@pytest.mark.usefixtures("in_this_process")
def test_a_dict_observation_becomes_features_by_the_names_in_the_docs() -> None:
    benchmark = made(GYM)
    shapes = {key: (f.kind.value, f.shape) for key, f in benchmark.features().items()}
    assert shapes == {
        "observation.images.top": ("VISUAL", (8, 6, 3)),
        "observation.state": ("STATE", (1,)),
        "observation.environment_state": ("ENV", (2,)),
        "observation.touch": ("STATE", (3,)),
        "observation.film": ("FILM", (10, 12, 3)),
    }
    (task,) = benchmark.tasks()
    assert (task.suite, task.max_steps, task.fps) == ("proctor/Reach-v0", 15, 20)
    sim = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 3))
    seen = sim.observe(["observation.touch", "observation.state"])
    assert sorted(seen["observation.touch"]) == [0, 0, 1]
    assert seen["observation.state"].dtype == np.float32


@pytest.mark.usefixtures("in_this_process")
def test_each_dimension_of_an_action_is_drawn_and_clipped_by_its_own_bounds(
    tmp_path: Path,
) -> None:
    benchmark = made(GYM)
    assert (benchmark.action.low, benchmark.action.high) == ((-0.5, 0.0), (0.5, 1.0))
    (task,) = benchmark.tasks()
    sim: Any = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 3))
    sim.step(np.array([9.0, -9.0], np.float32))
    np.testing.assert_array_equal(
        sim._sim._env.unwrapped.given[-1], np.array([0.5, 0.0], np.float32)
    )
    run = evaluate(
        policy={"type": "random"},
        env=GYM,
        eval={"n_episodes": 2, "use_async_envs": False},
        output_dir=tmp_path / "run",
    )
    assert not any(row.clipped_steps for row in run.rows)


@pytest.mark.usefixtures("in_this_process")
def test_the_highest_of_a_discrete_action_is_played() -> None:
    benchmark = made({"type": "gym", "id": "FrozenLake-v1", "success": "reward>=1"})
    assert benchmark.action.size == 4
    (task,) = benchmark.tasks()
    sim: Any = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 3))
    sim.step(np.array([0.1, 0.2, 0.9, 0.3]))
    assert sim._sim._env.unwrapped.lastaction == 2


@pytest.mark.usefixtures("in_this_process")
def test_pictures_are_made_for_videos_only(tmp_path: Path) -> None:
    pytest.importorskip("av")
    settings: dict[str, Any] = {
        "policy": {"type": "random", "inputs": ["observation.images.top"]},
        "env": GYM,
        "eval": {"n_episodes": 2, "use_async_envs": False},
    }
    Reach.rendered = 0
    evaluate(**settings, video={"episodes": 0}, output_dir=tmp_path / "blind")
    assert Reach.rendered == 1, "the one that tells the size"
    run = evaluate(**settings, video={"which": "all"}, output_dir=tmp_path / "filmed")
    assert run.filmed.videos == 2
    assert not run.filmed.warnings
    assert Reach.rendered > 2


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    "rule", ["info.score.near", "terminated", "reward>=-0.2", "info.score.near>=1", "at_end"]
)
def test_ways_to_say_what_success_is(rule: str) -> None:
    benchmark = made({**GYM, "success": rule})
    (task,) = benchmark.tasks()
    sim = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 3))
    steps = [sim.step(np.array([0.3, 0.0], np.float32)) for _ in range(15)]
    solved = [step.success for step in steps]
    assert any(solved)
    assert not all(solved)
    assert [step.terminated for step in steps] == solved


def test_the_horizon_of_the_flag_wins_over_the_environments_own(tmp_path: Path) -> None:
    run = evaluate(
        policy={"type": "zero"},
        env={"type": "gym", "id": "Pendulum-v1", "success": "terminated", "episode_length": 230},
        eval={"n_episodes": 1, "use_async_envs": False},
        output_dir=tmp_path / "run",
    )
    assert [row.steps for row in run.rows] == [230]


def test_an_episode_in_which_the_key_never_came_is_an_error_not_a_failure() -> None:
    # Found before a run starts; this is for environments that say it in some episodes only.
    benchmark: Any = made(GYM)
    (task,) = benchmark.tasks()
    benchmark._opener.kwargs["silent"] = True
    sim = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 3))
    for _ in range(14):
        sim.step(np.zeros(2))
    with refuses(WorkerError, "worker.failed") as refused:
        sim.step(np.zeros(2))
    assert "'is_success'" in str(refused.value)


BAD = {
    "--env.id=CartPol-v1": "'CartPole-v1'",
    "--env.id=Nothing-v0": "--env.id=package:ID",
    "--env.id=no_such_package:Env-v0": "'no_such_package'",
    "--env.id=CartPole-v1": "--env.success=info.is_success",
    "--env.id=CartPole-v1 --env.success=won": "'won'",
    "--env.id=CartPole-v1 --env.success=reward>=much": "'much'",
    "--env.id=Blackjack-v1 --env.success=terminated": "--env.episode_length",
    "--env.id=CartPole-v1 --env.success=terminated --env.task=push": "'push'",
    "": "--env.id",
}


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", "--env.type=gym", "--policy.type=random", *words.split()]
    assert main([*command, f"--output_dir={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert BAD[words] in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "code", "named"),
    [
        ({"id": "CartPol-v1"}, "env.not-found", "--env.id=CartPol-v1"),
        ({"kwargs": {"wheels": 4}}, "env.cannot-open", "'wheels'"),
    ],
)
def test_an_error_of_the_other_process_is_one_line_with_its_code(
    settings: dict[str, Any], code: str, named: str
) -> None:
    with refuses(UsageError, code) as refused:
        made({"type": "gym", "id": "CartPole-v1", **settings})
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_another_process_finds_out_what_this_one_would() -> None:
    question = ProbeRequest(GymOpener("CartPole-v1", {}), parse_success("terminated"), None)
    learned, seen = gym_probe.probe_env(question), inspect_env(question)
    assert learned.distributions == ("gymnasium", "numpy")  # and what else this process imported
    assert set(learned.distributions) <= set(seen.distributions)
    assert learned == replace(
        seen, distributions=learned.distributions, variables=learned.variables
    )


class TestHub:
    def test_nothing_of_it_runs_without_trust(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        mark = tmp_path / "it_ran"
        monkeypatch.setenv("PROCTOR_TEST_MARK", str(mark))
        command = ["eval", "--env.type=hub", f"--env.path={HUB_FILE}", "--policy.type=random"]
        command += ["--eval.n_episodes=1", "--eval.batch_size=1", "--video.episodes=0"]
        assert main([*command, f"--output_dir={tmp_path / 'run'}"]) == 2
        assert "--trust_remote_code" in capsys.readouterr().err
        assert not mark.exists()
        trusting = [*command, "--trust_remote_code", f"--output_dir={tmp_path / 'run'}"]
        assert main(trusting) == 0
        assert mark.exists(), "the mark can be made"

    @pytest.mark.parametrize("flat", [True, False])
    def test_a_run_folder_cannot_give_the_leave_to_run_code(
        self,
        flat: bool,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        folder, mark = str(tmp_path / "run"), tmp_path / "it_ran"
        env = {**HUB, "task_ids": [0]}
        given: dict[str, Any] = {f"env.{k}": v for k, v in env.items()} if flat else {"env": env}
        evaluate(
            **given,
            policy={"type": "random"},
            eval={"n_episodes": 1, "use_async_envs": False},
            output_dir=folder,
        )
        monkeypatch.setenv("PROCTOR_TEST_MARK", str(mark))
        again: list[list[str]] = [
            ["audit", folder],
            ["eval", "--resume", f"--output_dir={folder}"],
            ["eval", f"--against={folder}", "--policy.type=zero", f"--output_dir={tmp_path / 'b'}"],
        ]
        for words in again:
            assert main(words) == 2
            assert "--trust_remote_code" in capsys.readouterr().err
        assert not mark.exists()
        assert main(["audit", folder, "--trust_remote_code"]) == 0
        assert mark.exists()

    @pytest.mark.parametrize("revision", [None, "main", "abc123"])
    def test_a_repository_needs_a_commit(self, revision: str | None) -> None:
        with refuses(UsageError, "env.not-pinned") as refused:
            made({**HUB, "path": "someone/something", "revision": revision})
        assert "--env.revision" in str(refused.value)

    def test_a_pinned_repository_is_downloaded_at_that_commit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit, asked = "a" * 40, []
        folder = tmp_path / commit
        folder.mkdir()
        (folder / "world.py").write_text(Path(HUB_FILE).read_text())

        def download(repo: str, revision: str) -> Path:
            asked.append((repo, revision))
            return folder

        monkeypatch.setattr("proctor.benchmarks.gym.hub.download", download)
        settings = {**HUB, "path": "someone/something:world.py", "revision": commit}
        benchmark = made({**settings, "task_ids": [1]})
        assert asked == [("someone/something", commit)]
        assert list(benchmark.protocol()["files"]) == ["world.py"]
        assert [task.task_id for task in benchmark.tasks()] == [1]

    @pytest.mark.parametrize(
        ("file", "code", "named"),
        [
            ("x = 1", "env.invalid-make-env", "make_env"),
            ("def make_env(n_envs): return 3", "env.invalid-make-env", "int"),
            ("def make_env(n_envs): return {}", "env.invalid-make-env", "make_env"),
            ("raise RuntimeError('broken')", "env.cannot-open", "RuntimeError: broken"),
        ],
    )
    def test_a_file_without_environments_is_refused(
        self, file: str, code: str, named: str, tmp_path: Path
    ) -> None:
        (tmp_path / "env.py").write_text(file)
        with refuses(UsageError, code) as refused:
            made({**HUB, "path": str(tmp_path)})
        assert named in str(refused.value)

    def test_settings_reach_make_env(self) -> None:
        benchmark = made({**HUB, "kwargs": {"goal": -1.0}, "task_ids": [0]})
        (task,) = benchmark.tasks()
        sim = benchmark.make_sim(task)
        sim.reset(benchmark.spec(task, 0, 3))
        assert sim.observe(["observation.environment_state"])[
            "observation.environment_state"
        ].tolist()[1:] == [-1.0]
        sim.close()
