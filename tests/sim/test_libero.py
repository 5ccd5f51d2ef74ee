"""LIBERO's simulators: the episodes of new environments, at the price of used ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium.utils.env_checker
import mujoco
import numpy as np
import pytest

from proctor import evaluate, make_env
from proctor.benchmarks.libero import settling_check
from proctor.benchmarks.libero.benchmark import ControlMode, Libero, LiberoConfig
from proctor.benchmarks.libero.sim import SETTLE_ACTION, LiberoSim, axis_angle
from proctor.benchmarks.training_starts import unpublished
from proctor.engine.worker.episode import Episode
from proctor.evaluation.gym.sim_env import SimEnv
from proctor.evaluation.gym.vector import LazyVectorEnv
from proctor.features import Array
from proctor.system.graphics.gl import find_gl_backend
from proctor.testing import check_sim
from proctor.types import EpisodeSpec, Task
from tests.sim.libero_reference import course_of, needs_assets, state_of, without_textures

pytestmark = [pytest.mark.sim, needs_assets()]

STATE = "observation.state"
IMAGES = ("observation.images.image", "observation.images.image2")
SAMPLE = {("libero_spatial", 4)}
"""One task with a drawer that starts open: all that a soft reset must restore."""
ALL_TASKS = Libero(LiberoConfig(task="libero_all")).tasks()
LIBERO_90 = Libero(LiberoConfig(task="libero_90")).tasks()


def in_test_all(tasks: list[Task]) -> list[Any]:
    """All tasks; those outside the sample only in `make test-all`."""
    return [
        pytest.param(
            task,
            id=f"{task.suite}-{task.task_id}",
            marks=() if task.key in SAMPLE else pytest.mark.slow,
        )
        for task in tasks
    ]


def actions(n_steps: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, (n_steps, 7)).astype(np.float32)


@pytest.fixture
def no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disable")
    without_textures(monkeypatch)


@pytest.fixture
def rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = find_gl_backend()
    assert backend is not None
    monkeypatch.setenv("MUJOCO_GL", backend)


def small(task: Task, **flags: Any) -> Libero:
    size = {"observation_height": 64, "observation_width": 64}
    return Libero(LiberoConfig(task=task.suite, task_ids=[task.task_id], **size, **flags))


@pytest.mark.usefixtures("no_images")
@pytest.mark.parametrize("task", in_test_all(ALL_TASKS))
def test_every_episode_of_a_used_simulator_is_the_first_of_a_new_environment(task: Task) -> None:
    benchmark = small(task)
    first, second = benchmark.spec(task, 0, 1000), benchmark.spec(task, 7, 1000)
    expected = course_of(first, actions(8))
    sim = benchmark.make_sim(task)
    assert isinstance(sim, LiberoSim)
    for spec in (first, second, first):
        sim.reset(spec)
        for moment, action in enumerate(actions(8)):
            if spec == first:
                assert np.array_equal(sim.physics(), expected.worlds[moment])
                seen = sim.observe([STATE])[STATE]
                assert np.allclose(seen, state_of(expected.numbers[moment]), atol=1e-6, rtol=0)
            step = sim.step(action)
            assert step.success == expected.successes[moment] or spec == second
        if spec == first:
            assert np.array_equal(sim._env.sim.model.body_pos, expected.fixtures)
    sim.close()


@pytest.mark.usefixtures("no_images")
def test_the_digest_sees_where_the_fixtures_stand() -> None:
    config = LiberoConfig(task="libero_goal", task_ids=[8], episode_length=2)
    benchmark = Libero(config)
    (task,) = benchmark.tasks()
    sim = benchmark.make_sim(task)
    assert isinstance(sim, LiberoSim)
    digests, joints = set(), set()
    for index in (0, 50, 100, 150):  # one init state: cabinet, stove and rack stand elsewhere
        episode = Episode(sim, benchmark.spec(task, index, 1000), benchmark.action)
        episode.reset()
        while not episode.ended:
            episode.step(SETTLE_ACTION)
        digests.add(episode.result(0).digest)
        joints.add(sim._env.sim.data.qpos.tobytes())
    assert (len(digests), len(joints)) == (4, 1)
    sim.close()


@pytest.mark.slow
def test_pictures_are_those_of_robosuite(monkeypatch: pytest.MonkeyPatch) -> None:
    from robosuite.renderers.context.egl_context import EGLGLContext
    from robosuite.utils import binding_utils

    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(binding_utils, "GLContext", EGLGLContext, raising=False)
    task = ALL_TASKS[0]
    benchmark = small(task)
    spec = benchmark.spec(task, 3, 1000)
    cameras = {"camera_heights": 64, "camera_widths": 64}
    expected = course_of(spec, actions(3), has_offscreen_renderer=True, **cameras)
    sim = benchmark.make_sim(task)
    sim.reset(spec)
    for moment, action in enumerate(actions(3)):
        seen = sim.observe(IMAGES)
        for key, name in zip(IMAGES, ("agentview", "robot0_eye_in_hand"), strict=True):
            turned = expected.numbers[moment][f"{name}_image"][::-1, ::-1]
            assert np.array_equal(seen[key], turned)
        sim.step(action)
    sim.close()


@pytest.mark.slow
def test_the_contract_holds_with_pictures(rendering: None) -> None:
    task = ALL_TASKS[10]
    check_sim(small(task), task, n_steps=2)


@pytest.mark.slow
@pytest.mark.usefixtures("no_images")
def test_actions_can_be_absolute_after_the_settling_steps() -> None:
    task = ALL_TASKS[10]
    benchmark = small(task, control_mode=ControlMode.ABSOLUTE)
    sim = benchmark.make_sim(task)
    assert isinstance(sim, LiberoSim)
    sim.reset(benchmark.spec(task, 0, 1000))
    start = sim.observe([STATE])[STATE][:3]
    assert np.allclose(start, small_start(task), atol=1e-6), "settling moved the hand"
    hand = np.ravel(sim._env.robots[0].controller.ee_ori_mat)
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, hand)
    target = start + np.array([0.05, 0.05, 0.05], np.float32)
    for _ in range(20):
        sim.step(np.array([*target, *axis_angle(quaternion), -1], np.float32))
    assert np.linalg.norm(sim.observe([STATE])[STATE][:3] - target) < 0.02
    sim.close()


@pytest.mark.slow
@pytest.mark.usefixtures("no_images")
def test_a_pose_of_20_numbers_is_the_controllers_and_leads_the_hand_there() -> None:
    task = ALL_TASKS[10]
    benchmark = small(task, control_mode=ControlMode.EE6D)
    sim = benchmark.make_sim(task)
    assert isinstance(sim, LiberoSim)
    sim.reset(benchmark.spec(task, 0, 1000))
    start = sim.observe([STATE])[STATE]
    assert start.shape == (20,)
    assert np.allclose(start[:3], small_start(task), atol=1e-6), "settling moved the hand"
    columns = sim._env.robots[0].controller.ee_ori_mat[:, :2].T.ravel()
    assert np.allclose(start[3:9], columns, atol=1e-6)
    assert not start[9:].any()
    target = start.copy()
    target[:3] += 0.05
    for _ in range(20):
        sim.step(target)
    found = sim.observe([STATE])[STATE]
    assert np.linalg.norm(found[:3] - target[:3]) < 0.02
    assert np.abs(found[3:9] - start[3:9]).max() < 0.1, "and turned nothing"
    sim.close()


@pytest.mark.slow
def test_with_poses_the_hands_camera_is_as_libero_draws_it(rendering: None) -> None:
    task, seen = ALL_TASKS[10], []
    for mode in (ControlMode.RELATIVE, ControlMode.EE6D):
        benchmark = small(task, control_mode=mode)
        sim = benchmark.make_sim(task)
        sim.reset(benchmark.spec(task, 0, 1000))
        seen.append(sim.observe(IMAGES))
        sim.close()
    turned, drawn = seen
    np.testing.assert_array_equal(drawn[IMAGES[0]], turned[IMAGES[0]])
    np.testing.assert_array_equal(drawn[IMAGES[1]], turned[IMAGES[1]][::-1, ::-1])


def small_start(task: Task) -> Array:
    """Where the hand is at the start of an episode with relative actions."""
    benchmark = small(task)
    sim = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 1000))
    start = sim.observe([STATE])[STATE][:3]
    sim.close()
    return start


@pytest.mark.usefixtures("no_images")
@pytest.mark.parametrize(
    ("suite", "task_id", "things", "place", "height"),
    [
        ("libero_object", 0, ["alphabet_soup_1"], "basket_1", 0.08),
        pytest.param(
            *("libero_spatial", 0, ["akita_black_bowl_1"], "plate_1", 0.02), marks=pytest.mark.slow
        ),
        pytest.param(
            *("libero_goal", 8, ["akita_black_bowl_1"], "plate_1", 0.02), marks=pytest.mark.slow
        ),
        pytest.param(
            *("libero_10", 0, ["alphabet_soup_1", "tomato_sauce_1"], "basket_1", 0.08),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_object_put_where_it_belongs_is_a_success(
    suite: str, task_id: int, things: list[str], place: str, height: float
) -> None:
    benchmark = Libero(LiberoConfig(task=suite, task_ids=[task_id]))
    (task,) = benchmark.tasks()
    sim = benchmark.make_sim(task)
    assert isinstance(sim, LiberoSim)
    sim.reset(benchmark.spec(task, 0, 1000))
    assert not sim.step(SETTLE_ACTION).success
    target = sim.object_positions()[place]
    for number, thing in enumerate(things):
        joint = sim._env.objects_dict[thing].joints[-1]
        pose = sim._env.sim.data.get_joint_qpos(joint).copy()
        pose[:3] = target + np.array([0.07 * number - 0.035 * (len(things) - 1), 0, height])
        sim._env.sim.data.set_joint_qpos(joint, pose)
    steps = [sim.step(SETTLE_ACTION) for _ in range(15)]
    assert any(step.success and step.terminated and step.reward == 1.0 for step in steps)
    sim.close()


@pytest.mark.slow
@pytest.mark.usefixtures("no_images")
def test_a_world_that_settles_elsewhere_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    task = ALL_TASKS[10]
    monkeypatch.setattr(settling_check, "_as_tested", lambda: False)
    sim = small(task).make_sim(task)  # the table is right for the versions the tests run with
    expected = settling_check.settled_table()["tasks"][task.suite][task.name]
    monkeypatch.setitem(expected, "basket_1", [0.0, 0.0, 0.0])
    assert isinstance(sim, LiberoSim)
    with pytest.raises(RuntimeError, match=r"basket_1 .*0\.\d+ m .*mujoco==3\.3\.0"):
        settling_check.check_settling(sim, task)
    sim.close()


@pytest.mark.slow
@pytest.mark.usefixtures("no_images")
@pytest.mark.parametrize("task", in_test_all(ALL_TASKS))
def test_every_world_settles_as_the_table_says(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling_check, "_as_tested", lambda: False)
    small(task).make_sim(task).close()


@pytest.mark.slow
@needs_assets(["libero_90"])
@pytest.mark.usefixtures("no_images")
@pytest.mark.parametrize("task", in_test_all(LIBERO_90))
def test_every_task_of_libero_90_opens_and_settles_as_the_table_says(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling_check, "_as_tested", lambda: False)
    benchmark = small(task)
    sim = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 1000))
    assert not sim.step(SETTLE_ACTION).success
    assert np.isfinite(sim.observe([STATE])[STATE]).all()
    sim.close()


def play(folder: Path, task: str, task_ids: list[int] | None, **settings: Any) -> dict[Any, Any]:
    run = evaluate(
        policy={"type": "random", "n_action_steps": 4},
        env={"type": "libero", "task": task, "task_ids": task_ids, "episode_length": 8},
        eval={"n_episodes": 2, **settings},
        output_dir=folder,
    )
    assert run.complete
    assert not run.tally.errors
    return {row.key: (row.digest, row.steps, row.outcome) for row in run.rows}


@pytest.mark.parametrize(
    ("task", "task_ids"),
    [
        ("libero_goal", [8]),
        pytest.param("libero_all", None, marks=pytest.mark.slow),
    ],
)
def test_episodes_are_the_same_for_any_number_of_workers(
    tmp_path: Path, task: str, task_ids: list[int] | None
) -> None:
    in_process = {"use_async_envs": False}  # importing LIBERO takes longer than these episodes
    alone = play(tmp_path / "alone", task, task_ids, batch_size=1, **in_process)
    assert play(tmp_path / "two", task, task_ids, batch_size=2) == alone
    assert len({digest for digest, *_ in alone.values()}) == len(alone)
    in_step = {"scheduler": "lockstep", **in_process}
    assert play(tmp_path / "lockstep", task, task_ids, batch_size=2, **in_step) == alone


@pytest.mark.slow
def test_the_wrapped_environment_passes_gymnasiums_checker(rendering: None) -> None:
    config = {"type": "libero", "task": "libero_object", "task_ids": [0], "episode_length": 3}
    size = {"observation_height": 32, "observation_width": 32}
    env = make_env(config | size, n_envs=1, use_async_envs=False)["libero_object"][0]
    assert isinstance(env, LazyVectorEnv)
    gymnasium.utils.env_checker.check_env(SimEnv(env._parts), skip_render_check=True)
    env.close()


@pytest.mark.usefixtures("no_images")
def test_recorded_scenes_rest_apart_from_the_published_ones_and_repeat() -> None:
    benchmark = Libero(LiberoConfig(task="libero_spatial", task_ids=[0]))
    (task,) = benchmark.tasks()
    sim = benchmark.make_sim(task)
    assert isinstance(sim, LiberoSim)

    def placed(spec: EpisodeSpec) -> Array:
        sim.reset(spec)
        return np.concatenate(list(sim.object_positions().values()))

    evaluated = [placed(benchmark.spec(task, index, 1000)) for index in range(4)]
    specs = [unpublished(benchmark, benchmark.spec(task, i, 1_000_000)) for i in (0, 3, 6)]
    recorded = [placed(spec) for spec in specs]  # the first drawn scenes of 3 and 6 do not rest
    nearest_m = min(np.abs(a - b).max() for a in evaluated for b in recorded)
    height_m = np.array(recorded).reshape(len(specs), -1, 3)[:, :, 2]
    assert nearest_m > 0.001
    assert np.ptp(height_m, axis=0).max() < 0.002
    assert np.array_equal(placed(specs[1]), recorded[1])
    sim.close()
