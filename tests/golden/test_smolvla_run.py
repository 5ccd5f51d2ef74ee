"""SmolVLA against LeRobot 0.6.1 as a whole: words and pictures to chunks, losses, training.

`make_smolvla.py` made what is compared with; weights follow the recipe.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes import GOLDEN, assert_close, fill_weights, recipe_input
from safetensors.torch import load_file, save_file

pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")
from proctor.features import LANGUAGE_MASK, LANGUAGE_TOKENS
from proctor.policies.base import Batch, Query
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.lerobot.config.config import decode_config
from proctor.policies.lerobot.config.presets import OptimizerSettings, ScheduleSettings
from proctor.policies.runtime.chunk_policy import ChunkPolicy
from proctor.policies.smolvla import aloha
from proctor.policies.smolvla.config import SmolVlaConfig
from proctor.policies.smolvla.network import SmolVla
from proctor.training.optim.optimizers import (
    clip_gradients,
    make_optimizer,
    make_scheduler,
    param_groups,
    resolve,
)
from proctor.types import EpisodeSpec, Task

pytestmark = pytest.mark.vla
RUN = GOLDEN / "smolvla_run"
WORDS = ["push the red block", "open it", "Grasp the mug and, carefully, set it down on the plate"]
STEPS, ROWS, CHUNK, ACTIONS, MOST = 5, 3, 6, 5, 8


@pytest.fixture(scope="module")
def expected():
    return load_file(RUN / "outputs.safetensors")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return whole(tmp_path_factory.mktemp("smolvla") / "checkpoint")


def whole(folder: Path) -> Path:
    """Return LeRobot's checkpoint, whole again: its weights, and where its language model is."""
    shutil.copytree(RUN, folder)
    for name in ("config.json", "policy_preprocessor.json"):
        file = folder / name
        file.write_text(file.read_text().replace("./vlm", str(folder / "vlm")))
    config = decode_config(json.loads((folder / "config.json").read_text()), SmolVlaConfig, "here")
    network = SmolVla(config)
    fill_weights(network, "model.")
    weights = {f"model.{key}": value for key, value in network.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    return folder


def pictures() -> dict[str, np.ndarray]:
    shapes = {"top": [ROWS, 24, 40, 3], "wrist": [ROWS, 32, 32, 3]}
    drawn = {name: recipe_input(name, shape, 0, 255) for name, shape in shapes.items()}
    return {f"observation.images.{name}": p.byte().numpy() for name, p in drawn.items()}


def noise_of(name: str) -> torch.Tensor:
    return recipe_input(name, [ROWS, CHUNK, MOST], -2, 2)


def act(folder: Path, monkeypatch, **overrides: Any) -> torch.Tensor:
    """Let the policy in ``folder`` act on the raw observations, each with its words and noise."""
    policy = ChunkPolicy(read_checkpoint(folder, overrides), "cpu")
    noise = noise_of("noise").numpy()
    monkeypatch.setattr(policy, "_draw", lambda query: {"noise": noise[query.spec.index]})
    tasks = [Task("golden", n, f"task-{n}", words, 50, 10) for n, words in enumerate(WORDS)]
    queries = [Query(EpisodeSpec(task, n, 0), 0, None) for n, task in enumerate(tasks)]
    seen = {**pictures(), "observation.state": recipe_input("state", [ROWS, 4], -2, 2).numpy()}
    return torch.from_numpy(policy.act(Batch(queries, {k: v[:, None] for k, v in seen.items()})))


def test_words_and_pictures_become_lerobots_chunk(checkpoint, expected, monkeypatch):
    assert_close("chunk", act(checkpoint, monkeypatch), expected["chunk"], 1e-5)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("self_attn", {"attention_mode": "self_attn"}),
        ("never_joint", {"self_attn_every_n_layers": -1, "num_steps": 3}),
    ],
)
def test_other_ways_to_look_give_lerobots_chunks(expected, name, overrides):
    network = network_of(**overrides).eval()
    with torch.inference_mode():
        found = network.chunk(inputs_of(expected), {"noise": noise_of("noise")})
    assert_close(name, found, expected[f"chunk_{name}"], 1e-5)


def network_of(**overrides: Any) -> SmolVla:
    raw = json.loads((RUN / "config.json").read_text()) | {"vlm_model_name": str(RUN / "vlm")}
    network = SmolVla(decode_config(raw | overrides, SmolVlaConfig, "golden"))
    fill_weights(network, "model.")
    return network


def inputs_of(expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the observations as the network is given them, with LeRobot's own tokens."""
    seen = {k: torch.from_numpy(p).permute(0, 3, 1, 2).float() / 255 for k, p in pictures().items()}
    state = normalized("state", recipe_input("state", [ROWS, 4], -2, 2))
    tokens = {LANGUAGE_TOKENS: expected["tokens"], LANGUAGE_MASK: expected["mask"].bool()}
    return {**seen, "observation.state": state, **tokens}


def normalized(name: str, values: torch.Tensor) -> torch.Tensor:
    size = [values.shape[-1]]
    mean, std = recipe_input(f"{name} mean", size, -1, 1), recipe_input(f"{name} std", size, 0.5, 2)
    return (values - mean) / (std + 1e-8)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("expert", {}), ("all", {"train_expert_only": False, "freeze_vision_encoder": False})],
)
def test_five_steps_of_training_are_lerobots(expected, name, overrides):
    network = network_of(**overrides).train()
    learning = [f"model.{key}" for key, p in network.named_parameters() if p.requires_grad]
    assert learning == json.loads((RUN / f"{name}.json").read_text())
    recipe = resolve(network.config.training_preset(), OptimizerSettings(), ScheduleSettings())
    optimizer = make_optimizer(recipe, param_groups(recipe, network), fused=False)
    schedule = make_scheduler(recipe, optimizer, STEPS)
    losses = []
    for step in range(STEPS):
        loss, _ = network.loss(*batch_of(step, expected))
        loss.backward()
        clip_gradients(network.parameters(), recipe.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
    assert_close("losses", torch.stack(losses), expected[f"{name}/losses"], 1e-5)
    state = {f"{name}/model.{key}": value for key, value in network.state_dict().items()}
    kept = [key for key in expected if key.startswith(f"{name}/model.")]
    assert len(kept) == 7
    for key in kept:
        torch.testing.assert_close(state[key], expected[key], rtol=0, atol=1e-5)


def batch_of(step: int, expected) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    actions = recipe_input(f"action {step}", [ROWS, CHUNK, ACTIONS], -2, 2)
    ends = torch.tensor([CHUNK, CHUNK - 2, CHUNK - 4])
    time = recipe_input(f"time {step}", [ROWS], 0.01, 0.99)
    batch = {
        **inputs_of(expected),
        "action": normalized("action", actions),
        "action_is_pad": torch.arange(CHUNK) >= ends[:, None],
    }
    # The number that the inverse of Beta(1.5, 1)'s distribution makes this time of.
    return batch, {"noise": noise_of(f"noise {step}"), "time": ((time - 0.001) / 0.999) ** 1.5}


def test_alohas_joints_are_turned_as_lerobot_does(expected):
    values = recipe_input("aloha", [2, 3, 14], 0, 1)
    for name, found in {
        "state": aloha.decode_state(values[:, 0]),
        "encoded": aloha.encode_actions(values),
        "decoded": aloha.decode_actions(values),
    }.items():
        assert_close(name, found, expected[f"aloha/{name}"], 1e-5)


def test_what_we_write_has_lerobots_fields_and_acts_the_same(checkpoint, tmp_path, monkeypatch):
    write_checkpoint(read_checkpoint(checkpoint), tmp_path / "again")
    told = [json.loads((f / "config.json").read_text()) for f in (checkpoint, tmp_path / "again")]
    assert list(told[0].items()) == list(told[1].items())
    steps = [
        json.loads((f / "policy_preprocessor.json").read_text())
        for f in (checkpoint, tmp_path / "again")
    ]
    assert steps[0] == steps[1]
    assert torch.equal(act(checkpoint, monkeypatch), act(tmp_path / "again", monkeypatch))
