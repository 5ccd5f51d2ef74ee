"""Worlds of other interpreters: descriptions, refusals, experts and resets, with fake packages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.base import BenchmarkConfig
from proctor.errors import UsageError
from proctor.plugins import find_benchmark
from proctor_worker.records import Refused
from proctor_worker.worlds import mujoco_tools, ogbench, ogbench_expert, robosuite, so101_nexus

mujoco = pytest.importorskip("mujoco", reason="pip install 'proctor[metaworld]'")

COMMON = {"task_ids": None, "episode_length": None}
SIZES = {"observation_height": 8, "observation_width": 8}
ROBOSUITE = {"demonstrations": "ph", "lite_physics": True, "camera_name": None, **SIZES, **COMMON}
OGBENCH = {"obs_type": "state", "success_timing": "post", **COMMON}
NEXUS = {"obs_type": "pixels_agent_pos", "control_mode": "pd_joint_pos", **SIZES, **COMMON}
BALL = "<mujoco><worldbody><camera name='agentview' pos='0 0 3'/><light pos='0 0 3'/>"
BALL += (
    "<body name='ball'><freejoint/><geom size='.1'/><site name='s'/></body></worldbody></mujoco>"
)


def described(module: Any, config: dict, task: str) -> dict:
    return module.make({**config, "task": task}).describe()


# ---- descriptions


@pytest.mark.parametrize(
    ("task", "horizon", "action", "state", "objects"),
    [
        ("Lift", 400, 7, 9, 10),
        ("PickPlaceCan", 400, 7, 9, 14),
        ("NutAssemblySquare", 400, 7, 9, 14),
        ("TwoArmTransport", 700, 14, 18, 41),
        ("ToolHang", 700, 7, 9, 44),
    ],
)
def test_robomimics_horizons_and_sizes(
    task: str, horizon: int, action: int, state: int, objects: int
) -> None:
    found = described(robosuite, ROBOSUITE, task)
    assert found["protocol"]["horizon"] == {task: horizon}
    assert found["action"]["size"] == len(found["action"]["names"]) == action
    assert found["features"]["observation.state"]["shape"] == [state]
    assert found["features"]["observation.environment_state"]["shape"] == [objects]


def test_multi_human_horizons_are_longer_and_tool_hang_has_none() -> None:
    config = ROBOSUITE | {"demonstrations": "mh"}
    assert described(robosuite, config, "Lift")["protocol"]["horizon"] == {"Lift": 500}
    with pytest.raises(Refused) as refused:
        robosuite.make({**config, "task": "ToolHang"})
    assert refused.value.code == "env.no-horizon"


def test_transport_has_its_own_cameras_and_a_wrong_one_is_refused() -> None:
    features = described(robosuite, ROBOSUITE, "TwoArmTransport")["features"]
    assert "observation.images.shouldercamera1" in features
    with pytest.raises(Refused) as refused:
        described(robosuite, ROBOSUITE | {"camera_name": "agentveiw"}, "Lift")
    assert refused.value.code == "env.unknown-camera"


@pytest.mark.parametrize(
    ("module", "config", "task"),
    [
        (robosuite, ROBOSUITE, "Lift,TwoArmTransport"),
        (ogbench, OGBENCH, "cube-single,scene"),
        (so101_nexus, NEXUS | {"obs_type": "state"}, "Touch-v1,Move-v1"),
    ],
)
def test_tasks_of_different_sizes_are_refused(module: Any, config: dict, task: str) -> None:
    with pytest.raises(Refused) as refused:
        module.make({**config, "task": task})
    assert refused.value.code == "env.mixed-spaces"


def test_images_of_tasks_whose_objects_differ_are_offered_together() -> None:
    features = described(robosuite, ROBOSUITE, "Lift,ToolHang")["features"]
    assert "observation.images.agentview" in features
    assert "observation.environment_state" not in features


def test_every_suite_of_ogbench_has_five_tasks_and_its_registered_horizon() -> None:
    tasks = described(ogbench, OGBENCH, "scene")["tasks"]
    horizons = {task["suite"]: task["max_steps"] for task in tasks}
    assert len(tasks) == 5 * len(ogbench.SUITES)
    assert horizons["cube-single"] == 200
    assert horizons["scene"] == 750
    assert described(ogbench, OGBENCH, "scene")["features"]["observation.goal"]["shape"] == [40]


def test_so101_nexus_shows_images_and_joints_or_its_flat_state() -> None:
    visual = described(so101_nexus, NEXUS, "StackCube-v1")["features"]
    flat = described(so101_nexus, NEXUS | {"obs_type": "state"}, "StackCube-v1")["features"]
    assert visual["observation.state"]["shape"] == [6]
    assert visual["observation.environment_state"]["shape"] == flat["observation.state"]["shape"]


# ---- flags on Proctor's side


def config_of(name: str, **flags: Any) -> BenchmarkConfig:
    return find_benchmark(name).config(**flags)


@pytest.mark.parametrize("name", ["robosuite", "ogbench", "so101_nexus"])
def test_a_world_that_is_not_installed_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UsageError) as refused:
        find_benchmark(name).maker(config_of(name))
    assert refused.value.code == "benchmark.not-installed"


@pytest.mark.parametrize("name", ["robosuite", "ogbench", "so101_nexus"])
def test_a_length_of_zero_is_refused_before_anything_starts(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        find_benchmark(name).maker(config_of(name, episode_length=0, python="no such file"))
    assert refused.value.code == "flag.out-of-range"


@pytest.mark.parametrize("name", ["ogbench", "so101_nexus", "robosuite"])
def test_the_world_itself_answers_in_another_process(name: str) -> None:
    config = config_of(name, python=sys.executable)
    benchmark = find_benchmark(name).maker(config)()
    assert [task.name for task in benchmark.tasks()]
    assert bool(benchmark.expert_inputs) == (name == "ogbench")


# ---- experts of OGBench


@pytest.mark.parametrize("shape", [(3, 3), (4, 4), (4, 5), (4, 6)])
def test_lights_are_solved(shape: tuple[int, int]) -> None:
    rows, columns = shape
    rng = np.random.default_rng(0)
    for _ in range(5):
        pressed = rng.integers(0, 2, rows * columns)
        wrong = flipped(rows, columns, pressed)
        found = ogbench_expert.solve_lights(rows, columns, wrong)
        assert (flipped(rows, columns, found) == wrong).all()
        assert found.sum() <= pressed.sum()


def test_a_puzzle_without_a_solution_is_none() -> None:
    one = np.zeros(16, int)
    one[0] = 1
    assert ogbench_expert.solve_lights(4, 4, one) is None


def flipped(rows: int, columns: int, pressed: Any) -> Any:
    board = np.zeros((rows + 2, columns + 2), int)
    for row, column in np.argwhere(np.reshape(pressed, (rows, columns))):
        for at in ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2)):
            board[row + at[0], column + at[1]] ^= 1
    return board[1:-1, 1:-1].ravel()


def test_cubes_are_stacked_from_below() -> None:
    places = np.array([[0.3, 0.1, 0.02], [0.3, -0.1, 0.02]])
    goals = np.array([[0.4, 0.0, 0.06], [0.4, 0.0, 0.02]])
    cube, target = ogbench_expert.next_cube(places, goals)
    assert (cube, target.tolist()) == (1, goals[1].tolist())
    places[1] = goals[1]
    assert ogbench_expert.next_cube(places, goals)[0] == 0
    places[0] = goals[0]
    assert ogbench_expert.next_cube(places, goals) is None


def test_swapped_cubes_make_room_first() -> None:
    places = np.array([[0.4, 0.1, 0.02], [0.4, -0.1, 0.02]])
    cube, spot = ogbench_expert.next_cube(places, places[::-1])
    others = np.concatenate([places, places[::-1]])
    assert cube in (0, 1)
    assert np.linalg.norm(others[:, :2] - spot[:2], axis=1).min() > 0.08


# ---- resets, with fake packages


class FakeRobosuite:
    """robosuite's environment: one generator, draws when it is made and at every reset."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.hard_reset, self.observables, self.builds = True, [], 0
        self._initialize_sim()
        self._reset_internal()

    def _initialize_sim(self) -> None:
        self.builds += 1
        model = mujoco.MjModel.from_xml_string(BALL)
        data = mujoco.MjData(model)
        wrapped = SimpleNamespace(_model=model), SimpleNamespace(_data=data)
        self.sim = SimpleNamespace(model=wrapped[0], data=wrapped[1], reset=None)
        self.sim.forward = lambda: mujoco.mj_forward(model, data)

    def _load_model(self) -> None:
        self.size = self.rng.uniform()

    def _reset_internal(self) -> None:
        self.sim.data._data.qpos[:3] = self.rng.uniform(size=3)
        self.sim.model._model.body_pos[0] = self.rng.uniform(size=3)  # must not survive

    def add_observable(self, observable: Any) -> None:
        self.observables.append(observable)

    def reset(self) -> dict:
        if self.hard_reset:
            self._load_model()
            self._initialize_sim()
        else:
            self.sim.reset()
        self._reset_internal()
        self.sim.forward()
        return self._seen()

    def step(self, action: Any) -> tuple:
        mujoco.mj_step(self.sim.model._model, self.sim.data._data)
        return self._seen(), 0.0, False, {}

    def _check_success(self) -> bool:
        return False

    def _seen(self) -> dict:
        for observable in self.observables:
            observable.sensor({})
        at = self.sim.data._data.qpos
        zeros = {"robot0_eef_quat": np.zeros(4), "robot0_gripper_qpos": np.zeros(2)}
        return {"robot0_eef_pos": at[:3].copy(), "ball_pos": at[:3].copy(), **zeros}

    def close(self) -> None:
        pass


@pytest.fixture
def fake_robosuite(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("robosuite.utils.observables")
    module.sensor = lambda modality: lambda function: function  # type: ignore[attr-defined]
    module.Observable = lambda **fields: SimpleNamespace(**fields)  # type: ignore[attr-defined]
    for name in ("robosuite", "robosuite.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "robosuite.utils.observables", module)
    monkeypatch.setattr(robosuite, "make_env", lambda *_: FakeRobosuite())


@pytest.mark.usefixtures("fake_robosuite")
@pytest.mark.parametrize("task", ["Lift", "NutAssemblySquare"])
def test_a_used_robosuite_resets_like_a_new_one(task: str) -> None:
    config = {**ROBOSUITE, "task": task}
    used, new = (robosuite.RobosuiteSim(task, config, {}) for _ in range(2))
    for seed in (3, 4, 5):
        used.reset({"seed": seed})
        used.step(np.zeros(7))
    used.reset({"seed": 9})
    new.reset({"seed": 9})
    assert np.array_equal(used.physics(), new.physics())
    used.reset({"seed": 10})
    assert not np.array_equal(used.physics(), new.physics())


@pytest.mark.usefixtures("fake_robosuite")
def test_only_robosuites_seeded_models_are_built_again() -> None:
    for task, builds in (("Lift", 2), ("NutAssemblySquare", 0)):
        sim = robosuite.RobosuiteSim(task, {**ROBOSUITE, "task": task}, {})
        before = sim._env.builds
        sim.reset({"seed": 1})
        sim.reset({"seed": 2})
        assert sim._env.builds - before == builds
        assert set(sim.coordinates()) >= {"ball x", "robot hand z"}


class FakeOgbench:
    """OGBench's environment: settles the goal with actions of a space that nothing seeds."""

    def __init__(self) -> None:
        import gymnasium

        self.seeded_space = gymnasium.spaces.Box(-1, 1, (5,), np.float32)
        self._renderer, self._cur_button_states, self.rendered = None, np.zeros(2, int), 0
        self.compile_model_and_data()

    def compile_model_and_data(self) -> None:
        self.model = mujoco.MjModel.from_xml_string(BALL)
        self.data = mujoco.MjData(self.model)

    def reset(self, seed: int, options: dict) -> tuple:
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:3] = np.random.default_rng([seed, options["task_id"]]).uniform(size=3)
        mujoco.mj_forward(self.model, self.data)
        self.model.geom_rgba[0] = 0.5 * self.model.geom_rgba[0]  # must not survive
        goal = self.seeded_space.sample().astype(np.float64) * self.model.geom_rgba[0, 0]
        return self.data.qpos.copy(), {"goal": goal}

    def step(self, action: Any) -> tuple:
        mujoco.mj_step(self.model, self.data)
        return self.data.qpos.copy(), 0.0, False, False, {"success": False}

    def _compute_successes(self) -> Any:
        return [True], [False, True], False

    def render(self) -> Any:
        self.rendered += 1
        return np.zeros((200, 200, 3), np.uint8)


def test_ogbenchs_goal_follows_the_seed_and_steps_do_not_render(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("gymnasium")
    monkeypatch.setattr(ogbench, "make_env", lambda *_: FakeOgbench())
    task = {"suite": "scene", "task_id": 2}
    used, new = (ogbench.OgbenchSim(task, OGBENCH) for _ in range(2))
    for seed in (3, 4):
        used.reset({"seed": seed})
    for sim in (used, new):
        sim.reset({"seed": 9})
    assert np.array_equal(used.physics(), new.physics())
    keys = ["observation.state", "observation.goal"]
    ours, theirs = used.observe(keys), new.observe(keys)
    assert all(np.array_equal(ours[key], theirs[key]) for key in keys)
    assert used.step(np.zeros(5)).scores == {"subgoals": 0.5}
    assert used._env.rendered == 0
    used.observe(["observation.film"])
    assert used._env.rendered == 1


def test_so101_nexuss_cameras_wait_for_the_first_image() -> None:
    made = []

    class Original:
        def _make_renderer(self, name: str, **settings: Any) -> Any:
            made.append(name)
            return SimpleNamespace(render=lambda: "image", close=lambda: None)

    make = so101_nexus._make_waiting(Original._make_renderer)
    wrist = make(Original(), "wrist", width=8)
    wrist.close()
    assert made == []
    assert wrist.render() == wrist.render() == "image"
    assert made == ["wrist"]
    make(Original(), "render")
    assert made == ["wrist", "render"]


# ---- MuJoCo


def test_a_compiled_model_is_restored() -> None:
    model = mujoco.MjModel.from_xml_string(BALL)
    compiled = mujoco_tools.CompiledModel(model)
    before = model.geom_size.copy()
    model.geom_size[:] = 7
    compiled.restore()
    assert np.array_equal(model.geom_size, before)


def test_no_gl_library_is_loaded_without_images_and_a_broken_backend_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert mujoco_tools.rendering_variables(False) == {"MUJOCO_GL": "disable"}
    monkeypatch.setattr(mujoco_tools, "_draws", lambda backend: False)
    with pytest.raises(Refused) as refused:
        mujoco_tools.rendering_variables(True)
    assert refused.value.code == "gl.unavailable"
