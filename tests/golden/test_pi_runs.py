"""pi0, pi0.5 and pi0-FAST beside LeRobot: words and pictures to actions, the loss, five steps."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from recipes import GOLDEN, assert_close, hash_input, recipe_input, recipe_weight
from safetensors.torch import load_file, save_file
from tests.tiny_pi import tiny_sizes

from proctor.features import ActionSpec, Feature, FeatureKind, Interface
from proctor.fingerprint import ConfigUse
from proctor.policies.base import Batch, Query
from proctor.policies.lerobot.checkpoint.checkpoint import (
    instantiate_network,
    load_policy,
    read_checkpoint,
    read_config,
)
from proctor.policies.lerobot.checkpoint.weights import SkipWeightInit
from proctor.policies.lerobot.config.presets import OptimizerSettings, ScheduleSettings
from proctor.training.optim.optimizers import (
    clip_gradients,
    make_optimizer,
    make_scheduler,
    param_groups,
    resolve,
)
from proctor.types import EpisodeSpec, Task

pytestmark = pytest.mark.vla

RUNS = GOLDEN / "pi_runs"
WORDS = ["push the red block", " open_it\n", "grasp the mug, and set it down"]
KINDS = ["pi0", "pi05", "pi0_fast"]
VOCABULARY, CODES, STEPS = 542, 290, 5
OFFERED = Interface(
    "golden",
    {
        "observation.images.top": Feature(FeatureKind.VISUAL, (24, 40, 3), "uint8"),
        "observation.images.wrist": Feature(FeatureKind.VISUAL, (28, 28, 3), "uint8"),
        "observation.state": Feature(FeatureKind.STATE, (4,), "float32"),
    },
    ActionSpec(3, -1.0, 1.0),
    10,
)


@pytest.fixture(autouse=True)
def tiny():
    with tiny_sizes(vocabulary=VOCABULARY):
        yield


def checkpoint(kind: str, folder: Path) -> Path:
    """Return a folder with the recipe's weights and the tokenizers beside LeRobot's files."""
    shutil.copytree(RUNS / kind, folder)
    shutil.copytree(RUNS / "words", folder / "tokenizer")
    if kind == "pi0_fast":
        shutil.copytree(RUNS / "codes", folder / "action_tokenizer")
    plugin, config, _ = read_config(folder)
    with torch.device("meta"), SkipWeightInit():
        wanted = instantiate_network(plugin, config).state_dict()
    tensors = {f"model.{k}": recipe_weight(f"model.{k}", t.shape) for k, t in wanted.items()}
    if kind == "pi0_fast":  # as make_pi.py has it: it says what has a code
        head = tensors["model.paligemma_with_expert.paligemma.lm_head.weight"]
        last = len(head) - 1 - 128
        head[: last - CODES + 1] = 0
        head[last + 1 :] = 0
    save_file(tensors, folder / "model.safetensors")
    return folder


def seen() -> dict[str, np.ndarray]:
    shapes = {"top": [3, 24, 40, 3], "wrist": [3, 28, 28, 3]}
    pictures = {
        f"observation.images.{name}": hash_input(name, shape, 0, 255.99).byte().numpy()
        for name, shape in shapes.items()
    }
    return {**pictures, "observation.state": recipe_input("state", [3, 4], -2, 2).numpy()}


def noise_of(name: str) -> torch.Tensor:
    return recipe_input(name, [len(WORDS), 6, 8], -2, 2)


def act(folder: Path, monkeypatch) -> torch.Tensor:
    """Let the policy in ``folder`` act on the raw observations, each with its words and noise."""
    policy = load_policy(str(folder), None, {"device": "cpu"}, OFFERED)
    noises = dict(enumerate(noise_of("noise").numpy()))
    monkeypatch.setattr(policy, "_draw", lambda query: {"noise": noises[query.spec.index]})
    tasks = [Task("golden", n, f"task {n}", words, 50, 10) for n, words in enumerate(WORDS)]
    queries = [Query(EpisodeSpec(task, n, 0), 0, None) for n, task in enumerate(tasks)]
    rows = {key: value[:, None] for key, value in seen().items()}
    return torch.from_numpy(policy.act(Batch(queries, rows)))


@pytest.mark.parametrize("kind", KINDS)
def test_words_and_pictures_become_the_actions_that_lerobot_plays(kind, tmp_path, monkeypatch):
    expected = load_file(RUNS / kind / "outputs.safetensors")
    found = act(checkpoint(kind, tmp_path / kind), monkeypatch)
    assert_close("chunk", found, expected["chunk"], 1e-4)


def learnt_from(parts):
    """Return a batch as the training makes it."""
    batch = {key: torch.from_numpy(value) for key, value in seen().items()}
    batch["action"] = recipe_input("actions", [3, 6, 3], -2, 2)
    told = parts.instruction_encoder(ConfigUse.TRAINING)
    arrays = told(WORDS, {key: batch[key] for key in told.needs})
    pictures = {
        key: value.permute(0, 3, 1, 2).float() / 255
        for key, value in batch.items()
        if value.dtype == torch.uint8
    }
    heard = {key: torch.from_numpy(rows) for key, rows in arrays.items()}
    return parts.preprocessor({**batch, **pictures, **heard})


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_losses_and_weights_of_five_steps_are_lerobots(kind, tmp_path):
    expected = load_file(RUNS / kind / "outputs.safetensors")
    folder = checkpoint(kind, tmp_path / kind)
    parts = read_checkpoint(folder, {}, OFFERED, ConfigUse.TRAINING)
    network, config = parts.network.train(), parts.config
    batch = learnt_from(parts)
    assert torch.equal(batch["observation.language.tokens"], expected["tokens"])
    assert torch.equal(batch["observation.language.attention_mask"], expected["mask"])
    for key in ("action.tokens", "action.token_mask"):
        assert (key in expected) == (key in batch)
        assert key not in batch or torch.equal(batch[key], expected[key])
    recipe = resolve(config.training_preset(), OptimizerSettings(), ScheduleSettings())
    optimizer = make_optimizer(recipe, param_groups(recipe, network), fused=False)
    scheduler = make_scheduler(recipe, optimizer, STEPS)
    losses = []
    for step in range(STEPS):
        draws = {}
        if kind != "pi0_fast":
            time = recipe_input(f"time {step}", [3], 0.01, 0.99)
            drawn = (time - config.time_sampling_offset) / config.time_sampling_scale
            draws = {"noise": noise_of(f"noise {step}"), "time": drawn**1.5}
        loss, _ = network.loss(batch, draws)
        loss.backward()
        clip_gradients(list(network.parameters()), recipe.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(loss.detach())
    assert_close("losses", torch.stack(losses), expected["losses"], 1e-5)
    state = network.state_dict()
    for name in [name for name in expected if name.startswith("trained.")]:
        found = state[name.removeprefix("trained.model.")]
        assert_close(name, found, expected[name], 1e-4)
