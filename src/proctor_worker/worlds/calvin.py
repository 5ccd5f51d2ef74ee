"""CALVIN, environment D: the first instruction of each of the 1,000 evaluation sequences.

CALVIN is evaluated with chains of five instructions. An episode of Proctor has one instruction, so
this world measures the first link of the chain: the column "1" of published tables. Initial states
and sequences are upstream's.
"""

import contextlib
import os
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from proctor_worker.records import Refused, Step

FPS = 30
HORIZON = 360
SUITE = "calvin_d"
STATE = "observation.state"
ENVIRONMENT_STATE = "observation.environment_state"
IMAGES = {"observation.images.static": "static", "observation.images.gripper": "gripper"}
SIZES = {"static": 200, "gripper": 84}
SCENE = "calvin_scene_D_eval"

INSTRUCTIONS = {
    "rotate_red_block_right": "take the red block and rotate it to the right",
    "rotate_red_block_left": "take the red block and rotate it to the left",
    "rotate_blue_block_right": "take the blue block and rotate it to the right",
    "rotate_blue_block_left": "take the blue block and rotate it to the left",
    "rotate_pink_block_right": "take the pink block and rotate it to the right",
    "rotate_pink_block_left": "take the pink block and rotate it to the left",
    "push_red_block_right": "go push the red block right",
    "push_red_block_left": "go push the red block left",
    "push_blue_block_right": "go push the blue block right",
    "push_blue_block_left": "go push the blue block left",
    "push_pink_block_right": "go push the pink block right",
    "push_pink_block_left": "go push the pink block left",
    "move_slider_left": "push the sliding door to the left side",
    "move_slider_right": "push the sliding door to the right side",
    "open_drawer": "pull the handle to open the drawer",
    "close_drawer": "push the handle to close the drawer",
    "lift_red_block_table": "grasp and lift the red block",
    "lift_red_block_slider": "lift the red block from the sliding cabinet",
    "lift_blue_block_table": "grasp and lift the blue block",
    "lift_blue_block_slider": "lift the blue block from the sliding cabinet",
    "lift_pink_block_table": "grasp and lift the pink block",
    "lift_pink_block_slider": "lift the pink block from the sliding cabinet",
    "turn_on_lightbulb": "use the switch to turn on the light bulb",
    "turn_off_lightbulb": "use the switch to turn off the light bulb",
    "turn_on_led": "press the button to turn on the led light",
    "turn_off_led": "press the button to turn off the led light",
    "push_into_drawer": "slide the block that it falls into the drawer",
}
"""Tasks that a sequence can begin with, and upstream's validation instruction of each."""

ROBOT_START = (
    *(0.02586889, -0.2313129, 0.5712808, 3.09045411, -0.02908596, 1.50013585, 0.07999963),
    *(-1.21779124, 1.03987629, 2.11978254, -2.34205014, -0.87015899, 1.64119093, 0.55344928, 1.0),
)
"""Upstream's initial robot observation: hand, gripper width, joints, gripper action."""
_ON_SLIDER = {
    "slider_left": (-2.40851662e-01, 9.24044687e-02, 4.60990009e-01),
    "slider_right": (7.03416330e-02, 9.24044687e-02, 4.60990009e-01),
}
_ON_TABLE = (
    (5.00000896e-02, -1.20000177e-01, 4.59990009e-01),
    (2.29995412e-01, -1.19995140e-01, 4.59990010e-01),
)
_BLOCKS = ("red", "blue", "pink")
_ARM = ("dx", "dy", "dz", "droll", "dpitch", "dyaw", "gripper")


def make(config: Dict[str, Any]) -> "CalvinWorld":
    """Return the world."""
    return CalvinWorld(config)


class Start:
    """The symbolic state at the start of a sequence."""

    def __init__(self, words: Sequence[str]) -> None:
        self.led, self.lightbulb = int(words[0]), int(words[1])
        self.slider, self.drawer = words[2], words[3]
        self.blocks = dict(zip(_BLOCKS, words[4:7]))

    def seed(self) -> int:
        """Return upstream's seed: FNV-1 (32 bit) of the printed values."""
        values = [self.led, self.lightbulb, self.slider, self.drawer, *self.blocks.values(), 0]
        return fnv1("dict_values(%s)" % values)


def fnv1(text: str) -> int:
    """Return the 32-bit FNV-1 hash of a text."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value * 0x01000193) % 2**32 ^ byte
    return value


def sequences() -> List[Tuple[Start, List[str]]]:
    """Return upstream's 1,000 evaluation sequences: start and five tasks each.

    The file's first line has the tasks' names; a row has led, light bulb, slider, drawer, red, blue
    and pink block, and the numbers of five tasks.
    """
    path = os.path.join(os.path.dirname(__file__), "calvin_sequences.txt")  # noqa: PTH118, PTH120
    with open(path, encoding="ascii") as file:  # noqa: PTH123
        names = next(file).split()
        rows = [line.split() for line in file]
    return [(Start(row[:7]), [names[int(number)] for number in row[7:]]) for row in rows]


def scene_start(start: Start) -> "np.ndarray[Any, Any]":
    """Return upstream's initial scene observation (24 numbers) of a sequence."""
    rng = np.random.RandomState(start.seed())
    table = [np.array(place) for place in _ON_TABLE]
    rng.shuffle(table)
    scene = np.zeros(24)
    scene[0] = 0.28 if start.slider == "left" else 0.0
    scene[1] = 0.22 if start.drawer == "open" else 0.0
    scene[3] = 0.088 if start.lightbulb else 0.0
    scene[4], scene[5] = start.lightbulb, start.led
    for number, name in enumerate(_BLOCKS):
        at, first = start.blocks[name], 6 + 6 * number
        if at in _ON_SLIDER:
            place: Any = _ON_SLIDER[at]
        else:
            second = name == "pink" or (name == "blue" and start.blocks["red"] == "table")
            place = table[1 if second else 0]
        scene[first : first + 3] = place
        scene[first + 5] = rng.uniform(np.pi / 2 - np.pi / 8, np.pi / 2 + np.pi / 8)
    return scene


class CalvinWorld:
    """The tasks that evaluation sequences begin with."""

    def __init__(self, config: Dict[str, Any]) -> None:
        if config["renderer"] not in ("egl", "cpu"):
            raise Refused("--env.renderer is egl or cpu", code="flag.value")
        self._config = config
        self._starts: Dict[str, List[Start]] = {}
        for start, tasks in sequences():
            self._starts.setdefault(tasks[0], []).append(start)

    def describe(self) -> Dict[str, Any]:
        """Return tasks, features and rules."""
        features: Dict[str, Any] = {
            key: {"kind": "VISUAL", "shape": [SIZES[name], SIZES[name], 3], "dtype": "uint8"}
            for key, name in IMAGES.items()
        }
        features[STATE] = {"kind": "STATE", "shape": [15], "dtype": "float32"}
        features[ENVIRONMENT_STATE] = {"kind": "ENV", "shape": [24], "dtype": "float64"}
        return {
            "tasks": [
                {
                    "suite": SUITE,
                    "task_id": number,
                    "name": name,
                    "instruction": instruction,
                    "max_steps": self._config["episode_length"] or HORIZON,
                    "fps": FPS,
                    "init_states": len(self._starts[name]),
                }
                for number, (name, instruction) in enumerate(INSTRUCTIONS.items())
            ],
            "features": features,
            "action": {"size": 7, "low": -1.0, "high": 1.0, "names": list(_ARM)},
            "protocol": {
                "scene": SCENE,
                "horizon": self._config["episode_length"] or HORIZON,
                "episode_rule": "init state i: the i-th of upstream's 1,000 sequences that begin "
                "with the task; episode i has init state i, modulo their number",
                "episodes": {name: len(starts) for name, starts in sorted(self._starts.items())},
                "chain": "first of five instructions only",
                "termination": "success",
                "success": "upstream's task oracle, against the state at the start",
                "action": "relative hand pose, 20 mm and 0.05 rad at 1; gripper: above 0 opens",
                "renderer": self._config["renderer"],
            },
            "distributions": ["pybullet", "numpy", "scipy", "hydra-core", "omegaconf", "gym"],
            "notes": [
                "CALVIN is published with chains of five instructions; this is the first link, the "
                'column "1" of its tables'
            ],
        }

    def open(self, task: Dict[str, Any]) -> "CalvinSim":
        """Return the simulator of a task."""
        with quiet():
            env, oracle = make_env(self._config["renderer"] == "egl")
        return CalvinSim(env, oracle, task["name"], self._starts[task["name"]])


class CalvinSim:
    """Upstream's environment without rendering in steps."""

    def __init__(self, env: Any, oracle: Any, name: str, starts: List[Start]) -> None:
        self._env, self._oracle, self._name, self._starts = env, oracle, name, starts
        self._cameras = {camera.name: camera for camera in env.cameras}
        env.cameras = []  # ``step`` and ``reset`` would render
        self._saved = env.p.saveState(physicsClientId=env.cid)
        self._before: Any = None

    def reset(self, spec: Dict[str, Any]) -> None:
        """Reset to the start of the task's sequence number ``init_state``.

        Bullet keeps contacts and velocities of the last episode: the state of the new world is
        restored first.
        """
        env = self._env
        env.p.restoreState(stateId=self._saved, physicsClientId=env.cid)
        env.robot.gripper_action = 1
        start = self._starts[spec["init_state"]]
        env.reset(robot_obs=np.array(ROBOT_START), scene_obs=scene_start(start))
        self._before = env.get_info()

    def step(self, action: Any) -> Step:
        """Advance by one relative action."""
        move = np.array(action, np.float64)
        move[-1] = 1 if move[-1] > 0 else -1
        info = self._env.step(move)[3]
        solved = self._oracle.get_task_info_for_set(self._before, info, {self._name})
        success = bool(solved)
        return Step(float(success), success, success)

    def observe(self, keys: Sequence[str]) -> Dict[str, Any]:
        """Return the observation; image keys render."""
        made: Dict[str, Any] = {}
        numbers = self._env.get_state_obs()
        for key in keys:
            if key in IMAGES:
                made[key] = np.ascontiguousarray(self._cameras[IMAGES[key]].render()[0], np.uint8)
            elif key == STATE:
                made[key] = np.asarray(numbers["robot_obs"], np.float32)
            else:
                made[key] = np.asarray(numbers["scene_obs"], np.float64)
        return made

    def physics(self) -> Any:
        """Return positions and velocities of all joints and bodies."""
        env = self._env
        found: List[float] = []
        for number in range(env.p.getNumBodies(physicsClientId=env.cid)):
            body = env.p.getBodyUniqueId(number, physicsClientId=env.cid)
            for part in env.p.getBasePositionAndOrientation(body, physicsClientId=env.cid):
                found.extend(part)
            for part in env.p.getBaseVelocity(body, physicsClientId=env.cid):
                found.extend(part)
            for joint in range(env.p.getNumJoints(body, physicsClientId=env.cid)):
                found.extend(env.p.getJointState(body, joint, physicsClientId=env.cid)[:2])
        found.extend(float(light.get_state()) for light in env.scene.lights)
        return np.array(found, np.float64)

    def coordinates(self) -> Dict[str, float]:
        """Return the positions of blocks, doors and hand, in metres."""
        numbers = self._env.get_state_obs()
        scene, robot = numbers["scene_obs"], numbers["robot_obs"]
        found = {"slider": float(scene[0]), "drawer": float(scene[1])}
        for number, name in enumerate(_BLOCKS):
            for axis, value in zip("xyz", scene[6 + 6 * number :]):
                found["%s block %s" % (name, axis)] = float(value)
        for axis, value in zip("xyz", robot):
            found["robot hand %s" % axis] = float(value)
        return found

    start_tolerance = 1e-5

    def start_state(self) -> Dict[str, float]:
        """Return upstream's observations of the scene and of the robot."""
        seen = self._env.get_state_obs()
        return {
            "%s %d" % (part, number): float(value)
            for part in ("scene", "robot")
            for number, value in enumerate(seen[part + "_obs"])
        }

    def close(self) -> None:
        """Disconnect from Bullet."""
        env = self._env
        with quiet():
            env.p.disconnect(physicsClientId=env.cid)
        env.close = lambda: None  # upstream disconnects again when it is deleted


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard what libraries print: gym's advice, Bullet's and EGL's details."""
    kept = os.dup(1), os.dup(2)
    empty = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(empty, 1)
        os.dup2(empty, 2)
        yield
    finally:
        for number, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(empty)


def make_env(egl: bool) -> Tuple[Any, Any]:
    """Make upstream's environment and its task oracle."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hydra's version_base
        import calvin_env
        import calvin_env.envs.play_table_env as play_table_env
        import hydra
        from omegaconf import OmegaConf
    root = os.path.dirname(os.path.dirname(calvin_env.__file__))  # noqa: PTH120

    def load(name: str) -> Any:
        return OmegaConf.load(os.path.join(root, "conf", name + ".yaml"))  # noqa: PTH118

    robot = OmegaConf.merge(load("robot/panda"), load("robot/panda_longer_finger"))
    del robot["defaults"]
    config = OmegaConf.create(
        {
            "data_path": os.path.join(root, "data"),  # noqa: PTH118
            "use_vr": False,
            "cameras": {name: load("cameras/cameras/" + name) for name in SIZES},
            "robot": robot,
            "scene": load("scene/" + SCENE),
            "env": load("env/play_table_env"),
        }
    )
    play_table_env.get_git_commit_hash = lambda path: ""  # it needs a work tree, for a log line
    env = hydra.utils.instantiate(
        config.env, show_gui=False, use_vr=False, use_scene_info=True, use_egl=egl
    )
    oracle = hydra.utils.instantiate(load("tasks/new_playtable_tasks"))
    return env, oracle
