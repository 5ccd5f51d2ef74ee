"""ManiSkill3 on the CPU: its table-top tasks and the four WidowX tasks of SimplerEnv.

Written from the sources of mani-skill 3.0.1. Sizes of observations and actions are read from the
environment of the first chosen task, so ``describe`` opens it.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from proctor_worker.records import Refused, Step

STATE = "observation.state"
ENVIRONMENT_STATE = "observation.environment_state"
IMAGES = "observation.images."
WIDOWX = "widowx"
TABLETOP = "tabletop"


class _Row(NamedTuple):
    suite: str
    instruction: str
    horizon: int
    init_states: Optional[int] = None
    """Poses of the objects that upstream lists for a WidowX task, by its episode id."""


TASKS = {
    "PickCube-v1": _Row(TABLETOP, "move the cube to the goal", 50),
    "PushCube-v1": _Row(TABLETOP, "push the cube to the goal", 50),
    "PullCube-v1": _Row(TABLETOP, "pull the cube to the goal", 50),
    "StackCube-v1": _Row(TABLETOP, "stack the red cube on the green cube", 50),
    "PokeCube-v1": _Row(TABLETOP, "poke the cube with the peg", 50),
    "LiftPegUpright-v1": _Row(TABLETOP, "set the peg upright", 50),
    "PegInsertionSide-v1": _Row(TABLETOP, "insert the peg into the hole", 100),
    "PlaceSphere-v1": _Row(TABLETOP, "place the sphere into the bin", 50),
    "PlugCharger-v1": _Row(TABLETOP, "plug the charger into the receptacle", 200),
    "PullCubeTool-v1": _Row(TABLETOP, "pull the cube with the tool", 100),
    "RollBall-v1": _Row(TABLETOP, "roll the ball to the goal", 80),
    "StackPyramid-v1": _Row(TABLETOP, "build a pyramid of the cubes", 250),
    "PutSpoonOnTableClothInScene-v1": _Row(WIDOWX, "put the spoon on the towel", 60, 24),
    "PutCarrotOnPlateInScene-v1": _Row(WIDOWX, "put carrot on plate", 60, 24),
    "StackGreenCubeOnYellowCubeBakedTexInScene-v1": _Row(
        WIDOWX, "stack the green block on the yellow block", 60, 24
    ),
    "PutEggplantInBasketScene-v1": _Row(WIDOWX, "put eggplant into yellow basket", 120, 64),
}
"""Horizons: upstream's registration. Instructions of the WidowX tasks are upstream's."""
_MOST_START_NUMBERS = 64


def make(config: Dict[str, Any]) -> "ManiSkillWorld":
    """Return the world."""
    return ManiSkillWorld(config)


class ManiSkillWorld:
    """Tasks of one robot at a time: the observations of the first chosen task count for all."""

    def __init__(self, config: Dict[str, Any]) -> None:
        self._config = config
        wanted = [name.strip() for name in config["task"].split(",") if name.strip()]
        rows = TASKS.items()
        self._chosen = [name for name, row in rows if name in wanted or row.suite in wanted]
        suites = {TASKS[name].suite for name in self._chosen}
        if len(suites) > 1:
            raise Refused(
                "tabletop and widowx have other robots: choose tasks of one of them",
                code="env.mixed-tasks",
            )

    def describe(self) -> Dict[str, Any]:
        """Return tasks, features and rules."""
        first = (self._chosen or list(TASKS))[0]
        sim = self._open(first)
        try:
            sim.reset({"seed": 0, "init_state": 0})
            features, action, control = sim.features(), sim.action(), sim.control()
            fps = sim.fps()
        finally:
            sim.close()
        return {
            "tasks": [
                {
                    "suite": row.suite,
                    "task_id": self._task_id(name),
                    "name": name,
                    "instruction": row.instruction,
                    "max_steps": self._config["episode_length"] or row.horizon,
                    "fps": fps if row.suite == TASKS[first].suite else 20,
                    "init_states": row.init_states,
                }
                for name, row in TASKS.items()
            ],
            "features": features,
            "action": action,
            "protocol": {
                "simulator": "physx_cpu",
                "control_mode": control,
                "reward": "sparse",
                "termination": "success",
                "success": "info['success'] after a step",
                "reset_rule": "reset(seed), with a new scene; widowx: episode_id is the init state",
                "horizon": self._config["episode_length"] or "upstream's registration",
                "obs_type": self._config["obs_type"],
            },
            "distributions": ["mani-skill", "sapien", "torch", "numpy", "gymnasium"],
        }

    def open(self, task: Dict[str, Any]) -> "ManiSkillSim":
        """Return the simulator of a task."""
        return self._open(task["name"])

    def _open(self, name: str) -> "ManiSkillSim":
        images = self._config["obs_type"] != "state"
        return ManiSkillSim(make_env(name, images, self._config["control_mode"]), name)

    @staticmethod
    def _task_id(name: str) -> int:
        suite = TASKS[name].suite
        return [other for other, row in TASKS.items() if row.suite == suite].index(name)


class ManiSkillSim:
    """One environment; its sensors render in ``observe`` only."""

    def __init__(self, env: Any, name: str) -> None:
        self._env, self._name = env, name
        self._info: Any = {}
        self._get_obs = env.get_obs

    def reset(self, spec: Dict[str, Any]) -> None:
        """Reset with the spec's seed; a WidowX task's init state is upstream's episode id."""
        options: Dict[str, Any] = {"reconfigure": True}
        if TASKS[self._name].suite == WIDOWX:
            import torch

            options["episode_id"] = torch.tensor([spec["init_state"]])
        self._env.get_obs = _no_observation
        try:
            self._info = self._env.reset(seed=spec["seed"], options=options)[1]
        finally:
            self._env.get_obs = self._get_obs

    def step(self, action: Any) -> Step:
        """Advance by one action."""
        self._env.get_obs = _no_observation
        try:
            _, reward, _, _, self._info = self._env.step(np.asarray(action, np.float32))
        finally:
            self._env.get_obs = self._get_obs
        success = bool(_number(self._info["success"]))
        return Step(_number(reward), success, success)

    def observe(self, keys: Sequence[str]) -> Dict[str, Any]:
        """Return the observation; image keys render all sensors once."""
        made: Dict[str, Any] = {}
        images: Optional[Dict[str, Any]] = None
        for key in keys:
            if key.startswith(IMAGES):
                images = images or self._images()
                made[key] = images[key[len(IMAGES) :]]
            elif key == STATE:
                made[key] = _vector(self._env.agent.robot.get_qpos(), np.float32)
            else:
                made[key] = self._flat_state()
        return made

    def start_state(self) -> Dict[str, float]:
        """Return the privileged observation if it is short; it has the goal and the joints."""
        numbers = self._flat_state().tolist()
        short = len(numbers) <= _MOST_START_NUMBERS
        return {"state %d" % n: value for n, value in enumerate(numbers)} if short else {}

    def physics(self) -> Any:
        """Return upstream's state vector of all actors and articulations."""
        return _vector(self._env.get_state(), np.float64)

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()

    def features(self) -> Dict[str, Any]:
        """Return the features of this task, read from the environment."""
        found: Dict[str, Any] = {}
        if self._env.obs_mode != "state":
            for name, image in self._images().items():
                shape = list(image.shape)
                found[IMAGES + name] = {"kind": "VISUAL", "shape": shape, "dtype": "uint8"}
        joints = int(self.observe([STATE])[STATE].shape[0])
        found[STATE] = {"kind": "STATE", "shape": [joints], "dtype": "float32"}
        size = int(self._flat_state().shape[0])
        found[ENVIRONMENT_STATE] = {"kind": "ENV", "shape": [size], "dtype": "float64"}
        return found

    def action(self) -> Dict[str, Any]:
        """Return the action space of this task."""
        space = self._env.single_action_space
        low, high = np.asarray(space.low, float), np.asarray(space.high, float)
        return {"size": int(low.shape[0]), "low": low.tolist(), "high": high.tolist()}

    def control(self) -> str:
        """Return the control mode."""
        return str(self._env.control_mode)

    def fps(self) -> int:
        """Return the control frequency."""
        return int(self._env.control_freq)

    def _images(self) -> Dict[str, Any]:
        sensors = self._env.get_sensor_images()
        return {
            name: np.ascontiguousarray(_array(data["rgb"])[0], np.uint8)
            for name, data in sensors.items()
            if "rgb" in data
        }

    def _flat_state(self) -> Any:
        """Return the numbers of the privileged observation, in upstream's order."""
        raw = self._env._get_obs_state_dict(self._env.get_info())
        return np.concatenate(_leaves(raw)).astype(np.float64)


def _no_observation(*_: Any, **__: Any) -> Dict[str, Any]:
    """Take the place of ``get_obs`` during steps: the sparse reward needs no observation."""
    return {"agent": {}, "extra": {}}


def _leaves(tree: Any) -> List[Any]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    return [_array(tree).reshape(-1)]


def _array(value: Any) -> Any:
    return value.cpu().numpy() if hasattr(value, "cpu") else np.asarray(value)


def _vector(value: Any, dtype: Any) -> Any:
    return _array(value).reshape(-1).astype(dtype)


def _number(value: Any) -> float:
    return float(_array(value).reshape(-1)[0])


def make_env(name: str, images: bool, control_mode: Optional[str]) -> Any:
    """Make upstream's environment, without its wrapper for time limits."""
    import gymnasium
    import mani_skill.envs  # noqa: F401  registers the environments

    settings: Dict[str, Any] = {"control_mode": control_mode} if control_mode else {}
    env = gymnasium.make(
        name,
        num_envs=1,
        obs_mode="rgb+segmentation" if images else "state",
        reward_mode="sparse",
        sim_backend="physx_cpu",
        render_backend="gpu" if images else "none",
        **settings,
    )
    return env.unwrapped
