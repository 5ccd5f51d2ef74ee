"""RLBench: ten tasks of its usual small suite, first variation. Written from upstream's sources."""

from typing import Any, Dict, NamedTuple, Sequence

import numpy as np

from proctor_worker.records import Step

FPS = 1
SUITE = "rlbench_10"
STATE = "observation.state"
ENVIRONMENT_STATE = "observation.environment_state"
IMAGES = "observation.images."
CAMERAS = ("front", "left_shoulder", "right_shoulder", "wrist")


class _Row(NamedTuple):
    module: str
    instruction: str


TASKS = {
    "pick_and_lift": _Row("PickAndLift", "pick up the red block and lift it up to the target"),
    "pick_up_cup": _Row("PickUpCup", "pick up the red cup"),
    "push_button": _Row("PushButton", "push the maroon button"),
    "put_knife_on_chopping_board": _Row(
        "PutKnifeOnChoppingBoard", "put the knife on the chopping board"
    ),
    "put_money_in_safe": _Row(
        "PutMoneyInSafe", "put the money away in the safe on the bottom shelf"
    ),
    "reach_target": _Row("ReachTarget", "reach the red target"),
    "slide_block_to_target": _Row("SlideBlockToTarget", "slide the block to target"),
    "stack_wine": _Row("StackWine", "stack wine bottle"),
    "take_money_out_safe": _Row(
        "TakeMoneyOutSafe", "take the money out of the bottom shelf and place it on the table"
    ),
    "take_umbrella_out_of_umbrella_stand": _Row(
        "TakeUmbrellaOutOfUmbrellaStand", "take umbrella out of umbrella stand"
    ),
}
"""Upstream's class of each task, and its first description of variation 0."""
HORIZON = 25


def make(config: Dict[str, Any]) -> "RLBenchWorld":
    """Return the world."""
    return RLBenchWorld(config)


class RLBenchWorld:
    """Ten tasks with planned motions of the hand."""

    def __init__(self, config: Dict[str, Any]) -> None:
        self._config = config

    def describe(self) -> Dict[str, Any]:
        """Return tasks, features and rules."""
        config = self._config
        shape = [config["observation_height"], config["observation_width"], 3]
        features: Dict[str, Any] = {
            IMAGES + name: {"kind": "VISUAL", "shape": shape, "dtype": "uint8"} for name in CAMERAS
        }
        features[STATE] = {"kind": "STATE", "shape": [8], "dtype": "float32"}
        return {
            "tasks": [
                {
                    "suite": SUITE,
                    "task_id": number,
                    "name": name,
                    "instruction": row.instruction,
                    "max_steps": config["episode_length"] or HORIZON,
                    "fps": FPS,
                }
                for number, (name, row) in enumerate(TASKS.items())
            ],
            "features": features,
            "action": {"size": 8, "low": None, "high": None, "clipped": False},
            "protocol": {
                "action": "hand pose x y z qx qy qz qw in the world frame, reached by planning; "
                "gripper: above 0.5 is open",
                "variation": 0,
                "horizon": config["episode_length"] or HORIZON,
                "failed_plan": "no motion, the episode continues",
                "reset_rule": "np.random seeded with the episode's seed, then reset",
                "termination": "success, or upstream's own end",
                "success": "upstream's conditions after a motion",
            },
            "distributions": ["rlbench", "pyrep", "numpy"],
        }

    def open(self, task: Dict[str, Any]) -> "RLBenchSim":
        """Return the simulator of a task."""
        return RLBenchSim(TASKS[task["name"]].module, self._config)


class RLBenchSim:
    """One CoppeliaSim with one task; it renders in ``observe`` only."""

    def __init__(self, module: str, config: Dict[str, Any]) -> None:
        self._env, self._task, self._refusals = make_env(module, config)

    def reset(self, spec: Dict[str, Any]) -> None:
        """Place the task's objects; upstream draws from ``np.random``, which is seeded."""
        self._task.set_variation(0)
        self._task.reset()

    def step(self, action: Any) -> Step:
        """Move the hand to a pose; a pose that no plan reaches changes nothing."""
        target = np.array(action, np.float64)
        norm = float(np.linalg.norm(target[3:7]))
        target[3:7] = target[3:7] / norm if norm > 1e-6 else (0.0, 0.0, 0.0, 1.0)
        target[7] = float(target[7] > 0.5)
        try:
            _, reward, ended = self._task.step(target)
        except self._refusals:
            return Step(0.0, False, False)
        success = reward > 0
        return Step(float(reward), bool(success), bool(ended) or bool(success))

    def observe(self, keys: Sequence[str]) -> Dict[str, Any]:
        """Return the observation."""
        seen = self._task.get_observation()
        made: Dict[str, Any] = {}
        for key in keys:
            if key == STATE:
                parts = [seen.gripper_pose, [seen.gripper_open]]
                made[key] = np.concatenate([np.asarray(part) for part in parts]).astype(np.float32)
            else:
                made[key] = np.ascontiguousarray(
                    getattr(seen, key[len(IMAGES) :] + "_rgb"), np.uint8
                )
        return made

    def physics(self) -> Any:
        """Return the arm's joints, the hand and the low-dimensional state of the task."""
        seen = self._task.get_observation()
        parts = (
            *(seen.joint_positions, seen.joint_velocities, seen.gripper_pose),
            seen.task_low_dim_state,
        )
        return np.concatenate([np.asarray(part, np.float64).reshape(-1) for part in parts])

    def close(self) -> None:
        """End CoppeliaSim."""
        self._env.shutdown()


def make_env(module: str, config: Dict[str, Any]) -> Any:
    """Start CoppeliaSim without a window; return environment, task and a failed plan's errors."""
    from pyrep.errors import ConfigurationPathError, IKError
    from rlbench import tasks
    from rlbench.action_modes.action_mode import MoveArmThenGripper
    from rlbench.action_modes.arm_action_modes import EndEffectorPoseViaPlanning
    from rlbench.action_modes.gripper_action_modes import Discrete
    from rlbench.backend.exceptions import InvalidActionError
    from rlbench.environment import Environment
    from rlbench.observation_config import CameraConfig, ObservationConfig

    size = (config["observation_height"], config["observation_width"])
    cameras = {
        name + "_camera": CameraConfig(depth=False, point_cloud=False, mask=False, image_size=size)
        for name in CAMERAS
    }
    unused = CameraConfig(rgb=False, depth=False, point_cloud=False, mask=False)
    observed = ObservationConfig(overhead_camera=unused, task_low_dim_state=True, **cameras)
    mode = MoveArmThenGripper(EndEffectorPoseViaPlanning(), Discrete())
    env = Environment(mode, obs_config=observed, headless=True)
    env.launch()
    task = env.get_task(getattr(tasks, module))
    return env, task, (IKError, ConfigurationPathError, InvalidActionError)
