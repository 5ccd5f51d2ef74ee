"""RoboTwin 2.0: 50 bimanual tasks. Written from the sources of rlinf-robotwin-runtime 0.1.3."""

from typing import Any, Dict, List, Sequence

import numpy as np

from proctor_worker.records import Refused, Step

FPS = 25
SUITE = "robotwin"
STATE = "observation.state"
CAMERAS = {
    "observation.images.head": "full_image",
    "observation.images.left_wrist": "left_wrist_image",
    "observation.images.right_wrist": "right_wrist_image",
}
HEIGHT, WIDTH = 240, 320
SETTINGS = ("demo_clean", "demo_randomized")

HORIZONS = {
    400: "adjust_bottle beat_block_hammer click_alarmclock click_bell grab_roller lift_pot "
    "move_can_pot move_pillbottle_pad move_playingcard_away move_stapler_pad "
    "pick_diverse_bottles pick_dual_bottles place_a2b_left place_a2b_right "
    "place_container_plate place_fan place_mouse_pad place_object_scale place_object_stand "
    "place_phone_stand press_stapler rotate_qrcode stamp_seal turn_switch",
    500: "place_bread_skillet place_burger_fries place_empty_cup place_shoe scan_object",
    600: "dump_bin_bigbin handover_mic place_dual_shoes",
    700: "open_laptop place_bread_basket place_can_basket place_object_basket put_object_cabinet "
    "shake_bottle shake_bottle_horizontally",
    800: "handover_block place_cans_plasticbox stack_blocks_two",
    900: "hanging_mug stack_bowls_two",
    1200: "blocks_ranking_rgb blocks_ranking_size stack_blocks_three stack_bowls_three",
    1500: "open_microwave",
    1700: "put_bottles_dustbin",
}
"""Upstream's step limits of the evaluation, and the tasks that have them."""


def make(config: Dict[str, Any]) -> "RoboTwinWorld":
    """Return the world."""
    return RoboTwinWorld(config)


def task_horizons() -> Dict[str, int]:
    """Return the step limit of each task, by name."""
    found = {name: steps for steps, names in HORIZONS.items() for name in names.split()}
    return {name: found[name] for name in sorted(found)}


class RoboTwinWorld:
    """The 50 tasks with two arms (aloha-agilex)."""

    def __init__(self, config: Dict[str, Any]) -> None:
        if config["setting"] not in SETTINGS:
            raise Refused("--env.setting is one of %s" % ", ".join(SETTINGS), code="flag.value")
        self._config = config

    def describe(self) -> Dict[str, Any]:
        """Return tasks, features and rules."""
        features: Dict[str, Any] = {
            key: {"kind": "VISUAL", "shape": [HEIGHT, WIDTH, 3], "dtype": "uint8"}
            for key in CAMERAS
        }
        features[STATE] = {"kind": "STATE", "shape": [14], "dtype": "float32"}
        return {
            "tasks": [
                {
                    "suite": SUITE,
                    "task_id": number,
                    "name": name,
                    "instruction": name.replace("_", " "),
                    "max_steps": steps,
                    "fps": FPS,
                }
                for number, (name, steps) in enumerate(task_horizons().items())
            ],
            "features": features,
            "action": {"size": 14, "low": None, "high": None, "clipped": False},
            "protocol": {
                "setting": self._config["setting"],
                "embodiment": "aloha-agilex",
                "actions": "absolute joint positions: 6 and gripper, left then right",
                "planner": "mplib",
                "horizon": "upstream's step limits",
                "reset_rule": "setup_demo with the episode's seed; unstable scenes are skipped",
                "termination": "success",
                "success": "upstream's sparse reward",
                "instruction": "the task's name in words",
            },
            "distributions": ["rlinf-robotwin-runtime", "sapien", "mplib", "torch", "numpy"],
            "warnings": [
                "RoboTwin's instructions describe the objects of the episode, and its evaluation "
                "skips seeds that its expert cannot solve; here a task has one instruction, and "
                "every seed counts"
            ],
        }

    def open(self, task: Dict[str, Any]) -> "RoboTwinSim":
        """Return the simulator of a task."""
        return RoboTwinSim(task["name"], self._config["setting"], task["max_steps"])


class RoboTwinSim:
    """One task of upstream's vector environment of size 1."""

    def __init__(self, name: str, setting: str, steps: int) -> None:
        self._name, self._setting, self._steps = name, setting, steps
        self._vector: Any = None

    def reset(self, spec: Dict[str, Any]) -> None:
        """Set the scene of the spec's seed up."""
        if self._vector is None:
            self._vector = make_env(self._name, self._setting, self._steps, spec["seed"])
        self._vector.reset(env_seeds=[spec["seed"]])

    def step(self, action: Any) -> Step:
        """Execute one target of all joints."""
        chunk = np.asarray(action, np.float64)[None]
        reward, _, _, info = self._task.gen_sparse_reward_data(chunk)
        success = bool(info["success"]) or bool(getattr(self._task, "eval_success", False))
        return Step(float(np.asarray(reward).reshape(-1)[0]), success, success)

    def observe(self, keys: Sequence[str]) -> Dict[str, Any]:
        """Return the observation; upstream renders all cameras at once."""
        seen = self._vector.envs[0].get_obs()
        made: Dict[str, Any] = {}
        for key in keys:
            if key == STATE:
                made[key] = np.asarray(seen["state"], np.float32)
            else:
                made[key] = np.ascontiguousarray(seen[CAMERAS[key]], np.uint8)
        return made

    def physics(self) -> Any:
        """Return the joints of both arms and the poses of all actors."""
        robot = self._task.robot
        parts: List[Any] = [robot.get_left_arm_jointState(), robot.get_right_arm_jointState()]
        for actor in self._task.scene.get_all_actors():
            pose = actor.get_pose()
            parts += [pose.p, pose.q]
        return np.concatenate([np.asarray(part, np.float64).reshape(-1) for part in parts])

    def close(self) -> None:
        """Free the simulator."""
        if self._vector is not None:
            self._vector.close()

    @property
    def _task(self) -> Any:
        return self._vector.envs[0].task


def make_env(name: str, setting: str, steps: int, seed: int) -> Any:
    """Make upstream's environment; ROBOTWIN_ASSETS_ROOT names its assets."""
    from robotwin.config import load_task_config
    from robotwin.envs.vector_env import VectorEnv

    settings = load_task_config(setting)
    settings.update(task_name=name, step_lim=steps, planner_backend="mplib")
    return VectorEnv(settings, 1, env_seeds=[seed])
