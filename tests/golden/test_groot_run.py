"""GR00T against LeRobot 0.6.1 as a whole: words and images to chunks, losses, training.

`make_groot.py` made what is compared with; weights follow the recipe.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes import assert_close, recipe_input
from safetensors.torch import load_file

pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")
from groot_folders import (
    ACTIONS,
    CHUNK,
    MOST,
    RUN,
    STATES,
    STEPS,
    WORDS,
    write_base,
    write_checkpoint_of,
)

from proctor.features import ACTION, STATE, ActionSpec, Feature, FeatureKind, Interface
from proctor.policies.base import Batch, Query
from proctor.policies.groot.network.network import DROP, NOISE, TIME
from proctor.policies.lerobot.checkpoint.checkpoint import load_policy, read_checkpoint
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.lerobot.config.presets import OptimizerSettings, ScheduleSettings
from proctor.policies.runtime.chunk_policy import ChunkPolicy
from proctor.training.optim.optimizers import (
    clip_gradients,
    make_optimizer,
    make_scheduler,
    param_groups,
    resolve,
)
from proctor.types import EpisodeSpec, Task

pytestmark = pytest.mark.vla
ROWS = len(WORDS)
CAMERAS = ("observation.images.top", "observation.images.wrist_image")
SAMPLED = 1e-4


@pytest.fixture(scope="module")
def expected():
    return load_file(RUN / "outputs.safetensors")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return write_base(tmp_path_factory.mktemp("groot"))


@pytest.fixture(scope="module", params=["arm", "new"])
def case(request, base, tmp_path_factory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param) / "checkpoint"
    return request.param, write_checkpoint_of(request.param, base, folder)


def observations() -> dict[str, np.ndarray]:
    drawn = {key: recipe_input(key.rsplit(".", 1)[1], [ROWS, 40, 48, 3], 0, 255) for key in CAMERAS}
    seen = {key: image.byte().numpy() for key, image in drawn.items()}
    return {**seen, STATE: recipe_input("state", [ROWS, STATES], -1.5, 1.5).numpy()}


def noise_of(name: str) -> torch.Tensor:
    return recipe_input(name, [ROWS, CHUNK, MOST], -2, 2)


def act(policy: ChunkPolicy, monkeypatch) -> torch.Tensor:
    """Let a policy act on the raw observations, each with its words and noise."""
    noise = noise_of("noise").numpy()
    monkeypatch.setattr(policy, "_draw", lambda query: {NOISE: noise[query.spec.index]})
    tasks = [Task("golden", n, f"task-{n}", words, 50, 10) for n, words in enumerate(WORDS)]
    queries = [Query(EpisodeSpec(task, n, 0), 0, None) for n, task in enumerate(tasks)]
    seen = {key: values[:, None] for key, values in observations().items()}
    return torch.from_numpy(policy.act(Batch(queries, seen)))


def loaded(folder: Path, **overrides: Any) -> ChunkPolicy:
    return ChunkPolicy(read_checkpoint(folder, overrides), "cpu")


def test_words_and_images_become_lerobots_chunk(case, expected, monkeypatch):
    name, folder = case
    found = act(loaded(folder), monkeypatch)
    assert_close("chunk", found, expected[f"{name}/chunk"], SAMPLED)


def prepared(parts, step: int | None = None) -> dict[str, torch.Tensor]:
    """Return the network's inputs of a batch, in training with actions."""
    seen = observations()
    images = {k: torch.from_numpy(seen[k]).permute(0, 3, 1, 2).float() / 255 for k in CAMERAS}
    told = {k: torch.from_numpy(v) for k, v in parts.preprocessor.encode_prompt(WORDS, {}).items()}
    batch = {**images, STATE: torch.from_numpy(seen[STATE]), **told}
    if step is not None:
        ends = torch.tensor([CHUNK - 1, CHUNK - 2, CHUNK - 3])
        batch[ACTION] = recipe_input(f"action {step}", [ROWS, CHUNK - 1, ACTIONS], -2, 2)
        batch["action_is_pad"] = torch.arange(CHUNK - 1) >= ends[:, None]
    return parts.preprocessor(batch)


def test_a_padded_batch_is_lerobots_with_upstream_padding(case, expected):
    name, folder = case
    parts = read_checkpoint(folder, {"upstream_padding": "true"})
    network = parts.network.eval()
    network.check_preprocessor(parts.preprocessor.steps)
    with torch.inference_mode():
        found = network.chunk(prepared(parts), {NOISE: noise_of("noise")})
        state = {STATE: torch.from_numpy(observations()[STATE])}
        actions = parts.postprocessor({ACTION: found[:, : CHUNK - 1], **state})[ACTION]
    assert_close("batched", actions, expected[f"{name}/chunk_batched"], SAMPLED)
    alone = expected[f"{name}/chunk"]
    assert (alone - expected[f"{name}/chunk_batched"]).abs().max() > 1e-3  # padding matters there


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_sample_does_not_depend_on_its_batch(case, expected, rows):
    name, folder = case
    parts = read_checkpoint(folder)
    network = parts.network.eval()
    network.check_preprocessor(parts.preprocessor.steps)
    numbers = torch.arange(rows) % ROWS
    inputs = {key: value[numbers] for key, value in prepared(parts).items()}
    with torch.inference_mode():
        found = network.chunk(inputs, {NOISE: noise_of("noise")[numbers]})[:, : CHUNK - 1]
    state = torch.from_numpy(observations()[STATE])[numbers]
    actions = parts.postprocessor({ACTION: found, STATE: state})[ACTION]
    assert_close("chunk", actions, expected[f"{name}/chunk"][numbers], SAMPLED)


@pytest.mark.parametrize(
    ("run", "name", "changes"),
    [("head", "arm", {}), ("more", "new", {"tune_top_llm_layers": 1, "tune_vlln": False})],
)
def test_five_steps_of_training_are_lerobots(base, expected, tmp_path, run, name, changes):
    folder = write_checkpoint_of(name, base, tmp_path / "checkpoint")
    parts = read_checkpoint(folder, {"upstream_padding": "true", **changes})
    network = parts.network
    network.config.tune_vlln = changes.get("tune_vlln", True)
    network.config.tune_top_llm_layers = changes.get("tune_top_llm_layers", 0)
    network.freeze()
    network.check_preprocessor(parts.preprocessor.steps)
    network.train()
    recipe = resolve(network.config.training_preset(), OptimizerSettings(), ScheduleSettings())
    groups = param_groups(recipe, network)
    told = json.loads((RUN / f"{run}.json").read_text())
    names = {id(value): f"_groot_model.{name}" for name, value in network.named_parameters()}
    assert [[names[id(p)] for p in group["params"]] for group in groups] == told["groups"]
    optimizer = make_optimizer(recipe, groups, fused=False)
    assert [group["weight_decay"] for group in optimizer.param_groups] == told["decays"]
    schedule = make_scheduler(recipe, optimizer, STEPS)
    losses = []
    for step in range(STEPS):
        time = recipe_input(f"time {step}", [ROWS], 0.01, 0.99)
        # The number that the inverse of Beta(1.5, 1)'s distribution makes this time of.
        draws = {TIME: (1 - time / 0.999) ** 1.5, DROP: torch.ones(ROWS, 2)}
        loss, _ = network.loss(prepared(parts, step), draws | {NOISE: noise_of(f"noise {step}")})
        loss.backward()
        clip_gradients(network.parameters(), recipe.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
    assert_close("losses", torch.stack(losses), expected[f"{run}/losses"], 1e-5)
    state = network.state_dict()
    kept = [key for key in expected if key.startswith(f"{run}/") and not key.endswith("losses")]
    assert len(kept) == 8
    for key in kept:
        found = state[key.removeprefix(f"{run}/")]
        torch.testing.assert_close(found, expected[key], rtol=0, atol=2e-5)


def test_what_we_write_has_lerobots_fields_and_acts_the_same(case, tmp_path, monkeypatch):
    _, folder = case
    again = tmp_path / "again"
    write_checkpoint(read_checkpoint(folder), again)
    for file in ("config.json", "policy_preprocessor.json", "policy_postprocessor.json"):
        told = [json.loads((f / file).read_text()) for f in (folder, again)]
        assert told[0] == told[1]
    first = json.loads((folder / "config.json").read_text())
    assert list(first) == list(json.loads((again / "config.json").read_text()))
    for file in folder.glob("*step*.safetensors"):
        ours, theirs = load_file(again / file.name), load_file(file)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key].float(), theirs[key].float()) for key in ours)
    assert torch.equal(act(loaded(folder), monkeypatch), act(loaded(again), monkeypatch))


def interface() -> Interface:
    image = Feature(FeatureKind.VISUAL, (40, 48, 3), "uint8")
    features = dict.fromkeys(CAMERAS, image)
    features[STATE] = Feature(FeatureKind.STATE, (STATES,), "float32")
    return Interface("golden", features, ActionSpec(ACTIONS))


def test_nvidias_own_folder_acts_as_lerobots_checkpoint(base, expected, monkeypatch):
    told = {"tokenizer": str(base.parent / "backbone"), "use_bf16": False, "device": "cpu"}
    policy = load_policy(str(base), None, told, interface())
    assert_close("chunk", act(policy, monkeypatch), expected["arm/chunk"], SAMPLED)
