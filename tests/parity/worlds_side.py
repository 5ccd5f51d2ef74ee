"""Compare a world with its package run plainly, inside the package's own interpreter.

``python worlds_side.py WORLD OBS_TYPE TASK...`` prints one JSON line for each task. The folder of
``proctor_worker`` must be on PYTHONPATH. Needs no pytest and nothing else of Proctor.

The world plays another episode first, so its reset is never a new environment's. The package
renders only in the steps whose images are compared, because rendering takes most of the time.
"""

import importlib
import json
import logging
import sys
import time
import warnings
from contextlib import contextmanager, nullcontext

import numpy as np

logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
SEED, STEPS, EVERY = 7, 100, 20
SMALL = {"observation_height": 84, "observation_width": 84}
FLAGS = {
    "robosuite": {"demonstrations": "ph", "lite_physics": True, "camera_name": None, **SMALL},
    "ogbench": {"success_timing": "post"},
    "so101_nexus": {"control_mode": "pd_joint_pos", **SMALL},
}


class PlainRobosuite:
    """robosuite.make, reset and step, with its own camera observations."""

    def __init__(self, task, config, sim):
        import robosuite
        from robosuite.controllers import load_composite_controller_config
        from robosuite.utils.binding_utils import MjSim
        from robosuite_side import keep_physics_of_renderers

        from proctor_worker.worlds.robosuite import TASKS

        keep_physics_of_renderers()
        row = TASKS[task["name"]]
        self.robots, self.renderer = row.robots, MjSim
        self.env = robosuite.make(
            task["name"],
            robots=["Panda"] * row.robots,
            controller_configs=load_composite_controller_config(controller="BASIC", robot="Panda"),
            has_renderer=False,
            has_offscreen_renderer=config["obs_type"] == "pixels",
            use_camera_obs=config["obs_type"] == "pixels",
            camera_names=list(row.cameras),
            camera_heights=config["observation_height"],
            camera_widths=config["observation_width"],
            use_object_obs=True,
            control_freq=20,
            ignore_done=True,
            reward_shaping=False,
            seed=SEED,
        )

    def reset(self):
        self.seen = self.env.reset()

    def step(self, action):
        self.seen, reward, _, _ = self.env.step(action.astype(np.float64))
        return reward, bool(self.env._check_success())

    def observe(self, key):
        if "images" in key:
            return self.seen[key.rpartition(".")[2] + "_image"][::-1]
        if key.endswith("environment_state"):
            return self.seen["object-state"]
        names = ("eef_pos", "eef_quat", "gripper_qpos")
        parts = [self.seen[f"robot{r}_{n}"] for r in range(self.robots) for n in names]
        return np.concatenate(parts).astype(np.float32)

    def qpos(self):
        return self.env.sim.data._data.qpos


class PlainOgbench:
    """gymnasium.make, reset and step; only the unseeded action space gets a seed."""

    def __init__(self, task, config, sim):
        import gymnasium
        import mujoco
        import ogbench.manipspace  # noqa: F401
        from ogbench.manipspace.envs.manipspace_env import ManipSpaceEnv

        space = gymnasium.spaces.Box(-np.ones(5), np.ones(5), (5,), np.float32)
        ManipSpaceEnv.action_space = property(lambda self: space)
        self.space, self.task, self.renderer = space, task, mujoco.Renderer
        visual = config["obs_type"] == "pixels"
        self.env = gymnasium.make(("visual-" if visual else "") + task["suite"] + "-v0")

    def reset(self):
        self.space.seed(SEED)
        options = {"task_id": self.task["task_id"] + 1}
        self.seen, info = self.env.reset(seed=SEED, options=options)
        self.goal = info["goal"]

    def step(self, action):
        self.seen, reward, self.ended, _, info = self.env.step(action)
        return reward, bool(info["success"])

    def observe(self, key):
        seen = self.goal if key.endswith("goal") else self.seen
        return seen if seen.dtype == np.uint8 else seen.astype(np.float32)

    def qpos(self):
        return self.env.unwrapped.data.qpos


class PlainSo101Nexus:
    """The package's environment class with its own config, reset and step."""

    def __init__(self, task, config, sim):
        import mujoco

        from proctor_worker.worlds.so101_nexus import TASKS, env_config

        row, self.renderer = TASKS[task["name"]], mujoco.Renderer
        module = importlib.import_module("so101_nexus.mujoco." + row.module)
        original = getattr(module, row.name)
        self.env = original(config=env_config(original, config))

    def reset(self):
        self.seen, _ = self.env.reset(seed=SEED)

    def step(self, action):
        self.seen, reward, _, _, info = self.env.step(action)
        return reward, bool(info["success"])

    def observe(self, key):
        if not isinstance(self.seen, dict):
            return self.seen
        if key.endswith("environment_state"):
            return self.env._privileged_state
        return self.seen["state" if key.endswith("state") else key.rpartition(".")[2] + "_camera"]

    def qpos(self):
        return self.env.data.qpos


PLAIN = {"robosuite": PlainRobosuite, "ogbench": PlainOgbench, "so101_nexus": PlainSo101Nexus}


@contextmanager
def without_rendering(plain, image):
    """Let the package's cameras return ``image``."""
    render = plain.renderer.render
    plain.renderer.render = lambda *_, **__: image
    yield
    plain.renderer.render = render


def compare(world, task, config):
    """Return the differences of one task, and seconds of CPU for a reset, ours and theirs."""
    description = world.describe()
    keys = [k for k in description["features"] if k not in ("expert.action", "observation.film")]
    if config["obs_type"] == "state":
        keys = [key for key in keys if "images" not in key]
    action = description["action"]
    low, high = np.float32(action["low"]), np.float32(action["high"])
    rng = np.random.default_rng(0)
    actions = rng.uniform(low, high, (STEPS, action["size"])).astype(np.float32)
    sim = world.open(task)
    sim.reset({"seed": SEED + 4, "index": 0, "init_state": None})
    for other in actions[::-1][:40]:
        sim.step(other)
    began = time.process_time()
    sim.reset({"seed": SEED, "index": 0, "init_state": None})
    ours_s = time.process_time() - began
    began = time.process_time()
    plain = PLAIN[config["world"]](task, config, sim)
    plain.reset()
    plain_s = time.process_time() - began
    counts = {"steps": 0, "states": 0, "images": 0, "different": []}

    def look(step, images):
        for key in keys:
            is_image = "images" in key
            if is_image and not images:
                continue
            ours, theirs = sim.observe([key])[key], plain.observe(key)
            counts["images" if is_image else "states"] += 1
            if ours.shape != theirs.shape or not np.array_equal(ours, theirs):
                counts["different"].append(f"{key} at step {step}")
        if not np.array_equal(sim_qpos(sim), plain.qpos()):
            counts["different"].append(f"qpos at step {step}")

    look(0, True)
    blank = next((np.zeros_like(plain.observe(key)) for key in keys if "images" in key), None)
    for number, chosen in enumerate(actions, start=1):
        images = number % EVERY == 0
        ours = sim.step(chosen)
        with nullcontext() if images else without_rendering(plain, blank):
            theirs = plain.step(chosen)
        if (ours[0], ours[1]) != theirs:
            counts["different"].append(f"reward or success at step {number}")
        counts["steps"] += 1
        look(number, images)
    times = {"reset_s": round(ours_s, 4), "plain_reset_s": round(plain_s, 3)}
    shapes = {key: list(sim.observe([key])[key].shape) for key in keys}
    wrong = [k for k in keys if shapes[k] != list(description["features"][k]["shape"])]
    return {"task": task["name"], **counts, **times, "wrong_shapes": wrong}


def sim_qpos(sim):
    """Return the joint positions of our side."""
    data = sim._env.sim.data._data if hasattr(sim._env, "sim") else sim._env.data
    return data.qpos


def main(name, obs_type, *tasks):
    """Compare the named tasks of a world."""
    for wanted in tasks:
        config = {"task": wanted, "task_ids": None, "episode_length": None, "obs_type": obs_type}
        config.update(FLAGS[name])
        world = importlib.import_module("proctor_worker.worlds." + name).make(config)
        config["world"] = name
        for task in world.describe()["tasks"]:
            if wanted == task["name"]:
                print(json.dumps(compare(world, task, config)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
