"""PushT, ALOHA, gymnasium and Hub environments keep the contract that every benchmark keeps."""

from __future__ import annotations

import shlex
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from proctor import evaluate, make_env
from proctor.benchmarks.mujoco.world import world_state
from proctor.cli import main
from proctor.evaluation.gym.sim_env import SimEnv, SimEnvParts
from proctor.evaluation.run import Evaluation
from proctor.features import Array, FeatureKind, observed_keys
from proctor.policies.base import Batch, PolicyPlugin
from proctor.policies.scripted.random import RandomConfig, RandomPolicy
from proctor.report.claims.reproduce import episode_command_prefix, episode_flag, task_flags
from proctor.runs.folder import RunFolder
from proctor.runs.journal import read_journal
from proctor.testing import check_sim
from proctor.types import Outcome
from tests.sim.adapted_benchmarks import ALL, ALOHA, PUSHT, made, make

pytest.importorskip("gym_pusht")
pytest.importorskip("gym_aloha")
pytestmark = pytest.mark.sim
kinds = pytest.mark.parametrize("settings", ALL.values(), ids=ALL)


@kinds
def test_every_task_keeps_the_contract(settings: dict[str, Any]) -> None:
    benchmark = made(settings)
    for task in benchmark.tasks():
        check_sim(benchmark, task, n_steps=4, make=make)


@kinds
def test_gymnasium_accepts_the_wrapped_environment(settings: dict[str, Any]) -> None:
    benchmark = made(settings)
    parts = SimEnvParts(
        lambda: benchmark, benchmark.tasks()[0], observed_keys(benchmark.features())
    )
    env = SimEnv(parts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # advice about ranges, which are those of the benchmark
        warnings.filterwarnings("ignore", ".*(we recommend|infinity|not within|Box obs).*")
        check_env(env, skip_render_check=True)
    env.close()


def play(folder: Path, settings: dict[str, Any], **how: Any) -> Evaluation:
    run = evaluate(
        policy={"type": "random", "n_action_steps": 3, "inputs": ["observation.state"]},
        env=settings,
        eval={"n_episodes": 3, **how},
        output_dir=folder,
    )
    assert run.complete
    assert not run.tally.errors, [row.error for row in run.rows]
    return run


def digests(run: Evaluation) -> dict[Any, Any]:
    return {row.key: (row.digest, row.outcome, row.steps, row.sum_reward) for row in run.rows}


@kinds
def test_episodes_are_the_same_however_they_are_run(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    # One simulator for all episodes of a task; two workers; the classic loop.
    one_by_one = play(tmp_path / "serial", settings, batch_size=1, use_async_envs=False)
    expected = digests(one_by_one)
    assert len(set(expected.values())) == len(expected)
    assert digests(play(tmp_path / "two", settings, batch_size=2)) == expected
    lockstep = play(tmp_path / "lockstep", settings, batch_size=3, scheduler="lockstep")
    assert digests(lockstep) == expected


@kinds
def test_an_episode_comes_out_the_same_alone(settings: dict[str, Any], tmp_path: Path) -> None:
    run = play(tmp_path / "run", settings, batch_size=1, use_async_envs=False)
    row, record = run.rows[-1], RunFolder(run.path).read()
    assert record is not None
    base = episode_command_prefix(record.given, record.resolved)
    which = f"{task_flags(row.suite, row.task_id)} {episode_flag(row.episode_index)}"
    words = shlex.split(f"{base} {which}")
    assert main([*words[1:], f"--output_dir={tmp_path / 'again'}"]) == 0
    assert [again.digest for again in read_journal(tmp_path / "again").rows] == [row.digest]


def test_a_step_of_pusht_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = made(PUSHT)
    (task,) = benchmark.tasks()
    sim: Any = benchmark.make_sim(task)
    drawn: list[int] = []
    original = type(sim._env)._draw
    monkeypatch.setattr(
        type(sim._env), "_draw", lambda env: (drawn.append(1), original(env))[1], raising=True
    )
    sim.reset(benchmark.spec(task, 0, 1))
    for _ in range(5):
        sim.step(np.full(2, 256.0))
        sim.observe(["observation.state", "observation.environment_state"])
    assert not drawn
    sim.observe(["observation.image"])
    assert len(drawn) == 1


def test_pusht_is_drawn_when_the_policy_looks_and_not_in_between(tmp_path: Path) -> None:
    run = evaluate(
        policy={"type": "random", "n_action_steps": 3, "inputs": ["observation.image"]},
        env=PUSHT,
        eval={"n_episodes": 1, "use_async_envs": False},
        video={"episodes": 0},
        output_dir=tmp_path / "run",
    )
    # At the start and after 3, 6, ... 18 of 20 steps: the last chunk is cut by the horizon.
    assert [(row.steps, row.renders) for row in run.rows] == [(20, 7)]


def test_a_step_of_aloha_renders_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = made(ALOHA)
    task = benchmark.tasks()[0]
    sim: Any = benchmark.make_sim(task)
    monkeypatch.setattr(type(sim._physics), "render", None)
    sim.reset(benchmark.spec(task, 0, 1))
    for _ in range(3):
        sim.step(np.zeros(14))
        sim.observe(["observation.state"])
    assert sim._renderer is None, "no GL context before the first image"
    sim.close()


def test_the_episodes_of_pusht_are_those_of_gym_pusht() -> None:
    from gym_pusht.envs.pusht import PushTEnv

    benchmark = made(PUSHT)
    (task,) = benchmark.tasks()
    sim, theirs = benchmark.make_sim(task), PushTEnv(obs_type="pixels_agent_pos")
    rng = np.random.default_rng(0)
    sim.reset(benchmark.spec(task, 3, 1000))
    theirs.reset(seed=1003)
    for action in rng.uniform(0, 512, (20, 2)).astype(np.float32):
        step = sim.step(action)
        seen, reward, terminated, _, info = theirs.step(action)
        assert (step.reward, step.terminated) == (reward, terminated)
        assert step.success == info["is_success"]
        mine = sim.observe(["observation.image", "observation.state"])
        np.testing.assert_array_equal(mine["observation.image"], seen["pixels"])
        np.testing.assert_array_equal(
            mine["observation.state"], seen["agent_pos"].astype(np.float32)
        )


def test_pusht_is_solved_when_the_block_lies_on_its_target() -> None:
    benchmark = made(PUSHT)
    (task,) = benchmark.tasks()
    sim: Any = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 1))
    assert not sim.step(np.array([20.0, 20.0])).success
    sim._env.block.angle = np.pi / 4
    sim._env.block.position = 256, 256
    step = sim.step(np.array([20.0, 20.0]))
    assert step.success
    assert step.terminated
    assert step.reward == 1.0


@pytest.mark.parametrize("task_index", [0, 1])
def test_the_physics_of_aloha_is_that_of_gym_aloha(
    task_index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = made(ALOHA)
    task = benchmark.tasks()[task_index]
    sim = benchmark.make_sim(task)
    from gym_aloha.env import AlohaEnv
    from gym_aloha.tasks.sim import BimanualViperXTask

    def without_pictures(self: Any, physics: Any) -> dict[str, Any]:
        return {"qpos": self.get_qpos(physics), "images": {"top": np.zeros(1)}}

    monkeypatch.setattr(BimanualViperXTask, "get_observation", without_pictures)
    theirs = AlohaEnv(("insertion", "transfer_cube")[task_index], obs_type="pixels_agent_pos")
    sim.reset(benchmark.spec(task, 1, 1000))
    theirs.reset(seed=1001)
    for action in np.random.default_rng(0).uniform(-1.5, 1.5, (6, 14)).astype(np.float32):
        step = sim.step(action)
        seen, reward, terminated, _, _ = theirs.step(action)
        assert (step.reward, step.terminated) == (reward, terminated)
    np.testing.assert_array_equal(sim.physics(), world_state(theirs._env.physics.data))
    state = sim.observe(["observation.state"])["observation.state"]
    np.testing.assert_array_equal(state, seen["agent_pos"].astype(np.float32))
    sim.close()


class WildPolicy(RandomPolicy):
    """Asks for joint positions that blow up the physics."""

    def act(self, batch: Batch) -> Array:
        return np.sign(super().act(batch)) * np.float32(1e4)


WILD = PolicyPlugin(RandomConfig, WildPolicy, "wild")


def test_a_policy_that_blows_up_the_physics_of_aloha_has_failed(tmp_path: Path) -> None:
    run = evaluate(
        policy={"type": "tests.sim.test_adapted_benchmarks:WILD"},
        env={**ALOHA, "task": "AlohaTransferCube-v0", "episode_length": 30},
        eval={"n_episodes": 1},
        output_dir=tmp_path / "run",
    )
    (row,) = run.rows
    assert (row.outcome, row.attempts) == (Outcome.DIVERGED, 2)
    assert row.error is not None
    assert "PhysicsError" in row.error
    assert (run.tally.episodes, run.tally.errors) == (1, 0)


def test_aloha_is_solved_when_the_left_hand_holds_the_cube() -> None:
    benchmark = made({**ALOHA, "task": "AlohaTransferCube-v0"})
    (task,) = benchmark.tasks()
    sim: Any = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 1))
    physics = sim._physics
    finger = physics.named.data.geom_xpos["vx300s_left/10_left_gripper_finger"]
    physics.named.data.qpos["red_box_joint"] = [*finger, 1, 0, 0, 0]
    closed = sim.observe(["observation.state"])["observation.state"]
    step = sim.step(closed)
    assert step.reward == 4.0
    assert step.success
    assert step.terminated
    sim.close()


def test_keys_and_sizes_are_what_lerobot_checkpoints_ask_for() -> None:
    pusht, blind = made(PUSHT), made({**PUSHT, "obs_type": "environment_state_agent_pos"})
    aloha = made({"type": "aloha"})
    shapes = {k: f.shape for k, f in pusht.features().items() if f.kind is not FeatureKind.FILM}
    assert shapes == {
        "observation.image": (96, 96, 3),
        "observation.state": (2,),
        "observation.environment_state": (16,),
    }
    assert "observation.image" not in blind.features()
    assert {k: f.shape for k, f in aloha.features().items()} == {
        "observation.images.top": (480, 640, 3),
        "observation.state": (14,),
    }
    assert aloha.tasks()[0].max_steps == 400


def test_make_env_gives_what_the_observation_type_says() -> None:
    shown = {}
    for obs_type in ("pixels_agent_pos", "environment_state_agent_pos"):
        env = make_env({**PUSHT, "obs_type": obs_type})["pusht"][0]
        shown[obs_type] = set(env.single_observation_space.spaces)
        env.close()
    assert shown["pixels_agent_pos"] == {"pixels", "agent_pos"}
    assert shown["environment_state_agent_pos"] == {"environment_state", "agent_pos"}
