"""Runs under LeRobot's own Python: its actor or its learner, unmodified, with a record beside it.

    python lerobot_online_side.py actor CONFIG OUT COUNT
    python lerobot_online_side.py learner CONFIG OUT COUNT

The actor saves each list of transitions that it sends as OUT/sent-N.pt. The learner saves the first
COUNT rows of its replay buffer as OUT/stored.pt, and its weights as OUT/weights.pt; it makes the
demonstrations that its config names, since it cannot start without any.

LeRobot asks gym_hil for images, which take seconds a step without a GPU. The task PickStates-v0 is
gym_hil's PandaPickCube-v0 with states.
"""

import json
import sys
from pathlib import Path

import gym_hil  # noqa: F401
import gymnasium
import numpy as np
import torch
from gym_hil.wrappers.factory import make_env

role, config, out, count = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
STATES = {"observation.state": 18, "observation.environment_state": 3, "action": 4}


def pick_states(image_obs, render_mode, use_gripper, gripper_penalty):
    return make_env(
        "gym_hil/PandaPickCubeBase-v0",
        use_gripper=use_gripper,
        gripper_penalty=gripper_penalty,
        reset_delay_seconds=0.0,
        image_obs=False,
        render_mode="rgb_array",
    )


gymnasium.register("gym_hil/PickStates-v0", entry_point=pick_states, max_episode_steps=40)


def saved(value, path):
    """Write a file so that a reader finds it whole."""
    torch.save(value, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


def write_demonstrations(root):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {
        key: {"dtype": "float32", "shape": (size,), "names": None} for key, size in STATES.items()
    }
    features |= {
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
        "complementary_info.discrete_penalty": {
            "dtype": "float32",
            "shape": (1,),
            "names": None,
        },
    }
    dataset = LeRobotDataset.create("local/demos", 10, features, root=root, use_videos=False)
    for step in range(8):
        frame = {key: np.zeros(size, np.float32) for key, size in STATES.items()}
        frame["next.reward"] = np.array([float(step == 7)], np.float32)
        frame["next.done"] = np.array([step == 7])
        frame["complementary_info.discrete_penalty"] = np.zeros(1, np.float32)
        dataset.add_frame({**frame, "task": "pick"})
    dataset.save_episode()
    dataset.finalize()


def run_actor():
    from lerobot.rl import actor

    encode, sent = actor.transitions_to_bytes, []

    def recorded(transitions):
        saved(transitions, out / f"sent-{len(sent)}.pt")
        sent.append(len(transitions))
        return encode(transitions)

    actor.transitions_to_bytes = recorded
    actor.actor_cli()


def run_learner(count):
    from lerobot.rl import buffer, learner

    add = buffer.ReplayBuffer.add
    pushed = learner.push_actor_policy_to_queue

    def recorded_add(self, *args, **fields):
        add(self, *args, **fields)
        if self.capacity == 1000 and self.size == count:
            rows = slice(0, count)
            saved(
                {
                    "state": {key: values[rows] for key, values in self.states.items()},
                    "action": self.actions[rows],
                    "reward": self.rewards[rows],
                    "done": self.dones[rows],
                    "truncated": self.truncateds[rows],
                    "complementary_info": {
                        key: values[rows] for key, values in self.complementary_info.items()
                    },
                },
                out / "stored.pt",
            )

    def recorded_push(parameters_queue, algorithm):
        if not (out / "weights.pt").exists():
            saved(algorithm.get_weights(), out / "weights.pt")
        pushed(parameters_queue=parameters_queue, algorithm=algorithm)

    buffer.ReplayBuffer.add = recorded_add
    learner.push_actor_policy_to_queue = recorded_push
    learner.train_cli()


sys.argv = [sys.argv[0], f"--config_path={config}"]
if role == "actor":
    run_actor()
else:
    write_demonstrations(json.loads(config.read_text())["dataset"]["root"])
    run_learner(count)
