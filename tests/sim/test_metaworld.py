"""Meta-World's real simulators: episodes that repeat to the bit, and pictures that are right."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.metaworld.benchmark import (
    ENVIRONMENT_STATE,
    STATE,
    ExpertScripts,
    Metaworld,
    MetaworldConfig,
)
from proctor.benchmarks.metaworld.sim import is_known_version
from proctor.benchmarks.metaworld.smooth_experts import SMOOTH_EXPERTS
from proctor.benchmarks.metaworld.tasks import TASKS
from proctor.errors import UsageError
from proctor.features import Array
from proctor.system.graphics.gl import find_gl_backend
from tests.refusals import refuses

pytest.importorskip("metaworld")
pytestmark = [
    pytest.mark.sim,
    # Experts ask for more than the clipped range on purpose.
    pytest.mark.filterwarnings("ignore:Constant.s. may be too high"),
]
needs_gl = pytest.mark.usefixtures("gl_backend")

IMAGE = "observation.image"


@pytest.fixture
def gl_backend() -> str:
    backend = find_gl_backend()
    if backend is None:
        pytest.skip("nothing here can render")
    return backend


@contextmanager
def sim_of(name: str, **flags: Any) -> Iterator[Any]:
    """Yield an open simulator with ``start(seed)`` as a shorthand for resetting it."""
    flags = {"observation_height": 64, "observation_width": 64, **flags}
    benchmark = Metaworld(MetaworldConfig(task=name, **flags))
    (task,) = benchmark.tasks()
    sim: Any = benchmark.make_sim(task)
    sim.start = lambda seed: sim.reset(benchmark.spec(task, 0, seed))
    sim.expert = benchmark.expert(task)
    try:
        yield sim
    finally:
        sim.close()


def actions(seed: int, steps: int) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, (steps, 4)).astype(np.float32)


def episode(sim: Any, seed: int, steps: int, keys: tuple[str, ...] = ()) -> list[bytes]:
    """Return everything an episode of random actions shows, moment by moment, as raw bytes."""
    sim.start(seed)
    moments = [moment(sim, keys)]
    for action in actions(seed, steps):
        step = sim.step(action)
        moments.append(np.array([step.reward, step.success, step.terminated]).tobytes())
        moments.append(moment(sim, keys))
    return moments


def moment(sim: Any, keys: tuple[str, ...] = ()) -> bytes:
    """Return all that can be seen now, and all that a camera would see, as raw bytes."""
    observation = sim.observe((STATE, ENVIRONMENT_STATE, *keys))
    drawn = (sim._env.data.site_xpos, sim._env.data.geom_xpos, sim._env.data.geom_xmat)
    return b"".join(value.tobytes() for value in (*observation.values(), sim.physics(), *drawn))


def expert_episode(sim: Any, seed: int, steps: int) -> list[bytes]:
    """Return what an episode of the expert shows, with noise in its actions from the 20th step."""
    sim.start(seed)
    noise = np.random.default_rng(seed).normal(0, 0.3, (steps, 4))
    noise[:20] = 0
    moments = [moment(sim)]
    for number in range(steps):
        action = sim.expert(sim.observe((ENVIRONMENT_STATE,)))
        step = sim.step(action + noise[number])
        numbers = [step.reward, step.success, *step.scores.values()]
        moments += [action.tobytes(), np.array(numbers).tobytes(), moment(sim)]
    return moments


def use(sim: Any, seed: int, steps: int = 60) -> None:
    """Run the expert, which moves what random actions would never touch, and stop halfway."""
    sim.start(seed)
    for _ in range(steps):
        sim.step(sim.expert(sim.observe((ENVIRONMENT_STATE,))))


@pytest.mark.parametrize("name", [row.name for row in TASKS])
def test_a_used_simulator_replays_what_it_showed_when_fresh(name: str) -> None:
    with sim_of(name) as sim:
        fresh = episode(sim, seed=1, steps=25)
        use(sim, seed=2)
        assert episode(sim, seed=1, steps=25) == fresh


@pytest.mark.parametrize("name", ["basketball-v3", "push-v3", "sweep-into-v3"])
def test_a_used_simulator_agrees_with_another_fresh_one(name: str) -> None:
    with sim_of(name) as used, sim_of(name) as fresh:
        use(used, seed=3)
        used.start(4)
        assert episode(used, seed=5, steps=60) == episode(fresh, seed=5, steps=60)


def test_a_reset_undoes_even_what_no_task_does_yet() -> None:
    with sim_of("push-v3") as sim:
        fresh = episode(sim, seed=1, steps=10)
        env = sim._env
        env.model.body_mass *= 2
        env.model.geom_rgba[:] = 0
        env.data.mocap_pos[:] = 1
        env.hand_init_pos[:] = 0
        env.init_config["obj_init_pos"][:] = 0
        env._did_see_sim_exception = True
        env.stowaway = True
        assert episode(sim, seed=1, steps=10) == fresh
        assert env.model.geom_rgba.any()
        assert not hasattr(env, "stowaway")


FEW = ("dial-turn-v3", "hammer-v3", "push-v3", "stick-push-v3")


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        *((name, 60) for name in FEW),
        *(pytest.param(row.name, 250, marks=pytest.mark.slow) for row in TASKS),
    ],
)
def test_faster_environments_and_experts_show_what_metaworlds_own_show(
    name: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> list[bytes]:
        with sim_of(name) as sim:
            seeds = range(1000, 1003) if steps > 60 else (1000, 1001)
            by_experts = [expert_episode(sim, seed, steps) for seed in seeds]
            at_random = [episode(sim, seed, steps) for seed in seeds]
        return [part for parts in by_experts + at_random for part in parts]

    assert is_known_version(), "otherwise Meta-World is compared with itself"
    ours = shown()
    for module in ("sim", "benchmark"):
        where = f"proctor.benchmarks.metaworld.{module}.is_known_version"
        monkeypatch.setattr(where, lambda: False)
    assert ours == shown()


@needs_gl
@pytest.mark.parametrize(
    "name",
    [
        "door-open-v3",
        pytest.param("push-v3", marks=pytest.mark.slow),
        pytest.param("push-back-v3", marks=pytest.mark.slow),
    ],
)
def test_images_of_a_used_simulator_are_those_of_a_fresh_one(name: str) -> None:
    with sim_of(name, shadow_map=0) as used, sim_of(name, shadow_map=0) as fresh:
        use(used, seed=2)
        used.observe((IMAGE,))
        assert episode(used, 1, steps=2, keys=(IMAGE,)) == episode(fresh, 1, 2, keys=(IMAGE,))


@needs_gl
def test_rendering_and_observing_change_nothing() -> None:
    name = "pick-place-v3"
    with sim_of(name, shadow_map=0) as watched, sim_of(name, shadow_map=0) as unwatched:
        watched.start(1)
        unwatched.start(1)
        for action in actions(1, 4):
            watched.step(action)
            unwatched.step(action)
            for _ in range(2):
                watched.observe((IMAGE, STATE, ENVIRONMENT_STATE))
        assert moment(watched) == moment(unwatched)


@pytest.mark.parametrize("name", ["reach-v3", "push-v3"])
def test_an_episode_is_the_one_lerobots_recipe_gives(name: str) -> None:
    import metaworld

    benchmark = metaworld.MT1(name, seed=42)
    env = benchmark.train_classes[name]()
    env.set_task(benchmark.train_tasks[0])
    env._freeze_rand_vec, env.seeded_rand_vec = False, True
    env.seed(1000)
    numbers, _ = env.reset()
    with sim_of(name) as sim:
        sim.start(1000)
        np.testing.assert_array_equal(sim._env.data.site_xpos, env.data.site_xpos)
        for action in actions(0, 20):
            np.testing.assert_array_equal(
                sim.observe((ENVIRONMENT_STATE,))[ENVIRONMENT_STATE], numbers
            )
            numbers, reward, _, _, _ = env.step(action)
            assert sim.step(action).reward == reward


def test_seeds_place_the_objects() -> None:
    with sim_of("push-v3") as sim:
        states = []
        for seed in (1000, 1001, 1000):
            sim.start(seed)
            states.append(sim.observe((ENVIRONMENT_STATE,))[ENVIRONMENT_STATE])
    np.testing.assert_array_equal(states[0], states[2])
    assert np.abs(states[0][4:7] - states[1][4:7]).max() > 0.01, "the puck"
    assert np.abs(states[0][-3:] - states[1][-3:]).max() > 0.01, "the goal"


def test_global_random_numbers_are_neither_used_nor_changed() -> None:
    with sim_of("reach-v3") as sim:
        np.random.seed(0)
        before = np.random.get_state()[1].tolist()
        first = episode(sim, seed=1, steps=3)
        assert np.random.get_state()[1].tolist() == before
        np.random.seed(1)
        assert episode(sim, seed=1, steps=3) == first


def test_observations_have_the_promised_types_and_are_the_callers_own() -> None:
    with sim_of("reach-v3") as sim:
        sim.start(0)
        observation = sim.observe((STATE, ENVIRONMENT_STATE))
        for key, (shape, dtype) in {
            STATE: ((4,), "float32"),
            ENVIRONMENT_STATE: ((39,), "float64"),
        }.items():
            assert (observation[key].shape, str(observation[key].dtype)) == (shape, dtype)
        before = moment(sim)
        observation[STATE][:] = 9
        observation[ENVIRONMENT_STATE][:] = 9
        sim.physics()[:] = 9
        assert moment(sim) == before


def test_an_episode_may_last_longer_than_metaworlds_500_steps() -> None:
    with sim_of("reach-v3") as sim:  # --perturb=robot_pose: the robot moves before the episode
        sim.start(0)
        for _ in range(520):
            sim.step(np.zeros(4))


def test_success_ends_the_episode() -> None:
    with sim_of("reach-v3") as sim:
        sim.start(1000)
        for _ in range(500):
            step = sim.step(sim.expert(sim.observe((ENVIRONMENT_STATE,))))
            assert step.terminated == step.success
            if step.terminated:
                break
        assert step.success


def test_actions_are_clipped_to_the_unit_range() -> None:
    with sim_of("push-v3") as wild, sim_of("push-v3") as tame:
        wild.start(0)
        tame.start(0)
        for action in 3 * actions(0, 20):
            wild.step(action)
            tame.step(np.clip(action, -1, 1))
        np.testing.assert_array_equal(wild.physics(), tame.physics())


@pytest.mark.parametrize("name", ["pick-place-v3", "soccer-v3", "stick-pull-v3", "sweep-v3"])
def test_our_contact_check_is_metaworlds(name: str) -> None:
    from metaworld.sawyer_xyz_env import SawyerXYZEnv

    answers = []
    with sim_of(name) as sim:
        env = sim._env
        geoms = range(env.model.ngeom)
        sim.start(1000)
        for _ in range(
            20
        ):  # of 60 steps, one in three: asking of every geom takes longer than a step
            for _ in range(3):
                sim.step(sim.expert(sim.observe((ENVIRONMENT_STATE,))))
            ours = [env.touching_object(geom) for geom in geoms]
            assert ours == [SawyerXYZEnv.touching_object(env, geom) for geom in geoms]
            answers += ours
    assert set(answers) == {False, True}


@needs_gl
def test_no_gl_context_is_opened_before_the_first_image() -> None:
    with sim_of("reach-v3", shadow_map=0) as sim:
        episode(sim, seed=0, steps=2)
        assert sim._renderer is None
        sim.observe((IMAGE,))
        assert sim._renderer is not None


def test_pixels_are_those_of_metaworlds_own_renderer(
    gl_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    monkeypatch.setenv("MUJOCO_GL", gl_backend)
    with sim_of("push-v3") as sim:
        env = ALL_V3_ENVIRONMENTS["push-v3"](
            render_mode="rgb_array", camera_name="corner2", width=64, height=64
        )
        env.model.camera("corner2").pos[:] = (0.75, 0.075, 0.7)
        env._set_task_called = True
        env._freeze_rand_vec, env.seeded_rand_vec = False, True
        env.seed(1000)
        env.reset()
        sim.start(1000)
        for action in actions(0, 2):
            np.testing.assert_array_equal(sim.observe((IMAGE,))[IMAGE], env.render()[::-1, ::-1])
            env.step(action)
            sim.step(action)
        env.close()


@needs_gl
def test_images_have_the_asked_size_even_past_the_xmls_buffer() -> None:
    size = {"observation_height": 16, "observation_width": 700}
    with sim_of("reach-v3", **size, shadow_map=0) as sim:
        sim.start(0)
        image = sim.observe((IMAGE,))[IMAGE]
    assert (image.shape, image.dtype) == ((16, 700, 3), np.uint8)
    assert image.std() > 10


@needs_gl
def test_cameras_are_renamed_and_stand_upright() -> None:
    flags = {"camera_name": "corner2,corner4", "camera_name_mapping": {"corner4": "front"}}
    with sim_of("reach-v3", **flags, shadow_map=0) as sim:
        sim.start(0)
        observation = sim.observe(("observation.images.corner2", "observation.images.front"))
        # The XML has corner4 where corner2 is moved to, and both hang upside down.
        np.testing.assert_array_equal(*observation.values())
        up_in_picture = -sim._env.data.camera("corner4").xmat.reshape(3, 3)[2, 1]
        assert up_in_picture > 0.5


def test_images_come_even_when_mujoco_was_imported_with_rendering_disabled(
    gl_backend: str,
) -> None:
    script = (
        "import os\n"
        "os.environ['MUJOCO_GL'] = 'disable'\n"
        "import mujoco\n"
        f"os.environ['MUJOCO_GL'] = {gl_backend!r}\n"
        "from proctor.benchmarks.metaworld.benchmark import Metaworld, MetaworldConfig\n"
        "size = {'observation_height': 32, 'observation_width': 32}\n"
        "config = MetaworldConfig(task='reach', shadow_map=0, **size)\n"
        "benchmark = Metaworld(config)\n"
        "(task,) = benchmark.tasks()\n"
        "sim = benchmark.make_sim(task)\n"
        "sim.reset(benchmark.spec(task, 0, 0))\n"
        "print(sim.observe(['observation.image'])['observation.image'].std() > 10)\n"
        "sim.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr


def test_a_closed_simulator_is_freed_without_waiting_for_the_garbage_collector() -> None:
    benchmark = Metaworld(MetaworldConfig(task="reach"))
    gc.disable()
    try:
        sim: Any = benchmark.make_sim(benchmark.tasks()[0])
        sim.reset(benchmark.spec(benchmark.tasks()[0], 0, 0))
        env = weakref.ref(sim._env)
        sim.close()
        del sim
        assert env() is None
    finally:
        gc.enable()


@needs_gl
def test_a_smaller_shadow_map_changes_edges_of_shadows_and_none_takes_them_away() -> None:
    def seen(**flags: Any) -> Array:
        with sim_of("basketball-v3", **flags) as sim:
            assert sim._env.model.vis.quality.shadowsize == 4096, "the XML's own"
            sim.start(1000)
            return np.asarray(sim.observe([IMAGE])[IMAGE], int)

    own, coarse, none = seen(), seen(shadow_map=512), seen(shadow_map=0)
    assert 0 < (own != coarse).any(axis=-1).mean() < 0.1
    assert (own != none).any(axis=-1).mean() > 0.3


@pytest.mark.parametrize("side", [-1, 1000, 2**15])
def test_a_shadow_map_of_no_known_size_is_refused(side: int) -> None:
    with refuses(UsageError, "flag.out-of-range") as refused:
        Metaworld(MetaworldConfig(task="reach-v3", shadow_map=side))
    assert "--env.shadow_map" in str(refused.value)


@pytest.mark.parametrize("name", SMOOTH_EXPERTS)
def test_a_smooth_expert_solves_its_task(name: str) -> None:
    with sim_of(name, expert=ExpertScripts.SMOOTH) as sim:
        for seed in (1002, 1003):
            sim.start(seed)
            assert solves(sim, np.zeros(39)), seed


def test_a_smooth_expert_succeeds_where_the_object_is_seen_12_mm_too_low() -> None:
    offset = np.zeros(39)
    offset[4:7] = (0.0, 0.0, -0.012)
    solved = {}
    for scripts in ExpertScripts:
        with sim_of("pick-out-of-hole-v3", expert=scripts) as sim:
            solved[scripts] = []
            for seed in range(500_000, 500_004):
                sim.start(seed)
                solved[scripts].append(solves(sim, offset))
    assert all(solved[ExpertScripts.SMOOTH])
    assert not all(solved[ExpertScripts.METAWORLD])


def solves(sim: Any, offset: Array) -> bool:
    """Return whether the expert succeeds if it observes positions with ``offset``."""
    for _ in range(250):
        seen = sim.observe((ENVIRONMENT_STATE,))[ENVIRONMENT_STATE] + offset
        if sim.step(np.clip(sim.expert({ENVIRONMENT_STATE: seen}), -1, 1)).success:
            return True
    return False
