"""robosuite 1.5: robomimic's five tasks, with resets that depend on the seed only.

robosuite draws from one generator of the environment: sizes of objects when it builds the model,
noise of the joints and places of objects at every reset. A new environment has built its model and
drawn twice when its first ``reset`` returns. Its second reset continues the stream, so it differs.
Here every reset repeats what a new environment does with the episode's seed, without building what
does not change.
"""

import logging
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from proctor_worker.records import Refused, Step
from proctor_worker.server import adapter_code
from proctor_worker.worlds.mujoco_tools import (
    CameraRenderer,
    CompiledModel,
    chosen_rows,
    physics_state,
    rendering_variables,
    shared_size,
    single_size,
    xyz,
)

FPS = 20
SUITE = "robomimic"
STATE = "observation.state"
ENVIRONMENT_STATE = "observation.environment_state"
IMAGES = "observation.images."
_SEEN_FIELDS = (
    *("qpos", "xpos", "xquat", "xmat", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat"),
    *("cam_xpos", "cam_xmat", "light_xpos", "light_xdir"),
)
_CAMERAS = ("agentview", "robot0_eye_in_hand")
_ARM = ("dx", "dy", "dz", "droll", "dpitch", "dyaw", "gripper")
_STATE = ("x", "y", "z", "qx", "qy", "qz", "qw", "left_finger", "right_finger")


class _Row(NamedTuple):
    """One task: its instruction (Proctor's words), horizons by robomimic's tables, and sizes."""

    instruction: str
    horizons: Dict[str, Optional[int]]
    objects: int
    """Numbers of the state of all objects."""
    robots: int = 1
    cameras: Sequence[str] = _CAMERAS
    rebuilt: bool = False
    """Whether every reset compiles the model again.

    The seed changes sizes of Lift's cube and Transport's hammer. The models of PickPlaceCan and
    ToolHang are the same, but episodes of a restored one were not those of a new one.
    """


TASKS = {
    "Lift": _Row("lift the cube", {"ph": 400, "mh": 500}, 10, rebuilt=True),
    "PickPlaceCan": _Row("put the can into its bin", {"ph": 400, "mh": 500}, 14, rebuilt=True),
    "NutAssemblySquare": _Row("put the square nut on its peg", {"ph": 400, "mh": 500}, 14),
    "TwoArmTransport": _Row(
        "move the hammer into the target bin and the trash into the trash bin",
        {"ph": 700, "mh": 1100},
        41,
        robots=2,
        cameras=(
            *("shouldercamera0", "shouldercamera1"),
            *("robot0_eye_in_hand", "robot1_eye_in_hand"),
        ),
        rebuilt=True,
    ),
    "ToolHang": _Row(
        "assemble the frame and hang the tool on it", {"ph": 700, "mh": None}, 44, rebuilt=True
    ),
}
"""Horizons: robomimic's registry of datasets, proficient-human (ph) and multi-human (mh)."""


def make(config: Dict[str, Any]) -> "RobosuiteWorld":
    """Return the world."""
    return RobosuiteWorld(config)


class RobosuiteWorld:
    """robomimic's five tasks."""

    def __init__(self, config: Dict[str, Any]) -> None:
        self._config = config
        self._chosen: List[str] = [
            name for names in chosen_rows(config, {SUITE: list(TASKS)}).values() for name in names
        ]
        for name in self._chosen:
            if self._horizon(name) is None:
                raise Refused(
                    "robomimic has no %s data of %s; set --env.episode_length"
                    % (config["demonstrations"], name),
                    code="env.no-horizon",
                )
        single_size("actions", {name: 7 * TASKS[name].robots for name in self._chosen})

    def describe(self) -> Dict[str, Any]:
        """Return tasks, features and rules."""
        config, rows = self._config, [TASKS[name] for name in self._chosen]
        robots = max([row.robots for row in rows] or [1])
        return {
            "tasks": [self._task(name) for name in TASKS],
            "features": self._features(robots),
            "action": {
                "size": 7 * robots,
                "low": -1.0,
                "high": 1.0,
                "names": _prefixed(_ARM, robots),
            },
            "protocol": {
                "robot": "Panda" if robots == 1 else "two Pandas",
                "controller": "OSC_POSE, relative, robosuite's BASIC config",
                "control_hz": FPS,
                "lite_physics": config["lite_physics"],
                "horizon": {name: self._horizon(name) for name in self._chosen},
                "horizon_rule": "--env.episode_length"
                if config["episode_length"]
                else "robomimic's registry, %s" % config["demonstrations"],
                "seed_rule": "run seed + episode index, the same for every task",
                "reset_rule": "as robosuite.make(seed=...) and the first reset, bit for bit",
                "termination": "success",
                "success": "robosuite's _check_success after a step",
                "reward": "robosuite's, sparse",
                "cameras": self._cameras(),
                "image_size": [config["observation_height"], config["observation_width"]],
                "flip": "upright, as robomimic flips robosuite's images",
            },
            "distributions": ["robosuite", "mujoco", "numpy", "scipy", "numba"],
        }

    def preflight(self, keys: Sequence[str]) -> Dict[str, str]:
        """Choose a GL backend if ``keys`` has images."""
        return rendering_variables(any(key.startswith(IMAGES) for key in keys))

    def open(self, task: Dict[str, Any]) -> "RobosuiteSim":
        """Return the simulator of a task."""
        cameras = {IMAGES + camera: camera for camera in self._cameras()}
        return RobosuiteSim(task["name"], self._config, cameras)

    def _task(self, name: str) -> Dict[str, Any]:
        return {
            "suite": SUITE,
            "task_id": list(TASKS).index(name),
            "name": name,
            "instruction": TASKS[name].instruction,
            "max_steps": self._horizon(name) or 1,
            "fps": FPS,
        }

    def _horizon(self, name: str) -> Optional[int]:
        horizon: Optional[int] = self._config["episode_length"]
        return horizon or TASKS[name].horizons[self._config["demonstrations"]]

    def _cameras(self) -> List[str]:
        """Return the cameras that the chosen tasks share, in robomimic's order."""
        asked = self._config["camera_name"]
        rows = [TASKS[name].cameras for name in self._chosen]
        known = [camera for camera in (rows or [_CAMERAS])[0] if all(camera in r for r in rows)]
        if not asked:
            return known
        cameras = [camera.strip() for camera in asked.split(",")]
        for camera in cameras:
            if camera not in (*known, "frontview", "birdview", "agentview", "sideview"):
                raise Refused(
                    "robosuite has no camera %r here (choose %s, agentview, frontview, birdview)"
                    % (camera, ", ".join(known)),
                    code="env.unknown-camera",
                )
        return cameras

    def _features(self, robots: int) -> Dict[str, Any]:
        config = self._config
        shape = [config["observation_height"], config["observation_width"], 3]
        features: Dict[str, Any] = {
            IMAGES + camera: {"kind": "VISUAL", "shape": shape, "dtype": "uint8"}
            for camera in self._cameras()
        }
        names = _prefixed(_STATE, robots)
        features[STATE] = {
            "kind": "STATE",
            "shape": [len(names)],
            "dtype": "float32",
            "names": names,
        }
        objects = shared_size({name: TASKS[name].objects for name in self._chosen})
        if objects is not None:
            features[ENVIRONMENT_STATE] = {"kind": "ENV", "shape": [objects], "dtype": "float64"}
        return features


def _prefixed(names: Sequence[str], robots: int) -> List[str]:
    """Return the names of every robot's dimensions; a single robot's have no prefix."""
    if robots == 1:
        return list(names)
    return ["robot%d.%s" % (robot, name) for robot in range(robots) for name in names]


class RobosuiteSim:
    """One robosuite environment whose episodes equal the first of a new one, bit for bit."""

    def __init__(self, name: str, config: Dict[str, Any], cameras: Dict[str, str]) -> None:
        self._row = TASKS[name]
        self._cameras = cameras
        self._renderer = CameraRenderer(
            config["observation_height"], config["observation_width"], hidden_groups=(0,)
        )
        self._env = make_env(name, self._row.robots, config["lite_physics"])
        self._env.hard_reset = self._row.rebuilt
        if not self._row.rebuilt:
            self._env._initialize_sim()
            self._compiled = CompiledModel(self._env.sim.model._model)
            self._env.sim.reset = self._restore_compiled
            self._env._reset_internal()
        self._kept: Any = None
        self._pairs: List[Any] = []
        self._numbers: Dict[str, Any] = {}
        self._env.add_observable(_snapshot_observable(self))

    def reset(self, spec: Dict[str, Any]) -> None:
        """Repeat a new environment's two builds and draws with the spec's seed.

        The samplers and objects of the environment hold its generator, so it is seeded in place.
        """
        env = self._env
        seeded = np.random.default_rng(spec["seed"])
        env.rng.bit_generator.state = seeded.bit_generator.state
        if self._row.rebuilt:
            env._load_model()
            env._reset_internal()
            self._forget_model()
        else:
            env.sim.reset()
            env._reset_internal()
        self._numbers = env.reset()

    def step(self, action: Any) -> Step:
        """Advance by one action, clipped by robosuite's controllers."""
        self._numbers, reward, _, _ = self._env.step(np.asarray(action, np.float64))
        success = bool(self._env._check_success())
        return Step(float(reward), success, success)

    def observe(self, keys: Sequence[str]) -> Dict[str, Any]:
        """Return the last sample of robosuite's sensors for ``keys``; image keys render it."""
        with adapter_code():
            return {key: self._observe(key) for key in keys}

    def physics(self) -> Any:
        """Return joint positions and velocities, and the poses of bodies and sites."""
        return physics_state(self._env.sim.data._data)

    def coordinates(self) -> Dict[str, float]:
        """Return the positions of objects and hands at the last sample, in metres."""
        found: Dict[str, float] = {}
        places = [key for key in self._numbers if key.endswith("_pos") and "_to_" not in key]
        for key in places:
            if not key.startswith("robot"):
                found.update(xyz(key[: -len("_pos")].lower(), self._numbers[key]))
        for robot in range(self._row.robots):
            name = "robot hand" if self._row.robots == 1 else "robot %d hand" % robot
            found.update(xyz(name, self._numbers["robot%d_eef_pos" % robot]))
        return found

    def close(self) -> None:
        """Free the renderer and the environment."""
        self._renderer.close()
        self._env.close()

    def take_snapshot(self) -> None:
        """Store the world when robosuite samples its sensors: images show that moment."""
        data = self._env.sim.data._data
        if self._kept is None:
            import mujoco

            self._kept = mujoco.MjData(self._env.sim.model._model)
            self._pairs = [(getattr(self._kept, f), getattr(data, f)) for f in _SEEN_FIELDS]
        for kept, live in self._pairs:
            kept[:] = live

    def _restore_compiled(self) -> None:
        """Reset model and physics to what they are when robosuite has compiled them."""
        import mujoco

        self._compiled.restore()
        mujoco.mj_resetData(self._env.sim.model._model, self._env.sim.data._data)
        self._env.sim.forward()

    def _forget_model(self) -> None:
        """Drop what belongs to the old model: the next reset compiles another one."""
        self._renderer.close()
        self._kept, self._pairs = None, []

    def _observe(self, key: str) -> Any:
        if key == STATE:
            parts = [
                self._numbers["robot%d_%s" % (robot, name)]
                for robot in range(self._row.robots)
                for name in ("eef_pos", "eef_quat", "gripper_qpos")
            ]
            return np.concatenate(parts).astype(np.float32)
        if key == ENVIRONMENT_STATE:
            return np.asarray(self._numbers["object-state"], np.float64)
        model = self._env.sim.model._model
        return self._renderer.render(model, self._kept, self._cameras[key])


def _snapshot_observable(sim: RobosuiteSim) -> Any:
    """Return an observable that is sampled when robosuite's cameras would be."""
    from robosuite.utils.observables import Observable, sensor

    def snapshot(obs_cache: Any) -> Any:
        sim.take_snapshot()
        return np.zeros(1)

    return Observable(
        name="proctor_snapshot", sensor=sensor(modality="proctor")(snapshot), sampling_rate=FPS
    )


def make_env(name: str, robots: int, lite_physics: bool) -> Any:
    """Make robosuite's environment as robomimic does, without a renderer."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # robosuite logs hints about optional packages
    try:
        import robosuite
        from robosuite.controllers import load_composite_controller_config

        _reuse_robot_models()
        return robosuite.make(
            name,
            robots=["Panda"] * robots,
            controller_configs=load_composite_controller_config(controller="BASIC", robot="Panda"),
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            use_object_obs=True,
            reward_shaping=False,
            control_freq=FPS,
            lite_physics=lite_physics,
            ignore_done=True,
            seed=0,
        )
    finally:
        logging.disable(before)


def _reuse_robot_models() -> None:
    """Compile a robot's own model once: robosuite compiles it at every reset and only reads it."""
    from robosuite.models import base

    if hasattr(base.MujocoXML.get_model, "compiled"):
        return
    original = base.MujocoXML.get_model
    compiled: Dict[Any, Any] = {}

    def get_model(self: Any, mode: str = "mujoco") -> Any:
        key = (self.get_xml(), mode)
        if key not in compiled:
            compiled[key] = original(self, mode)
        return compiled[key]

    get_model.compiled = compiled  # type: ignore[attr-defined]
    base.MujocoXML.get_model = get_model
