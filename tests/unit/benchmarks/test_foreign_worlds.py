"""Worlds of other interpreters against small fakes of their packages."""

from __future__ import annotations

import importlib
import re
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from proctor import plugins
from proctor.benchmarks.isolated.benchmark import IsolatedBenchmark, _facts, world_config
from proctor.benchmarks.isolated.launch import Launch
from proctor.benchmarks.recipes import catalog
from proctor_worker.records import Refused
from proctor_worker.worlds import calvin, maniskill, rlbench, robocasa, robotwin

WORLDS = ("calvin", "maniskill", "rlbench", "robocasa", "robotwin")


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """Return a benchmark's flags as its world gets them."""
    return world_config(plugins.find_benchmark(name).config(**changes))


def install_modules(monkeypatch: pytest.MonkeyPatch, **modules: dict[str, Any]) -> None:
    """Put fake modules (dots as double underscores) into ``sys.modules``."""
    for name, content in modules.items():
        module = ModuleType(name.replace("__", "."))
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def run_once(sim: Any, features: dict[str, Any], action: Any) -> list[Any]:
    """Reset, step and observe; check shapes and types; return the step."""
    sim.reset({"seed": 3, "index": 7, "init_state": 0})
    step = sim.step(np.asarray(action, np.float32))
    seen = sim.observe(list(features))
    for key, feature in features.items():
        assert seen[key].shape == tuple(feature["shape"]), key
        assert seen[key].dtype == feature["dtype"], key
    assert sim.physics().dtype == np.float64
    assert sim.physics().ndim == 1
    return list(step)


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_has_a_recipe_an_adapter_and_python_3_8_syntax(name: str) -> None:
    assert name in catalog.recipe_names()
    module = importlib.import_module(f"proctor_worker.worlds.{name}")
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert not re.search(r"^from __future__|\bmatch .*:$|\bremoveprefix\b", text, re.MULTILINE)
    compile(text, name, "exec", dont_inherit=True)


@pytest.mark.parametrize("name", ["calvin", "rlbench", "robocasa", "robotwin"])
def test_a_description_lists_every_task_once(name: str) -> None:
    module = importlib.import_module(f"proctor_worker.worlds.{name}")
    described = module.make(config_of(name)).describe()
    tasks = described["tasks"]
    expected = {"calvin": 27, "rlbench": 10, "robocasa": 24, "robotwin": 50}
    assert len({task["name"] for task in tasks}) == len(tasks) == expected[name]
    assert [task["task_id"] for task in tasks] == list(range(len(tasks)))
    assert all(task["instruction"] and task["max_steps"] > 0 for task in tasks)
    groups = plugins.find_benchmark(name).groups
    assert {task["suite"] for task in tasks} == set(groups)


def test_calvin_has_all_evaluation_sequences() -> None:
    rows = calvin.sequences()
    assert len(rows) == 1000
    assert all(len(tasks) == 5 for _, tasks in rows)
    assert {tasks[0] for _, tasks in rows} == set(calvin.INSTRUCTIONS)
    assert [tasks[0] for _, tasks in rows].count("open_drawer") == 115


def test_a_start_of_calvin_is_its_init_state_whatever_episode_has_it() -> None:
    """The simulator starts from ``_starts[init_state]``; see ``CalvinSim.reset``."""
    world = calvin.CalvinWorld(config_of("calvin"))
    header = {"description": world.describe(), "interpreter": {"python": "3.8.1"}, "checks": False}
    facts = _facts(Launch("proctor_worker.worlds.calvin:make", {}, sys.executable), header)
    benchmark = IsolatedBenchmark(plugins.find_benchmark("calvin").config(type="calvin"), facts)
    for name in ("open_drawer", "push_into_drawer"):
        (task,) = (task for task in benchmark.tasks() if task.name == name)
        starts = world._starts[name]
        specs = [benchmark.spec(task, index, seed) for seed in (1000, 1050) for index in range(99)]
        by_world: dict[str, set[bytes]] = defaultdict(set)
        for spec in specs:
            assert spec.init_state is not None
            by_world[spec.world].add(calvin.scene_start(starts[spec.init_state]).tobytes())
        assert len(by_world) == min(99, len(starts))
        assert {len(found) for found in by_world.values()} == {1}


def test_different_starts_of_calvin_are_clearly_apart() -> None:
    world = calvin.CalvinWorld(config_of("calvin"))
    for starts in world._starts.values():
        scenes = np.array([calvin.scene_start(start) for start in starts])
        apart = np.abs(scenes[:, None] - scenes[None]).max(axis=2)
        assert apart[apart > 0].min() >= 10 * calvin.CalvinSim.start_tolerance


def test_calvin_places_blocks_as_upstream_does() -> None:
    """Reference values of upstream's function for this start, with its hash (FNV-1)."""
    assert calvin.fnv1("") == 0x811C9DC5
    assert calvin.fnv1("a") == 0x050C5D7E
    start = calvin.Start(["1", "1", "left", "open", "slider_left", "table", "slider_right"])
    scene = calvin.scene_start(start)
    np.testing.assert_array_equal(scene[[0, 1, 3, 4, 5]], [0.28, 0.22, 0.088, 1, 1])
    np.testing.assert_allclose(scene[6:9], [-0.24085, 0.0924, 0.46099], atol=1e-4)
    assert tuple(scene[12:15]) in calvin._ON_TABLE
    assert np.all(abs(scene[[11, 17, 23]] - np.pi / 2) < np.pi / 8)


class FakeBullet:
    """The functions of pybullet that the simulator calls."""

    def __init__(self) -> None:
        self.restored = 0

    def saveState(self, **_: Any) -> int:  # noqa: N802
        return 5

    def restoreState(self, stateId: int, **_: Any) -> None:  # noqa: N802, N803
        assert stateId == 5
        self.restored += 1

    def getNumBodies(self, **_: Any) -> int:  # noqa: N802
        return 1

    def getBodyUniqueId(self, number: int, **_: Any) -> int:  # noqa: N802
        return number

    def getBasePositionAndOrientation(self, body: int, **_: Any) -> Any:  # noqa: N802
        return (0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)

    def getBaseVelocity(self, body: int, **_: Any) -> Any:  # noqa: N802
        return (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)

    def getNumJoints(self, body: int, **_: Any) -> int:  # noqa: N802
        return 1

    def getJointState(self, body: int, joint: int, **_: Any) -> Any:  # noqa: N802
        return 0.5, 0.1, (), 0.0


class FakePlayTable:
    """CALVIN's environment: its task is solved by an action that closes the gripper."""

    def __init__(self) -> None:
        self.p, self.cid = FakeBullet(), 0
        camera = lambda name, side: SimpleNamespace(  # noqa: E731
            name=name, render=lambda: (np.zeros((side, side, 3), np.uint8), None)
        )
        self.cameras = [camera("static", 200), camera("gripper", 84)]
        self.robot = SimpleNamespace(gripper_action=-1)
        self.scene = SimpleNamespace(lights=[SimpleNamespace(get_state=lambda: 1)])

    def reset(self, robot_obs: Any, scene_obs: Any) -> None:
        assert (robot_obs.shape, scene_obs.shape) == ((15,), (24,))
        assert self.cameras == []  # nothing renders in steps
        self.grip = 1

    def step(self, action: Any) -> Any:
        assert action[-1] in (-1, 1)
        self.grip = action[-1]
        return {}, 0, False, self.get_info()

    def get_info(self) -> dict[str, Any]:
        return {"grip": self.grip}

    def get_state_obs(self) -> dict[str, Any]:
        return {"robot_obs": np.zeros(15), "scene_obs": np.zeros(24)}


def test_calvin_steps_without_rendering_and_judges_with_upstreams_oracle() -> None:
    env = FakePlayTable()

    def oracle(start: Any, end: Any, names: set[str]) -> set[str]:
        return names if start["grip"] != end["grip"] else set()

    starts = [calvin.sequences()[0][0]]
    solver = SimpleNamespace(get_task_info_for_set=oracle)
    sim = calvin.CalvinSim(env, solver, "open_drawer", starts)
    features = calvin.make(config_of("calvin")).describe()["features"]
    assert run_once(sim, features, [0, 0, 0, 0, 0, 0, 0.3])[:3] == [0.0, False, False]
    assert run_once(sim, features, [0, 0, 0, 0, 0, 0, -0.3])[:3] == [1.0, True, True]
    assert env.p.restored == 2
    assert env.robot.gripper_action == 1
    assert "red block x" in sim.coordinates()


class FakeManiSkill:
    """ManiSkill's environment of batch size 1, with arrays in place of tensors."""

    obs_mode, control_mode, control_freq = "rgb+segmentation", "pd_ee_delta_pose", 20

    def __init__(self) -> None:
        self.agent = SimpleNamespace(robot=SimpleNamespace(get_qpos=lambda: np.zeros((1, 9))))
        self.single_action_space = SimpleNamespace(low=np.full(7, -1.0), high=np.full(7, 1.0))
        self.rendered = 0
        self.options: dict[str, Any] = {}

    def get_obs(self, *_: Any, **__: Any) -> Any:
        self.rendered += 1
        return {}

    def reset(self, seed: int, options: dict[str, Any]) -> Any:
        self.options = options
        return self.get_obs(), {}

    def step(self, action: Any) -> Any:
        self.get_obs()
        done = np.array([bool(action[0] > 0)])
        return {}, done.astype(float), done, np.array([False]), {"success": done}

    def get_info(self) -> Any:
        return {}

    def _get_obs_state_dict(self, info: Any) -> Any:
        return {"agent": {"qpos": np.zeros((1, 9))}, "extra": {"goal": np.zeros((1, 3))}}

    def get_sensor_images(self) -> Any:
        self.rendered += 1
        return {"base_camera": {"rgb": np.zeros((1, 8, 9, 3), np.uint8)}}

    def get_state(self) -> Any:
        return np.zeros((1, 13), np.float32)

    def close(self) -> None:
        """Do nothing."""


def fake_maniskill(monkeypatch: pytest.MonkeyPatch) -> list[FakeManiSkill]:
    made: list[FakeManiSkill] = []

    def make(name: str, **settings: Any) -> Any:
        assert settings["sim_backend"] == "physx_cpu"
        made.append(FakeManiSkill())
        return SimpleNamespace(unwrapped=made[-1])

    install_modules(
        monkeypatch,
        gymnasium={"make": make},
        mani_skill={},
        mani_skill__envs={},
        torch={"tensor": np.array},
    )
    return made


def test_maniskill_reads_sizes_from_the_environment_and_renders_on_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = fake_maniskill(monkeypatch)
    world = maniskill.make(config_of("maniskill"))
    described = world.describe()
    assert described["features"]["observation.images.base_camera"]["shape"] == [8, 9, 3]
    assert described["features"]["observation.environment_state"]["shape"] == [12]
    assert described["action"]["size"] == 7
    assert len(described["tasks"]) == 16
    sim = world.open({"name": "PickCube-v1"})
    sim.reset({"seed": 1, "index": 0})
    sim.step(np.zeros(7))
    assert made[-1].rendered == 0
    assert run_once(sim, described["features"], np.ones(7))[:3] == [1.0, True, True]
    assert made[-1].rendered == 1


def test_widowx_takes_the_init_state_as_episode_and_is_not_mixed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = fake_maniskill(monkeypatch)
    with pytest.raises(Refused):
        maniskill.make(config_of("maniskill", task="tabletop,widowx"))
    sim = maniskill.make(config_of("maniskill", task="widowx")).open(
        {"name": "PutCarrotOnPlateInScene-v1"}
    )
    sim.reset({"seed": 1, "index": 2, "init_state": 7})
    assert made[-1].options["episode_id"] == [7]


class FakeKitchen:
    """RoboCasa's environment."""

    def __init__(self) -> None:
        data = SimpleNamespace(
            qpos=np.zeros(3), qvel=np.zeros(3), xpos=np.zeros((2, 3)), xquat=np.zeros((2, 4))
        )
        self.sim = SimpleNamespace(
            data=data,
            render=lambda camera_name, height, width: np.zeros((height, width, 3), np.uint8),
        )
        self.rng: Any = None
        self.action: Any = None

    def reset(self) -> Any:
        self.drawn = self.rng.random()
        return self._numbers()

    def step(self, action: Any) -> Any:
        self.action = action
        return self._numbers(), 0.0, False, {}

    def _numbers(self) -> Any:
        sizes = dict(zip(robocasa.STATE_PARTS, (3, 4, 3, 4, 2), strict=True))
        return {name: np.zeros(size) for name, size in sizes.items()}

    def _check_success(self) -> bool:
        return bool(self.action[0] > 0)

    def close(self) -> None:
        """Do nothing."""


def test_robocasa_keeps_the_base_still_and_draws_from_the_seed() -> None:
    config = config_of("robocasa")
    env = FakeKitchen()
    sim = robocasa.RoboCasaSim(env, config)
    features = robocasa.make(config).describe()["features"]
    assert run_once(sim, features, np.ones(7))[:3] == [1.0, True, True]
    assert env.action.tolist() == [1.0] * 7 + [0.0, 0.0, 0.0, 0.0, -1.0]
    drawn = env.drawn
    sim.reset({"seed": 3, "index": 9})
    assert env.drawn == drawn
    assert robocasa.make(config_of("robocasa", arm_only=False)).describe()["action"]["size"] == 12
    quiet = robocasa.make(config_of("robocasa", task="TurnOnMicrowave")).describe()
    assert quiet["warnings"] == []


class FakeVectorEnv:
    """RoboTwin's vector environment of one task."""

    def __init__(self, settings: dict[str, Any], number: int, env_seeds: list[int]) -> None:
        assert (settings["task_name"], number) == ("click_bell", 1)
        pose = SimpleNamespace(p=np.zeros(3), q=np.zeros(4))
        actor = SimpleNamespace(get_pose=lambda: pose)
        robot = SimpleNamespace(
            get_left_arm_jointState=lambda: [0.0] * 7, get_right_arm_jointState=lambda: [0.0] * 7
        )
        task = SimpleNamespace(
            robot=robot,
            scene=SimpleNamespace(get_all_actors=lambda: [actor]),
            gen_sparse_reward_data=self._act,
        )
        image = np.zeros((240, 320, 3), np.uint8)
        seen = {**dict.fromkeys(robotwin.CAMERAS.values(), image), "state": np.zeros(14)}
        self.envs = [SimpleNamespace(task=task, get_obs=lambda: seen)]
        self.seeds: list[int] = []

    def _act(self, chunk: Any) -> Any:
        assert chunk.shape == (1, 14)
        solved = bool(chunk[0, 0] > 0)
        return np.array([float(solved)]), None, None, {"success": solved}

    def reset(self, env_seeds: list[int]) -> None:
        self.seeds += env_seeds


def test_robotwin_executes_one_action_of_14_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    install_modules(
        monkeypatch,
        robotwin={},
        robotwin__config={"load_task_config": lambda name: {"name": name}},
        robotwin__envs={},
        robotwin__envs__vector_env={"VectorEnv": FakeVectorEnv},
    )
    world = robotwin.make(config_of("robotwin"))
    sim = world.open({"name": "click_bell", "max_steps": 400})
    assert run_once(sim, world.describe()["features"], np.ones(14))[:3] == [1.0, True, True]
    assert robotwin.task_horizons()["put_bottles_dustbin"] == 1700


class FakePlanError(Exception):
    """A motion without a plan."""


def test_rlbench_goes_on_after_a_pose_that_no_plan_reaches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_of("rlbench")
    image = np.zeros((128, 128, 3), np.uint8)
    seen = SimpleNamespace(
        gripper_pose=np.zeros(7),
        gripper_open=1.0,
        joint_positions=np.zeros(7),
        joint_velocities=np.zeros(7),
        task_low_dim_state=np.zeros(4),
        **{f"{name}_rgb": image for name in rlbench.CAMERAS},
    )

    def step(target: Any) -> Any:
        assert np.isclose(np.linalg.norm(target[3:7]), 1)
        if target[0] < 0:
            raise FakePlanError
        return seen, 1.0, True

    task = SimpleNamespace(
        set_variation=lambda number: None,
        reset=lambda: None,
        step=step,
        get_observation=lambda: seen,
    )
    made = (SimpleNamespace(shutdown=lambda: None), task, (FakePlanError,))
    monkeypatch.setattr(rlbench, "make_env", lambda module, settings: made)
    world = rlbench.make(config)
    sim, features = world.open({"name": "reach_target"}), world.describe()["features"]
    assert run_once(sim, features, [-1, 0, 0, 0, 0, 0, 0, 1])[:3] == [0.0, False, False]
    assert run_once(sim, features, [1, 0, 0, 0, 0, 2, 0, 1])[:3] == [1.0, True, True]
