"""A tiny SAC learner and random batches for it."""

from __future__ import annotations

import torch

from proctor.config.sections.online import CriticNetworkSettings, SacSettings
from proctor.policies.gaussian_actor.config import GaussianActorConfig
from proctor.policies.gaussian_actor.network import GaussianActorNetwork
from proctor.policies.lerobot.config.config import decode_config
from proctor.rl.algorithms.sac import IS_DEMONSTRATION, PENALTY, Sac
from proctor.rl.transitions import TransitionBatch

SIZE = 40
STATE, CAMERA = "observation.state", "observation.images.front"


def make_learner(
    *, images=False, gripper=True, seed=0, policy=None, fix_penalty=False, device="cpu", **settings
):
    torch.manual_seed(0)
    inputs = {STATE: {"type": "STATE", "shape": [5]}}
    if images:
        inputs[CAMERA] = {"type": "VISUAL", "shape": [3, SIZE, SIZE]}
    raw = {
        "type": "gaussian_actor",
        "input_features": inputs,
        "output_features": {"action": {"type": "ACTION", "shape": [2]}},
        "num_discrete_actions": 3 if gripper else None,
        "latent_dim": 8,
        "image_encoder_hidden_dim": 4,
        "actor_network_kwargs": {"hidden_dims": [8, 8]},
        "discrete_critic_network_kwargs": {"hidden_dims": [8, 8]},
    }
    network = GaussianActorNetwork(decode_config(raw | (policy or {}), GaussianActorConfig, "test"))
    sizes = CriticNetworkSettings(hidden_dims=[8, 8])
    chosen = SacSettings(critic_network_kwargs=sizes, **settings)
    generator = torch.Generator(device).manual_seed(seed)
    return Sac(network.to(device), chosen, generator, fix_penalty=fix_penalty)


def make_batches(learner, *, seed=1, rows=6):
    """Yield the same random batches for the same seed."""
    draw = torch.Generator().manual_seed(seed)

    def observation():
        found = {STATE: torch.randn(rows, 5, generator=draw)}
        if learner.network.encoder_critic.cameras:
            found[CAMERA] = torch.randn(rows, 3, SIZE, SIZE, generator=draw)
        return found

    while True:
        command = torch.randint(0, 3, (rows, 1), generator=draw)
        action = torch.rand(rows, 2, generator=draw) * 2 - 1
        yield TransitionBatch(
            observation(),
            torch.cat([action, command], 1) if learner.gripper is not None else action,
            torch.rand(rows, generator=draw),
            observation(),
            torch.randint(0, 2, (rows,), generator=draw).float(),
            torch.zeros(rows),
            {
                PENALTY: torch.full((rows,), -0.5),
                IS_DEMONSTRATION: (torch.arange(rows) % 2).float(),
            },
        )
