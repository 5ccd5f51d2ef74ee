"""X-VLA beside LeRobot 0.6.1 on a tiny random checkpoint: from words and pictures to actions, its
losses, and five steps of training (data/xvla_run, made by make_xvla.py)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from recipes import GOLDEN, assert_close, fill_weights, recipe_input
from safetensors.torch import load_file, save_file

from proctor.features import ACTION, Feature, FeatureKind
from proctor.fingerprint import ConfigUse
from proctor.policies.base import Batch, Query
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from proctor.policies.lerobot.config.config import decode_config
from proctor.policies.runtime.chunk_policy import ChunkPolicy, to_float_image
from proctor.policies.xvla.config import XVlaConfig
from proctor.policies.xvla.network import NOISE, TIME, XVla
from proctor.training.optim.optimizers import (
    clip_gradients,
    make_optimizer,
    make_scheduler,
    param_groups,
)
from proctor.training.optim.optimizers import resolve as recipe_for
from proctor.types import EpisodeSpec, Task

pytestmark = pytest.mark.vla
RUN = GOLDEN / "xvla_run"
WORDS = ["push the red block", "open it", "Grasp the mug and, carefully, set it down on the plate"]
MODES = {"ee6d": 20, "auto": 5}
STEPS, CHUNK = 5, 6
TIED = "vlm.language_model.encoder.embed_tokens.weight"
SHARED = "vlm.language_model.shared.weight"


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    return load_file(RUN / "outputs.safetensors")


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole(tmp_path_factory.mktemp("xvla") / mode, mode)


def whole(folder: Path, mode: str) -> Path:
    """Return the checkpoint as LeRobot writes it: its tied words under one name only."""
    shutil.copytree(RUN / mode, folder)
    shutil.copytree(RUN / "tokenizer", folder / "tokenizer")
    raw = json.loads((folder / "config.json").read_text())
    network = XVla(decode_config(raw, XVlaConfig, "golden"))
    fill_weights(network, "model.")
    state = dict(network.state_dict())
    state[TIED] = state.pop(SHARED)
    save_file({f"model.{name}": t.contiguous() for name, t in state.items()},
              folder / "model.safetensors")  # fmt: skip
    return folder


def pictures() -> dict[str, np.ndarray]:
    sizes = {"observation.images.top": [3, 24, 40, 3], "observation.images.wrist": [3, 32, 32, 3]}
    return {
        key: recipe_input(key.rpartition(".")[2], size, 0, 255).byte().numpy()
        for key, size in sizes.items()
    }


def act(folder: Path, noise: torch.Tensor, monkeypatch) -> torch.Tensor:
    """Let the policy in ``folder`` act on the raw observations, each with its words and noise."""
    policy = ChunkPolicy(read_checkpoint(folder), "cpu")
    drawn = {index: {NOISE: noise[index].numpy()} for index in range(len(WORDS))}
    monkeypatch.setattr(policy, "_draw", lambda query: drawn[query.spec.index])
    queries = [
        Query(EpisodeSpec(Task("fake", n, f"task-{n}", words, 50, 10), n, 1), 0, None)
        for n, words in enumerate(WORDS)
    ]
    state = recipe_input("state", [3, 4], -2, 2).numpy()
    seen = {
        key: value[:, None] for key, value in {**pictures(), "observation.state": state}.items()
    }
    return torch.from_numpy(policy.act(Batch(queries, seen)))


def test_words_and_pictures_become_the_same_actions(checkpoint, mode, expected, monkeypatch):
    found = act(checkpoint, expected[f"{mode}/noise"], monkeypatch)
    assert_close("chunk", found, expected[f"{mode}/chunk"], 1e-5)


def test_five_steps_of_training_end_with_the_same_weights(checkpoint, mode, expected):
    parts = read_checkpoint(checkpoint, use=ConfigUse.TRAINING)
    network = parts.network.eval()  # no dropout: nothing is random but what is given
    recipe = recipe_for(parts.config.training_preset(), *_nothing())
    optimizer = make_optimizer(recipe, param_groups(recipe, network), fused=False)
    schedule = make_scheduler(recipe, optimizer, STEPS)
    instruction_encoder = parts.instruction_encoder(ConfigUse.TRAINING)
    losses = []
    for step in range(STEPS):
        batch = {key: to_float_image(torch.from_numpy(value)) for key, value in pictures().items()}
        batch["observation.state"] = recipe_input("state", [3, 4], -2, 2)
        batch[ACTION] = recipe_input(f"action {step}", [3, CHUNK, MODES[mode]], 0, 1)
        inputs = parts.preprocessor.on(torch.device("cpu"))(batch)
        inputs |= {
            key: torch.from_numpy(rows) for key, rows in instruction_encoder(WORDS, {}).items()
        }
        time = expected[f"{mode}/time {step}"].repeat(3)
        loss, _ = network.loss(inputs, {NOISE: expected[f"{mode}/noise {step}"], TIME: time})
        loss.backward()
        clip_gradients(network.parameters(), recipe.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
    assert_close("losses", torch.stack(losses), expected[f"{mode}/losses"], 1e-5)
    state, kept = network.state_dict(), 0
    for key, value in expected.items():
        name = key.removeprefix(f"{mode}/model.")
        if name != key:
            assert_close(name, state[name], value, 1e-4)
            kept += 1
    assert kept == 7


def _nothing():
    from proctor.policies.lerobot.config.presets import OptimizerSettings, ScheduleSettings

    return OptimizerSettings(), ScheduleSettings()


def test_tokens_are_lerobots(checkpoint, expected):
    instruction_encoder = read_checkpoint(checkpoint).instruction_encoder(ConfigUse.EVALUATION)
    found = torch.from_numpy(instruction_encoder(WORDS, {})["observation.language.tokens"])
    assert torch.equal(found, expected["tokens"])


def test_every_tensor_of_the_true_size_has_a_place_and_none_is_left():
    inputs = {
        "observation.images.top": Feature(FeatureKind.VISUAL, (24, 40, 3), "uint8"),
        "observation.images.wrist": Feature(FeatureKind.VISUAL, (32, 32, 3), "uint8"),
        "observation.state": Feature(FeatureKind.STATE, (4,), "float32"),
    }
    config = XVlaConfig(
        input_features=inputs,
        output_features={ACTION: Feature(FeatureKind.ACTION, (20,), "float32")},
        resize_imgs_with_padding=[224, 224],
    )
    config.validate()
    with torch.device("meta"):
        network = XVla(config)
    ours = {f"model.{name} {list(value.shape)}" for name, value in network.state_dict().items()}
    theirs = (GOLDEN / "keys_xvla.txt").read_text().splitlines()
    assert ours == {line for line in theirs if f"model.{TIED}" not in line}
    assert sum(p.numel() for p in network.parameters()) > 800e6
