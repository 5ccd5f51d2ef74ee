"""RoboCasa 0.2: its 24 atomic kitchen tasks. Written from upstream's sources."""

from typing import Any, Dict, List, NamedTuple, Sequence

import numpy as np

from proctor_worker.records import Step

FPS = 20
SUITE = "atomic"
STATE = "observation.state"
IMAGES = "observation.images."
CAMERAS = ("robot0_agentview_left", "robot0_agentview_right", "robot0_eye_in_hand")
STATE_PARTS = (
    *("robot0_base_pos", "robot0_base_quat"),
    *("robot0_base_to_eef_pos", "robot0_base_to_eef_quat", "robot0_gripper_qpos"),
)
"""16 numbers: base pose, hand pose relative to it, fingers."""
ARM_SIZE, FULL_SIZE = 7, 12
STILL_BASE = (0.0, 0.0, 0.0, 0.0, -1.0)
"""Base, torso and mode of an action that moves the arm only."""
SCENES = ((1, 1), (2, 2), (4, 4), (6, 9), (7, 10))
"""Layouts and styles of upstream's evaluation."""


class _Row(NamedTuple):
    instruction: str
    horizon: int
    names_object: bool = True
    """Whether upstream's instruction names an object or a side that the episode draws."""


TASKS = {
    "PnPCounterToCab": _Row("pick the object from the counter and place it in the cabinet", 500),
    "PnPCabToCounter": _Row("pick the object from the cabinet and place it on the counter", 500),
    "PnPCounterToSink": _Row("pick the object from the counter and place it in the sink", 700),
    "PnPSinkToCounter": _Row("pick the object from the sink and place it on the counter", 500),
    "PnPCounterToMicrowave": _Row(
        "pick the object from the counter and place it in the microwave", 600
    ),
    "PnPMicrowaveToCounter": _Row(
        "pick the object from the microwave and place it on the counter", 500
    ),
    "PnPCounterToStove": _Row("pick the object from the plate and place it in the pan", 500),
    "PnPStoveToCounter": _Row("pick the object from the pan and place it on the counter", 500),
    "OpenSingleDoor": _Row("open the door", 500),
    "CloseSingleDoor": _Row("close the door", 500),
    "OpenDoubleDoor": _Row("open the doors", 1000),
    "CloseDoubleDoor": _Row("close the doors", 700),
    "OpenDrawer": _Row("open the drawer", 500),
    "CloseDrawer": _Row("close the drawer", 500),
    "TurnOnSinkFaucet": _Row("turn on the sink faucet", 500, names_object=False),
    "TurnOffSinkFaucet": _Row("turn off the sink faucet", 500, names_object=False),
    "TurnSinkSpout": _Row("turn the sink spout", 500),
    "TurnOnStove": _Row("turn on the burner of the stove", 500),
    "TurnOffStove": _Row("turn off the burner of the stove", 500),
    "CoffeeSetupMug": _Row(
        "pick the mug from the counter and place it under the coffee machine dispenser",
        600,
        names_object=False,
    ),
    "CoffeeServeMug": _Row(
        "pick the mug from under the coffee machine dispenser and place it on the counter",
        600,
        names_object=False,
    ),
    "CoffeePressButton": _Row(
        "press the button on the coffee machine to serve coffee", 300, names_object=False
    ),
    "TurnOnMicrowave": _Row("press the start button on the microwave", 500, names_object=False),
    "TurnOffMicrowave": _Row("press the stop button on the microwave", 500, names_object=False),
}
"""Horizons: upstream's registry of datasets."""


def make(config: Dict[str, Any]) -> "RoboCasaWorld":
    """Return the world."""
    return RoboCasaWorld(config)


class RoboCasaWorld:
    """The 24 atomic tasks."""

    def __init__(self, config: Dict[str, Any]) -> None:
        self._config = config

    def describe(self) -> Dict[str, Any]:
        """Return tasks, features and rules."""
        config = self._config
        shape = [config["observation_height"], config["observation_width"], 3]
        features: Dict[str, Any] = {
            IMAGES + camera: {"kind": "VISUAL", "shape": shape, "dtype": "uint8"}
            for camera in CAMERAS
        }
        features[STATE] = {"kind": "STATE", "shape": [16], "dtype": "float32"}
        return {
            "tasks": [
                {
                    "suite": SUITE,
                    "task_id": number,
                    "name": name,
                    "instruction": row.instruction,
                    "max_steps": config["episode_length"] or row.horizon,
                    "fps": FPS,
                }
                for number, (name, row) in enumerate(TASKS.items())
            ],
            "features": features,
            "action": {"size": self._action_size(), "low": -1.0, "high": 1.0},
            "protocol": {
                "robot": "PandaOmron",
                "control_hz": FPS,
                "actions": "arm and gripper" if config["arm_only"] else "arm, gripper and base",
                "object_split": config["object_split"],
                "scenes": [list(scene) for scene in SCENES],
                "horizon": config["episode_length"] or "upstream's registry of datasets",
                "reset_rule": "a new generator with the episode's seed, then a hard reset",
                "termination": "success",
                "success": "_check_success after a step",
                "instruction": "one for each task, without the drawn object",
            },
            "distributions": ["robosuite", "mujoco", "numpy", "numba", "scipy"],
            "warnings": [
                "RoboCasa's instructions name the object of the episode; Proctor's name the task "
                "only, so language-conditioned policies are told less than upstream tells them"
            ]
            if any(row.names_object for row in self._chosen())
            else [],
        }

    def open(self, task: Dict[str, Any]) -> "RoboCasaSim":
        """Return the simulator of a task."""
        return RoboCasaSim(make_env(task["name"], self._config), self._config)

    def _action_size(self) -> int:
        return ARM_SIZE if self._config["arm_only"] else FULL_SIZE

    def _chosen(self) -> List[_Row]:
        wanted = [name.strip() for name in self._config["task"].split(",") if name.strip()]
        everything = not wanted or SUITE in wanted
        return [row for name, row in TASKS.items() if everything or name in wanted]


class RoboCasaSim:
    """One kitchen; cameras render in ``observe`` only."""

    def __init__(self, env: Any, config: Dict[str, Any]) -> None:
        self._env, self._config = env, config
        self._numbers: Dict[str, Any] = {}

    def reset(self, spec: Dict[str, Any]) -> None:
        """Build the kitchen of the spec's seed."""
        self._env.rng = np.random.default_rng(spec["seed"])
        self._numbers = self._env.reset()

    def step(self, action: Any) -> Step:
        """Advance by one action; without base, the last five numbers hold it still."""
        full = np.asarray(action, np.float64)
        if self._config["arm_only"]:
            full = np.concatenate([full, STILL_BASE])
        self._numbers = self._env.step(full)[0]
        success = bool(self._env._check_success())
        return Step(float(success), success, success)

    def observe(self, keys: Sequence[str]) -> Dict[str, Any]:
        """Return the observation; image keys render, upright."""
        made: Dict[str, Any] = {}
        for key in keys:
            if key == STATE:
                parts = [np.asarray(self._numbers[name]) for name in STATE_PARTS]
                made[key] = np.concatenate(parts).astype(np.float32)
            else:
                image = self._env.sim.render(
                    camera_name=key[len(IMAGES) :],
                    height=self._config["observation_height"],
                    width=self._config["observation_width"],
                )
                made[key] = np.ascontiguousarray(image[::-1], np.uint8)
        return made

    def physics(self) -> Any:
        """Return joint positions and velocities, and the poses of bodies."""
        data = self._env.sim.data
        parts = (data.qpos, data.qvel, data.xpos, data.xquat)
        return np.concatenate([np.asarray(part, np.float64).ravel() for part in parts])

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()


def make_env(name: str, config: Dict[str, Any]) -> Any:
    """Make upstream's environment as its evaluation does, without camera observations."""
    import robocasa  # noqa: F401  registers the environments
    import robosuite
    from robosuite.controllers import load_composite_controller_config

    return robosuite.make(
        env_name=name,
        robots="PandaOmron",
        controller_configs=load_composite_controller_config(controller=None, robot="PandaOmron"),
        has_renderer=False,
        has_offscreen_renderer=True,
        use_camera_obs=False,
        use_object_obs=True,
        ignore_done=True,
        control_freq=FPS,
        seed=0,
        obj_instance_split=config["object_split"],
        generative_textures=None,
        randomize_cameras=False,
        layout_and_style_ids=SCENES,
        translucent_robot=False,
    )
