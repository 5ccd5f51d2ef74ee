"""VQ-BeT and TD-MPC against LeRobot 0.6.1: its files, raw observations to actions, training.

data/README.md says how the files were made.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import vq_td_cases as cases
from recipes import GOLDEN, assert_close
from safetensors.torch import load_file, save_file

from proctor.policies.base import Batch, Query
from proctor.policies.lerobot.checkpoint.checkpoint import (
    instantiate_network,
    read_checkpoint,
    read_config,
)
from proctor.policies.lerobot.config.presets import OptimizerSettings, ScheduleSettings
from proctor.policies.runtime.chunk_policy import ChunkPolicy, LoadedCheckpoint, to_float_image
from proctor.policies.vqbet.network import VqBet
from proctor.training.optim.optimizers import (
    clip_gradients,
    make_optimizer,
    make_scheduler,
    param_groups,
    resolve,
)
from proctor.types import EpisodeSpec, Task

LOSS, ACTIONS, AFTER = 1e-5, 1e-4, 1e-4
INCOMPARABLE = ("num_batches_tracked", "c_attn.bias", "pool.nets.bias")
"""LeRobot counts a batch more, the one it measures sizes by; and what a softmax does not feel has a
gradient of rounding only, of which Adam makes a step like others."""


def lerobots(name: str, folder: Path) -> tuple[LoadedCheckpoint, dict[str, torch.Tensor]]:
    """Return the policy in LeRobot's files, with the weights of the case, and LeRobot's outputs."""
    shutil.copytree(GOLDEN / name, folder)
    plugin, config, notes = read_config(folder)
    assert notes == []
    state = instantiate_network(plugin, config).state_dict()
    cases.fill(state, plugin.prefix)
    save_file({plugin.prefix + k: v for k, v in state.items()}, folder / "model.safetensors")
    return read_checkpoint(folder), load_file(folder / "outputs.safetensors")


LONG = pytest.mark.slow
"""Of what a shorter one shows as well: an image encoder is a ResNet, however small the rest."""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def episode(index: int) -> EpisodeSpec:
    return EpisodeSpec(Task("some", 0, "task", "do it", 50, 10), index, 0)


def seen_by(policy: ChunkPolicy, name: str, step: int) -> dict[str, np.ndarray]:
    """Return what two episodes saw up to ``step``, pictures as a benchmark gives them."""
    n = policy.spec.n_obs_steps
    moments = [cases.observation(name, max(0, step - back)) for back in reversed(range(n))]
    stacked = {key: torch.stack([m[key] for m in moments], 1) for key in moments[0]}
    return {
        key: (value.movedim(2, -1) if value.dtype == torch.uint8 else value).numpy()
        for key, value in stacked.items()
    }


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[LONG] if n.startswith("vqbet") else []) for n in cases.CASES],
)
def test_raw_observations_become_lerobots_actions(name, monkeypatch, tmp_path):
    check_played(name, *lerobots(name, tmp_path / name), monkeypatch)


def check_played(name, parts, expected, monkeypatch):
    """Check that a policy plays what LeRobot's does under the draws of a case."""
    if isinstance(parts.network, VqBet):
        parts.network.codes.freeze()
    policy = ChunkPolicy(parts, "cpu")
    every = policy.spec.n_action_steps
    states = [policy.network.new_episode() for _ in range(cases.B)]
    played = []
    for query in range(cases.QUERIES):
        drawn = cases.draws(name, f"query {query}")
        if "codes" in drawn:  # LeRobot draws for all stretches, and plays the one from now on
            drawn["codes"] = drawn["codes"][:, 4]
        given = {key: drawn[key].numpy() for key in policy.network.draws}
        monkeypatch.setattr(policy, "_draw", lambda q, g=given: {k: g[k][q.spec.index] for k in g})
        queries = [Query(episode(row), query * every, states[row]) for row in range(cases.B)]
        seen = seen_by(policy, name, query * every)
        played.append(torch.from_numpy(policy.act(Batch(queries, seen))))
    assert_close("actions", torch.cat(played, 1), expected["actions"], ACTIONS)


@pytest.mark.parametrize(
    "name",
    [
        "tdmpc_tiny",
        "tdmpc_tiny_blind",
        pytest.param("vqbet_tiny", marks=LONG),
        pytest.param("vqbet_tiny_sequential", marks=LONG),
    ],
)
def test_five_steps_of_training_are_lerobots(name, tmp_path):
    check_trained(name, *lerobots(name, tmp_path / name))


def check_trained(name, parts, expected):
    """Check that a policy's losses and weights in five steps are those of LeRobot's."""
    network = parts.network.train()
    preset = parts.config.training_preset()
    recipe = resolve(preset, OptimizerSettings(), ScheduleSettings())
    optimizer = make_optimizer(recipe, param_groups(recipe, network), fused=True)
    schedule = make_scheduler(recipe, optimizer, cases.STEPS)
    for step in range(cases.STEPS):
        batch = {
            k: to_float_image(channels_last(v)) for k, v in cases.training_batch(name, step).items()
        }
        drawn = cases.draws(name, f"step {step}")
        given = {
            key: drawn[key][:, : shape[0]] if key == "judges" else drawn[key]
            for key, (_, shape) in network.loss_draws.items()
        }
        loss, told = network.loss(parts.preprocessor(batch), given)
        loss.backward()
        norm = clip_gradients(network.parameters(), recipe.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        network.after_update(step + 1)
        for key, value in {"loss": loss, "norm": norm, **told}.items():
            near = LOSS if step == 0 and key != "norm" else AFTER
            assert_close(f"{key} {step}", value.detach(), expected[f"{key} {step}"], near)
    for key, value in network.state_dict().items():
        if key.endswith(INCOMPARABLE):
            continue
        found, wanted = cases.summary(value), expected[f"after {parts.prefix}{key}"]
        assert (found - wanted).abs().max() <= AFTER * (1 + wanted[1]), key


def channels_last(value: torch.Tensor) -> torch.Tensor:
    return value.movedim(-3, -1) if value.dtype == torch.uint8 else value
