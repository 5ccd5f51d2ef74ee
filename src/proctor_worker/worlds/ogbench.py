"""OGBench's manipulation environments: goal-conditioned tasks of a UR5e arm.

Two things in OGBench's reset do not follow its seed: which of the five tasks is drawn (here a task
is chosen, so nothing is drawn), and the random actions with which it settles the goal's scene (they
come from an action space that nothing seeds). Here the episode's seed decides both. The reset also
keeps what earlier episodes changed in the model, so the compiled model is restored first.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from proctor_worker.records import EXPERT_ACTION, Step
from proctor_worker.server import adapter_code
from proctor_worker.worlds.mujoco_tools import (
    CompiledModel,
    chosen_rows,
    physics_state,
    rendering_variables,
    single_size,
    xyz,
)
from proctor_worker.worlds.ogbench_expert import OracleExpert

FPS = 20
STATE = "observation.state"
GOAL = "observation.goal"
IMAGE = "observation.images.front"
GOAL_IMAGE = "observation.images.goal"
FILM = "observation.film"
_TASKS_PER_SUITE = 5
_PROPRIO = 19
"""Numbers of the arm in a state: joints, velocities, hand, gripper."""
_SEEN_FIELDS = (
    *("xpos", "xquat", "xmat", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat", "cam_xpos"),
    *("cam_xmat", "light_xpos", "light_xdir", "mocap_pos", "mocap_quat", "qpos"),
)
_COLOURS = ("geom_rgba", "mat_rgba")

SUITES: Dict[str, Tuple[str, str, int, int]] = {
    "cube-single": ("cube_env:CubeEnv", "single", 200, _PROPRIO + 9),
    "cube-double": ("cube_env:CubeEnv", "double", 500, _PROPRIO + 2 * 9),
    "cube-triple": ("cube_env:CubeEnv", "triple", 1000, _PROPRIO + 3 * 9),
    "cube-quadruple": ("cube_env:CubeEnv", "quadruple", 1000, _PROPRIO + 4 * 9),
    "cube-octuple": ("cube_env:CubeEnv", "octuple", 1500, _PROPRIO + 8 * 9),
    "scene": ("scene_env:SceneEnv", "scene", 750, _PROPRIO + 9 + 2 * 4 + 4),
    "puzzle-3x3": ("puzzle_env:PuzzleEnv", "3x3", 500, _PROPRIO + 9 * 4),
    "puzzle-4x4": ("puzzle_env:PuzzleEnv", "4x4", 500, _PROPRIO + 16 * 4),
    "puzzle-4x5": ("puzzle_env:PuzzleEnv", "4x5", 1000, _PROPRIO + 20 * 4),
    "puzzle-4x6": ("puzzle_env:PuzzleEnv", "4x6", 1000, _PROPRIO + 24 * 4),
}
"""Suite -> class, its type, registered horizon, size of its state."""

INSTRUCTIONS = {
    "cube": "move the cubes to their goal places",
    "scene": "bring cube, drawer, window and buttons into their goal states",
    "puzzle": "press the buttons until all have their goal colours",
}
"""Proctor's words: OGBench has no language, and shows the goal as an observation."""


def make(config: Dict[str, Any]) -> "OgbenchWorld":
    """Return the world."""
    return OgbenchWorld(config)


class OgbenchWorld:
    """Ten suites of five tasks."""

    def __init__(self, config: Dict[str, Any]) -> None:
        self._config = config
        self._pixels = config["obs_type"] == "pixels"
        named = {suite: _task_names(suite) for suite in SUITES}
        self._chosen = list(chosen_rows(config, named))
        self._size = single_size("states", {suite: SUITES[suite][3] for suite in self._chosen})

    def describe(self) -> Dict[str, Any]:
        """Return tasks, features and rules."""
        config = self._config
        return {
            "tasks": [
                {
                    "suite": suite,
                    "task_id": number,
                    "name": name,
                    "instruction": INSTRUCTIONS[suite.split("-")[0]],
                    "max_steps": self._horizon(suite),
                    "fps": FPS,
                }
                for suite in SUITES
                for number, name in enumerate(_task_names(suite))
            ],
            "features": self._features(),
            "action": {
                "size": 5,
                "low": -1.0,
                "high": 1.0,
                "clipped": False,
                "names": ["dx", "dy", "dz", "dyaw", "gripper"],
            },
            "scores": [{"name": "subgoals", "label": "subgoals"}],
            "protocol": {
                "control_hz": FPS,
                "horizon": {suite: self._horizon(suite) for suite in self._chosen},
                "horizon_rule": "--env.episode_length"
                if config["episode_length"]
                else "OGBench's registration",
                "seed_rule": "run seed + episode index, the same for every task",
                "reset_rule": "reset(seed, options={'task_id'}) of a new environment whose action "
                "space, which settles the goal's scene, is seeded with the same seed",
                "termination": "success",
                "success": "info['success']: cubes within 0.04 m, drawer and window within 0.04 m, "
                "buttons equal",
                "success_timing": config["success_timing"],
                "reward": "1 at success, otherwise 0",
                "observation": "visual-* environments" if self._pixels else "states",
                "cameras": ["front_pixels" if self._pixels else "front"],
                "score": "subgoals: fraction of cubes, drawer, window and buttons at their goals",
            },
            "distributions": ["ogbench", "mujoco", "dm_control", "gymnasium", "numpy", "scipy"],
        }

    def preflight(self, keys: Sequence[str]) -> Dict[str, str]:
        """Choose a GL backend if ``keys`` has images."""
        return rendering_variables(any(key in (IMAGE, GOAL_IMAGE, FILM) for key in keys))

    def open(self, task: Dict[str, Any]) -> "OgbenchSim":
        """Return the simulator of a task."""
        return OgbenchSim(task, self._config)

    def _horizon(self, suite: str) -> int:
        horizon: int = self._config["episode_length"] or SUITES[suite][2]
        return horizon

    def _features(self) -> Dict[str, Any]:
        image = {"kind": "VISUAL", "shape": [64, 64, 3], "dtype": "uint8"}
        state = {"kind": "STATE", "shape": [self._size or _PROPRIO], "dtype": "float32"}
        shown: Dict[str, Any] = (
            {IMAGE: image, GOAL_IMAGE: image}
            if self._pixels
            else {
                STATE: state,
                GOAL: dict(state, kind="ENV"),
                FILM: {"kind": "FILM", "shape": [200, 200, 3], "dtype": "uint8"},
            }
        )
        return dict(shown, **{EXPERT_ACTION: {"kind": "ACTION", "shape": [5], "dtype": "float32"}})


def _task_names(suite: str) -> List[str]:
    return ["%s-task%d" % (suite, number + 1) for number in range(_TASKS_PER_SUITE)]


class OgbenchSim:
    """One environment of OGBench whose episodes equal the first of a new one, bit for bit."""

    def __init__(self, task: Dict[str, Any], config: Dict[str, Any]) -> None:
        self._options = {"task_id": task["task_id"] + 1}
        self._env = make_env(task["suite"], config["obs_type"], config["success_timing"])
        self._pixels = config["obs_type"] == "pixels"
        self._compiled: Optional[CompiledModel] = None
        self._goal: Any = None
        self._state: Any = None
        self._expert = OracleExpert(self._env)
        if self._pixels:
            self._env.compute_observation = self._scene_shown

    def reset(self, spec: Dict[str, Any]) -> None:
        """Restore the compiled model, then reset with the spec's seed."""
        env = self._env
        env.seeded_space.seed(spec["seed"])
        if self._compiled is None:
            env.reset(seed=spec["seed"], options=self._options)
            env.compile_model_and_data()
            self._compiled = CompiledModel(env.model)
            env.seeded_space.seed(spec["seed"])
        self._compiled.restore()
        self._state, info = env.reset(seed=spec["seed"], options=self._options)
        self._goal = info["goal"]
        self._expert.reset()

    def step(self, action: Any) -> Step:
        """Advance by one action."""
        # float32, as OGBench's action space and its agents have it.
        self._state, reward, terminated, _, info = self._env.step(np.asarray(action, np.float32))
        with adapter_code():
            reached = np.hstack([np.ravel(part) for part in _flat(self._env._compute_successes())])
            scores = {"subgoals": float(reached.mean())}
            return Step(float(reward), bool(info["success"]), bool(terminated), scores)

    def observe(self, keys: Sequence[str]) -> Dict[str, Any]:
        """Return the current observation for ``keys``; image keys render."""
        with adapter_code():
            return {key: self._observe(key) for key in keys}

    def physics(self) -> Any:
        """Return the state of the physics and of the buttons."""
        buttons = getattr(self._env, "_cur_button_states", np.zeros(0))
        return np.concatenate([physics_state(self._env.data), buttons.astype(np.float64)])

    def coordinates(self) -> Dict[str, float]:
        """Return the positions of cubes, their goals, drawer, window and hand."""
        env, found = self._env, {}  # type: Any, Dict[str, float]
        info = env.compute_ob_info()
        for cube in range(getattr(env, "_num_cubes", 0)):
            found.update(xyz("cube %d" % cube, info["privileged/block_%d_pos" % cube]))
            goal = env.data.mocap_pos[env._cube_target_mocap_ids[cube]]
            found.update(xyz("goal %d" % cube, goal))
        for name in ("drawer", "window"):
            if "privileged/%s_pos" % name in info:
                found["%s opening" % name] = float(info["privileged/%s_pos" % name][0])
        found.update(xyz("robot hand", info["proprio/effector_pos"]))
        return found

    def close(self) -> None:
        """Free the renderer."""
        if self._env._renderer is not None:
            self._env._renderer.close()
            self._env._renderer = None

    def _observe(self, key: str) -> Any:
        if key == STATE:
            return self._state.astype(np.float32)
        if key == GOAL:
            return self._goal.astype(np.float32)
        if key == EXPERT_ACTION:
            return self._expert.action().astype(np.float32)
        if key == GOAL_IMAGE:
            return self._goal.render()
        return self._env.render()

    def _scene_shown(self) -> "_ShownScene":
        """Stand in for OGBench's observation, which renders: store what it would show."""
        return _ShownScene(self._env)


class _ShownScene:
    """Poses and colours of a moment, rendered only if they are asked for."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._poses = [getattr(env.data, name).copy() for name in _SEEN_FIELDS]
        self._colours = [getattr(env.model, name).copy() for name in _COLOURS]

    def render(self) -> Any:
        """Return the image that OGBench's observation would have been."""
        import mujoco

        env = self._env
        live, now = env._data, [getattr(env.model, name).copy() for name in _COLOURS]
        shown = mujoco.MjData(env.model)
        for name, values in zip(_SEEN_FIELDS, self._poses):
            getattr(shown, name)[...] = values
        try:
            for name, values in zip(_COLOURS, self._colours):
                getattr(env.model, name)[...] = values
            env._data = shown
            return env.render()
        finally:
            env._data = live
            for name, values in zip(_COLOURS, now):
                getattr(env.model, name)[...] = values


def make_env(suite: str, obs_type: str, success_timing: str) -> Any:
    """Make the environment of a suite, with an action space that can be seeded."""
    import importlib

    import gymnasium

    place, kind = SUITES[suite][:2]
    module, _, name = place.partition(":")
    original = getattr(importlib.import_module("ogbench.manipspace.envs." + module), name)
    space = gymnasium.spaces.Box(-np.ones(5), np.ones(5), (5,), np.float32)
    members = {"action_space": property(lambda self: space), "seeded_space": space}
    seeded = type(original.__name__, (original,), members)
    visual = {"ob_type": "pixels", "width": 64, "height": 64, "visualize_info": False}
    kwargs = visual if obs_type == "pixels" else {"ob_type": "states"}
    return seeded(env_type=kind, success_timing=success_timing, **kwargs)


def _flat(successes: Any) -> Sequence[Any]:
    """Return OGBench's successes as a list: the scene has a tuple of lists and flags."""
    return successes if isinstance(successes, tuple) else [successes]
