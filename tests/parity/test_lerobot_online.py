"""Online learning both ways with LeRobot (0.6.1) on gym_hil, over gRPC.

Needs LeRobot with the extra hilserl in a venv of its own: set PROCTOR_LEROBOT_PYTHON to that venv's
python. Here: the extras hil and wire. Each side of a run keeps its own record of the transitions.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proctor.benchmarks.gym_hil.benchmark import GymHil, GymHilConfig, ObsType
from proctor.config.online_training import OnlineTrainConfig
from proctor.features import Interface
from proctor.policies.gaussian_actor.config import GaussianActorConfig
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint
from proctor.rl.actor.actor import Actor, ActorSettings
from proctor.rl.actor.interventions import NoIntervention
from proctor.rl.actor.policy import ActorPolicy
from proctor.rl.environment.environments import SimOnlineEnv
from proctor.rl.link.links import ActorWeights
from proctor.rl.policy_parts import make_policy
from proctor.rl.replay.journal import Journal
from proctor.rl.transitions import Transition

pytest.importorskip("grpc", reason="the learner needs grpcio: pip install 'proctor[wire]'")
pytest.importorskip("gym_hil", reason="the environment: pip install 'proctor[hil]'")

from tests.ports import free_port

from proctor.rl.learner.channel import LearnerAddress
from proctor.rl.link.learner_client import GrpcLearnerLink, LinkSettings

HERE = Path(__file__).parent
PYTHON = os.environ.get("PROCTOR_LEROBOT_PYTHON", "")
pytestmark = [
    pytest.mark.skipif(
        not Path(PYTHON).is_file(), reason="LeRobot not installed (set PROCTOR_LEROBOT_PYTHON)"
    ),
    pytest.mark.timeout(600),
]
STEPS = 200
WITHIN_S = 300.0
SHAPES = {"observation.state": 18, "observation.environment_state": 3}
ACTION_SIZE = 4
HIDDEN = {"hidden_dims": [8, 8]}


def config(folder: Path, port: int, online_steps: int) -> dict[str, Any]:
    """LeRobot's config of a run on states, with tiny networks."""
    kinds = {"observation.state": "STATE", "observation.environment_state": "ENV"}
    inputs = {key: {"type": kinds[key], "shape": [size]} for key, size in SHAPES.items()}
    action = {"type": "ACTION", "shape": [ACTION_SIZE - 1]}
    return {
        "output_dir": str(folder / "run"),
        "job_name": "interop",
        "seed": 7,
        "batch_size": 8,
        "log_freq": 50,
        "save_checkpoint": False,
        "wandb": {"enable": False},
        "env": {
            "type": "gym_manipulator",
            "name": "gym_hil",
            "task": "PickStates-v0",
            "fps": 100,
            "features": {**inputs, "action": action},
            "features_map": {key: key for key in (*inputs, "action")},
            "processor": {"gripper": {"use_gripper": True, "gripper_penalty": -0.02}},
        },
        "policy": {
            "type": "gaussian_actor",
            "push_to_hub": False,
            "device": "cpu",
            "num_discrete_actions": 3,
            "latent_dim": 8,
            "online_steps": online_steps,
            "online_buffer_capacity": 1000,
            "offline_buffer_capacity": 500,
            "online_step_before_learning": 50,
            "actor_learner_config": {
                "learner_host": "127.0.0.1",
                "learner_port": port,
                "policy_parameters_push_frequency": 1,
                "queue_get_timeout": 1,
            },
            "actor_network_kwargs": HIDDEN,
            "discrete_critic_network_kwargs": HIDDEN,
            "dataset_stats": {
                key: {"min": [-1.0] * size, "max": [1.0] * size}
                for key, size in {**SHAPES, "action": ACTION_SIZE - 1}.items()
            },
            "input_features": inputs,
            "output_features": {"action": action},
        },
        "algorithm": {
            "type": "sac",
            "critic_network_kwargs": HIDDEN,
            "discrete_critic_network_kwargs": HIDDEN,
        },
        "dataset": {"repo_id": "local/demos", "root": str(folder / "demos")},
    }


@contextlib.contextmanager
def lerobot(role: str, folder: Path, settings: dict[str, Any]) -> Iterator[Callable[[], str]]:
    """Run LeRobot's actor or learner; yields a function that returns its log, if it still runs."""
    (folder / "config.json").write_text(json.dumps(settings))
    log = folder / f"{role}.log"
    words = [PYTHON, str(HERE / "lerobot_online_side.py"), role, "config.json", str(folder)]
    variables = os.environ | {"OMP_NUM_THREADS": "1", "MUJOCO_GL": "egl"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*words, str(STEPS)], cwd=folder, stdout=out, stderr=out, env=variables
        )

    def said() -> str:
        text = log.read_text(errors="replace")
        assert process.poll() in (None, 0), text[-3000:]
        return text

    try:
        yield said
    finally:
        process.kill()
        process.wait()


def eventually(holds: Callable[[], bool], said: Callable[[], str]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        text = said()
        assert "Traceback" not in text, text[-3000:]
        assert time.monotonic() < deadline, text[-3000:]
        time.sleep(0.05)


def policy_parts(settings: dict[str, Any]) -> LoadedCheckpoint:
    """Our policy from LeRobot's config."""
    fields = settings["policy"]
    network = GaussianActorConfig(
        num_discrete_actions=fields["num_discrete_actions"],
        latent_dim=fields["latent_dim"],
        actor_network_kwargs=HIDDEN,
        discrete_critic_network_kwargs=HIDDEN,
        dataset_stats=fields["dataset_stats"],
    )
    benchmark = GymHil(GymHilConfig(obs_type=ObsType.STATE))
    features = {key: benchmark.features()[key] for key in SHAPES}
    interface = Interface(benchmark.name, features, benchmark.action)
    online = OnlineTrainConfig(policy=network, seed=7)
    return make_policy(online, interface).parts


def same_numbers(ours: Any, theirs: Any) -> bool:
    return np.array_equal(np.asarray(ours, np.float32), np.asarray(theirs, np.float32))


def test_our_learner_stores_what_lerobots_actor_sends(tmp_path: Path) -> None:
    port = free_port()
    settings = config(tmp_path, port, 10**6)
    ours = json.loads(json.dumps(settings)) | {"dataset": None}
    ours["env"]["task"] = "PandaPickCube-v0"
    (tmp_path / "ours.json").write_text(json.dumps(ours))
    run = tmp_path / "ours"
    words = ["--config_path=ours.json", "--role=learner", f"--output_dir={run}"]
    learner = subprocess.Popen(
        [sys.executable, "-m", "proctor", "train-online", *words, f"--policy.online_steps={STEPS}"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        with lerobot("actor", tmp_path, settings) as said:
            eventually(lambda: learner.poll() is not None, said)
            assert "Load new parameters from Learner" in said()
        text, _ = learner.communicate()
        assert learner.returncode == 0, text
    finally:
        learner.kill()
        learner.wait()
    journal = Journal(run / "replay/online")
    stored = [row.transition for row in journal.read(0, len(journal))]
    files = sorted(tmp_path.glob("sent-*.pt"), key=lambda file: int(file.stem[5:]))
    sent = [row for file in files for row in torch.load(file, weights_only=True)]
    assert len(sent) >= len(stored) >= STEPS
    for one, row in zip(stored, sent, strict=False):
        for key in SHAPES:
            assert same_numbers(one.observation[key][None], row["state"][key])
            assert same_numbers(one.next_observation[key][None], row["next_state"][key])
        assert same_numbers(one.action, row["action"].reshape(-1))
        assert one.reward == float(row["reward"])
        assert (one.done, one.truncated) == (bool(row["done"]), bool(row["truncated"]))
        info = {name: float(value) for name, value in row["complementary_info"].items()}
        assert one.complementary_info == info
    assert any(one.done or one.truncated for one in stored)


class RecordedLink(GrpcLearnerLink):
    """Keeps what the actor sends and which weights it gets."""

    def __init__(self, address: LearnerAddress, settings: LinkSettings) -> None:
        self.sent: list[Transition] = []
        self.loaded: list[ActorWeights] = []
        super().__init__(address, settings)

    def send(self, transitions: Sequence[Transition]) -> None:
        self.sent += transitions
        super().send(transitions)

    def newest_weights(self) -> ActorWeights | None:
        weights = super().newest_weights()
        if weights is not None:
            self.loaded.append(weights)
        return weights


def test_lerobots_learner_stores_what_our_actor_sends(tmp_path: Path) -> None:
    port = free_port()
    settings = config(tmp_path, port, 10**6)
    benchmark = GymHil(
        GymHilConfig(obs_type=ObsType.STATE, episode_length=40, gripper_penalty=-0.02)
    )
    policy = ActorPolicy(policy_parts(settings))
    env = SimOnlineEnv(benchmark, benchmark.tasks()[0], tuple(SHAPES))
    with lerobot("learner", tmp_path, settings) as said:
        eventually(lambda: "Starting learner thread" in said(), said)
        link = RecordedLink(LearnerAddress(port=port), LinkSettings(connect_s=WITHIN_S))
        assert link.is_lerobot
        Actor(env, policy, NoIntervention(), link, ActorSettings(seed=3, online_steps=STEPS)).run()
        assert link.wait_acknowledged(60.0)
        eventually((tmp_path / "stored.pt").exists, said)
        link.close()
    env.close()
    stored = torch.load(tmp_path / "stored.pt", weights_only=True)
    sent = link.sent[:STEPS]
    assert len(sent) == STEPS
    for key in SHAPES:
        rows = [one.observation[key] for one in sent]
        assert same_numbers(rows, stored["state"][key])
    assert same_numbers([one.action for one in sent], stored["action"])
    assert same_numbers([one.reward for one in sent], stored["reward"])
    assert [one.done for one in sent] == stored["done"].tolist()
    assert [one.truncated for one in sent] == stored["truncated"].tolist()
    for name in ("discrete_penalty", "is_intervention"):
        numbers = [one.complementary_info[name] for one in sent]
        assert same_numbers(numbers, stored["complementary_info"][name].reshape(-1))
    first = torch.load(tmp_path / "weights.pt", weights_only=True)
    for module, state in first.items():
        for key, tensor in state.items():
            assert np.array_equal(link.loaded[0].modules[module][key], tensor.numpy())
    assert len(link.loaded) > 1, "the learner has pushed trained weights"
