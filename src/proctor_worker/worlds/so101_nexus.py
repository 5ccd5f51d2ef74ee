"""so101-nexus: tasks of an SO-101 arm in MuJoCo, rendered only for observations.

so101-nexus renders its cameras at every step. Here its cameras get a renderer that waits until an
image is asked for; everything else, also the random poses of the wrist camera, is its own.
"""

from typing import Any, Dict, List, NamedTuple, Sequence

import numpy as np

from proctor_worker.records import Step
from proctor_worker.server import adapter_code
from proctor_worker.worlds.mujoco_tools import (
    CompiledModel,
    chosen_rows,
    physics_state,
    rendering_variables,
    shared_size,
    single_size,
    xyz,
)

FPS = 50
SUITE = "so101_nexus"
STATE = "observation.state"
ENVIRONMENT_STATE = "observation.environment_state"
FILM = "observation.film"
CLOSEST = "closest_m"
"""Score: distance of the gripper from the object or the target; the journal keeps the minimum."""
CAMERAS = {"observation.images.wrist": "wrist", "observation.images.overhead": "overhead"}
_FILM_SHAPE = [480, 640, 3]
_JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
_LOW = (-1.91986, -1.7453293, -1.69, -1.65806, -2.7438474, -0.17453)
_HIGH = (1.91986, 1.7453293, 1.69, 1.65806, 2.7438474, 1.7453291)
_NEW_SCENE = (None, None)
"""Positions of the wrist camera at the last two observations, before there are any."""


class _Row(NamedTuple):
    """One task: its module and class, horizon, instruction and size of its flat state."""

    module: str
    name: str
    horizon: int
    instruction: str
    size: int


TASKS = {
    "Touch-v1": _Row("touch_env", "TouchEnv", 512, "Touch the red cube.", 31),
    "LookAt-v1": _Row("look_at_env", "LookAtEnv", 256, "Look at the red cube.", 23),
    "Move-v1": _Row("move_env", "MoveEnv", 256, "Move the end-effector up by 0.10 m.", 22),
    "PickLift-v1": _Row("pick_env", "PickLiftEnv", 1024, "Pick up the red cube.", 31),
    "PickReturn-v1": _Row(
        "pick_return",
        "PickReturnEnv",
        1024,
        "Pick up the red cube and return the arm to rest while holding it.",
        42,
    ),
    "PickAndPlace-v1": _Row(
        "pick_and_place",
        "PickAndPlaceEnv",
        1024,
        "Pick up the red cube and place it on the blue circle.",
        43,
    ),
    "PickAndPlace-v2": _Row(
        "pick_and_place",
        "PickAndPlaceV2Env",
        1024,
        "Pick up the red cube, center it on the blue circle, and release it onto the table.",
        43,
    ),
    "StackCube-v1": _Row(
        "stack_cube", "StackCubeEnv", 1024, "Stack the red cube on the blue cube.", 43
    ),
}
"""Instructions and horizons are so101-nexus's own, of its default objects."""


def make(config: Dict[str, Any]) -> "NexusWorld":
    """Return the world."""
    return NexusWorld(config)


class NexusWorld:
    """Eight tasks."""

    def __init__(self, config: Dict[str, Any]) -> None:
        self._config = config
        self._visual = config["obs_type"] != "state"
        rows = chosen_rows(config, {SUITE: list(TASKS)})
        self._chosen = [name for names in rows.values() for name in names]
        sizes = {name: TASKS[name].size for name in self._chosen}
        self._size = shared_size(sizes) if self._visual else single_size("states", sizes)

    def describe(self) -> Dict[str, Any]:
        """Return tasks, features and rules."""
        config = self._config
        joints = config["control_mode"] == "pd_joint_pos"
        return {
            "tasks": [
                {
                    "suite": SUITE,
                    "task_id": number,
                    "name": name,
                    "instruction": TASKS[name].instruction,
                    "max_steps": self._horizon(name),
                    "fps": FPS,
                }
                for number, name in enumerate(TASKS)
            ],
            "features": self._features(),
            "action": {
                "size": len(_JOINTS),
                "low": list(_LOW) if joints else -1.0,
                "high": list(_HIGH) if joints else 1.0,
                "names": list(_JOINTS),
            },
            "scores": []
            if "LookAt-v1" in self._chosen
            else [{"name": CLOSEST, "label": "closest approach (m)"}],
            "protocol": {
                "control_hz": FPS,
                "control_mode": config["control_mode"],
                "horizon": {name: self._horizon(name) for name in self._chosen},
                "horizon_rule": "--env.episode_length"
                if config["episode_length"]
                else "so101-nexus's registration",
                "seed_rule": "run seed + episode index, the same for every task",
                "reset_rule": "reset(seed=...) of a new environment",
                "termination": "success",
                "success": "info['success']",
                "reward": "so101-nexus's shaped reward",
                "observation": "visual" if self._visual else "state",
                "cameras": sorted(CAMERAS.values()) if self._visual else [],
                "image_size": [config["observation_height"], config["observation_width"]],
            },
            "distributions": ["so101-nexus", "mujoco", "gymnasium", "numpy", "scipy"],
        }

    def preflight(self, keys: Sequence[str]) -> Dict[str, str]:
        """Choose a GL backend if ``keys`` has images."""
        return rendering_variables(any(key in CAMERAS or key == FILM for key in keys))

    def open(self, task: Dict[str, Any]) -> "NexusSim":
        """Return the simulator of a task."""
        return NexusSim(task["name"], self._config)

    def _horizon(self, name: str) -> int:
        horizon: int = self._config["episode_length"] or TASKS[name].horizon
        return horizon

    def _features(self) -> Dict[str, Any]:
        config = self._config
        if not self._visual:
            return {
                STATE: {"kind": "STATE", "shape": [self._size or 1], "dtype": "float32"},
                FILM: {"kind": "FILM", "shape": _FILM_SHAPE, "dtype": "uint8"},
            }
        shape = [config["observation_height"], config["observation_width"], 3]
        features: Dict[str, Any] = {
            key: {"kind": "VISUAL", "shape": shape, "dtype": "uint8"} for key in CAMERAS
        }
        names = list(_JOINTS)
        features[STATE] = {"kind": "STATE", "shape": [6], "dtype": "float32", "names": names}
        if self._size is not None:
            features[ENVIRONMENT_STATE] = {
                "kind": "ENV",
                "shape": [self._size],
                "dtype": "float32",
            }
        return features


class NexusSim:
    """One environment of so101-nexus."""

    def __init__(self, name: str, config: Dict[str, Any]) -> None:
        self._visual = config["obs_type"] != "state"
        self._env = make_env(name, config)
        self._compiled = CompiledModel(self._env.model)
        self._moving = _free_bodies(self._env.model)
        self._state: Any = None

    def reset(self, spec: Dict[str, Any]) -> None:
        """Restore the compiled model, then reset with the spec's seed."""
        self._compiled.restore()
        self._env.wrist_positions = _NEW_SCENE
        self._state, _ = self._env.reset(seed=spec["seed"])

    def step(self, action: Any) -> Step:
        """Advance by one action, clipped by so101-nexus."""
        self._state, reward, terminated, _, info = self._env.step(np.asarray(action, np.float32))
        with adapter_code():
            away = info.get("tcp_to_obj_dist", info.get("tcp_to_target_dist"))
            scores = None if away is None else {CLOSEST: float(away)}
            return Step(float(reward), bool(info["success"]), bool(terminated), scores)

    def observe(self, keys: Sequence[str]) -> Dict[str, Any]:
        """Return the current observation for ``keys``; image keys render."""
        with adapter_code():
            return {key: self._observe(key) for key in keys}

    def physics(self) -> Any:
        """Return the state of the physics, and the pose and view of the wrist camera."""
        model = self._env.model
        camera = self._env._wrist_cam_id
        seen = (model.cam_pos[camera], model.cam_quat[camera], [model.cam_fovy[camera]])
        return np.concatenate([physics_state(self._env.data), *map(np.ravel, seen)])

    def coordinates(self) -> Dict[str, float]:
        """Return the positions of movable objects and of the gripper."""
        data, found = self._env.data, {}  # type: Any, Dict[str, float]
        for name, body in self._moving:
            found.update(xyz(name, data.xpos[body]))
        found.update(xyz("robot hand", data.site_xpos[self._env._tcp_site_id]))
        return found

    def close(self) -> None:
        """Free the renderers."""
        self._env.close()

    def _observe(self, key: str) -> Any:
        if key in CAMERAS:
            return self._env.render_camera(CAMERAS[key])
        if key == FILM:
            return self._env.render()
        if key == STATE and self._visual:
            return self._env._get_current_qpos().astype(np.float32)
        return self._state


def _free_bodies(model: Any) -> List[Any]:
    """Return names and numbers of the bodies with a free joint."""
    free = [int(model.jnt_bodyid[joint]) for joint in np.flatnonzero(model.jnt_type == 0)]
    return [(model.body(body).name.replace("_", " ") or "object", body) for body in free]


class _WaitingRenderer:
    """Stands in for a camera's renderer until its first image."""

    def __init__(self, make_renderer: Any) -> None:
        self._make = make_renderer
        self._made: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            self._made = self._make()
        return getattr(self._made, name)

    def close(self) -> None:
        """Close the renderer if there is one."""
        if self._made is not None:
            self._made.close()


def make_env(name: str, config: Dict[str, Any]) -> Any:
    """Make the environment of a task with cameras that render when they are asked."""
    import importlib

    row = TASKS[name]
    module = importlib.import_module("so101_nexus.mujoco." + row.module)
    original = getattr(module, row.name)
    members = {
        "_make_renderer": _make_waiting(original._make_renderer),
        "_get_obs": _numbers_only,
        "wrist_positions": _NEW_SCENE,
        "render_camera": _render_camera,
    }
    lazy = type(original.__name__, (original,), members)
    return lazy(
        config=env_config(original, config),
        render_mode="rgb_array",
        control_mode=config["control_mode"],
    )


def env_config(original: Any, config: Dict[str, Any]) -> Any:
    """Return so101-nexus's default config of a task, with both cameras if images are offered."""
    from so101_nexus.observations import OverheadCamera, WristCamera

    default = original.default_config_cls()
    if config["obs_type"] == "state":
        return default
    size = {"width": config["observation_width"], "height": config["observation_height"]}
    cameras = [WristCamera(**size), OverheadCamera(**size)]
    return original.default_config_cls(
        observations=[*default.observations, *cameras], obs_mode="visual"
    )


def _make_waiting(original: Any) -> Any:
    def make_renderer(self: Any, name: str, **settings: Any) -> Any:
        if name == "render":
            return original(self, name, **settings)
        return _WaitingRenderer(lambda: original(self, name, **settings))

    return make_renderer


def _numbers_only(env: Any) -> Any:
    """Return the flat state; so101-nexus would render its cameras too."""
    _, last = env.wrist_positions
    env.wrist_positions = (last, env.data.cam_xpos[env._wrist_cam_id].copy())
    state = env._compute_obs_components()
    if env.config.obs_mode == "visual":
        env._privileged_state = state
    return state


def _render_camera(env: Any, camera: str) -> Any:
    """Return the current image of a camera, as so101-nexus's observation has it.

    MuJoCo centres an infinite floor on the camera of the scene's previous update, in steps of a
    grid. so101-nexus updates its scenes at every observation, so that is the camera's position one
    observation ago, and the origin in a new scene. Rounding then differs in single pixels.
    """
    wrist = camera == "wrist"
    renderer = env._wrist_renderer if wrist else env._overhead_obs_renderer
    view = env._wrist_cam_id if wrist else env._overhead_obs_cam
    renderer.update_scene(env.data, camera=view)
    before, _ = env.wrist_positions
    if wrist or before is None:
        for eye in renderer.scene.camera:
            eye.pos = np.zeros(3) if before is None else before
    renderer.update_scene(env.data, camera=view)
    renderer.disable_depth_rendering()
    return renderer.render()
