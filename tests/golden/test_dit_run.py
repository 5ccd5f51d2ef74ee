"""The multi-task diffusion transformer against LeRobot 0.6.1 as a whole: words to chunks, training.

`make_dit.py` made what is compared with; weights follow the recipe.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from recipes import GOLDEN, assert_close, fill_weights, recipe_input
from safetensors.torch import load_file, save_file

pytest.importorskip("tokenizers", reason="words need a tokenizer: pip install 'proctor[vla]'")
from proctor.features import LANGUAGE_MASK, LANGUAGE_TOKENS, STATE
from proctor.fingerprint import ConfigUse
from proctor.policies.base import Batch, Query
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.lerobot.config.config import decode_config
from proctor.policies.lerobot.config.presets import OptimizerSettings, ScheduleSettings
from proctor.policies.multi_task_dit.config import DitConfig
from proctor.policies.multi_task_dit.network import Dit
from proctor.policies.runtime.chunk_policy import ChunkPolicy, to_float_image
from proctor.training.optim.optimizers import (
    clip_gradients,
    make_optimizer,
    make_scheduler,
    param_groups,
    resolve,
)
from proctor.types import EpisodeSpec, Task

pytestmark = pytest.mark.vla
RUN = GOLDEN / "dit_run"
WORDS = ["push the red block", "open it", "Grasp the MUG and, carefully, set it down on the plate"]
STEPS, ROWS, HORIZON, ACTIONS, N_OBS = 5, 3, 8, 4, 2


@pytest.fixture(scope="module")
def expected():
    return load_file(RUN / "outputs.safetensors")


@pytest.fixture(scope="module", params=["flow", "diffusion"])
def checkpoint(request, tmp_path_factory) -> Path:
    return whole(tmp_path_factory.mktemp("dit") / request.param, request.param)


def whole(folder: Path, variant: str, clip: Path = RUN / "clip") -> Path:
    """Return LeRobot's checkpoint, whole again: its weights, and where its CLIP is."""
    shutil.copytree(RUN / variant, folder)
    for name in ("config.json", "policy_preprocessor.json"):
        file = folder / name
        file.write_text(file.read_text().replace("./clip", str(clip)))
    config = decode_config(json.loads((folder / "config.json").read_text()), DitConfig, "here")
    network = Dit(config)
    fill_weights(network, "", matrices=0.4)
    save_file(network.state_dict(), folder / "model.safetensors")
    return folder


def observations() -> dict[str, np.ndarray]:
    shape = [ROWS, N_OBS, 24, 32, 3]
    seen = {name: recipe_input(name, shape, 0, 255).byte() for name in ("top", "wrist")}
    pictures = {f"observation.images.{name}": drawn.numpy() for name, drawn in seen.items()}
    return {**pictures, STATE: recipe_input("state", [ROWS, N_OBS, 5], -2, 2).numpy()}


def noise_of(name: str) -> torch.Tensor:
    return recipe_input(name, [ROWS, HORIZON, ACTIONS], -2, 2)


def queries() -> list[Query]:
    tasks = [Task("golden", n, f"task-{n}", words, 50, 10) for n, words in enumerate(WORDS)]
    return [Query(EpisodeSpec(task, n, 0), 0, None) for n, task in enumerate(tasks)]


def acting(folder: Path, monkeypatch) -> ChunkPolicy:
    policy = ChunkPolicy(read_checkpoint(folder), "cpu")
    noise = noise_of("noise").numpy()[:, None]
    monkeypatch.setattr(policy, "_draw", lambda query: {"noise": noise[query.spec.index]})
    return policy


def act(folder: Path, monkeypatch) -> torch.Tensor:
    """Let the policy in ``folder`` act on the raw observations, each with its words and noise."""
    return torch.from_numpy(acting(folder, monkeypatch).act(Batch(queries(), observations())))


def test_words_are_lerobots_tokens(checkpoint, expected):
    told = read_checkpoint(checkpoint).instruction_encoder(ConfigUse.EVALUATION)(WORDS, {})
    assert told[LANGUAGE_TOKENS].tolist() == expected["tokens"].tolist()
    assert told[LANGUAGE_MASK].tolist() == expected["mask"].tolist()


def test_words_and_pictures_become_lerobots_chunk(checkpoint, expected, monkeypatch):
    found = act(checkpoint, monkeypatch)
    assert_close("chunk", found, expected[f"{checkpoint.name}/chunk"], 1e-5)


def test_a_row_does_not_depend_on_the_others(checkpoint, monkeypatch):
    policy, seen, asked = acting(checkpoint, monkeypatch), observations(), queries()

    def rows(numbers: list[int]) -> np.ndarray:
        some = {key: value[numbers] for key, value in seen.items()}
        return policy.act(Batch([asked[n] for n in numbers], some))

    alone = np.concatenate([rows([n]) for n in range(ROWS)])
    for numbers in ([0, 1, 2], [2, 0, 1, 1, 0, 2, 2, 0]):
        np.testing.assert_array_equal(rows(numbers), alone[numbers])


def test_what_we_write_has_lerobots_fields_and_acts_the_same(checkpoint, tmp_path, monkeypatch):
    write_checkpoint(read_checkpoint(checkpoint), tmp_path / "again")
    for name in ("config.json", "policy_preprocessor.json", "policy_postprocessor.json"):
        told = [json.loads((f / name).read_text()) for f in (checkpoint, tmp_path / "again")]
        assert list(told[0].items()) == list(told[1].items()), name
    assert torch.equal(act(checkpoint, monkeypatch), act(tmp_path / "again", monkeypatch))


def test_five_steps_of_training_are_lerobots(checkpoint, expected):
    name, parts = checkpoint.name, read_checkpoint(checkpoint, use=ConfigUse.TRAINING)
    network = parts.network.train()
    learning = [key for key, p in network.named_parameters() if p.requires_grad]
    assert learning == json.loads((RUN / f"{name}.json").read_text())
    recipe = resolve(parts.config.training_preset(), OptimizerSettings(), ScheduleSettings())
    optimizer = make_optimizer(recipe, param_groups(recipe, network), fused=False)
    schedule = make_scheduler(recipe, optimizer, STEPS)
    losses = []
    for step in range(STEPS):
        loss, _ = network.loss(*batch_of(parts, step))
        loss.backward()
        clip_gradients(network.parameters(), recipe.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
    assert_close("losses", torch.stack(losses), expected[f"{name}/losses"], 1e-5)
    state = {f"{name}/{key}": value for key, value in network.state_dict().items()}
    kept = [key for key in expected if key in state]
    assert len(kept) >= 4
    for key in kept:
        torch.testing.assert_close(state[key], expected[key], rtol=0, atol=1e-5)


def batch_of(parts, step: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return a batch as the loader and the preprocessor make it, and the draws of LeRobot's."""
    raw = {key: torch.from_numpy(value) for key, value in observations().items()}
    raw["action"] = recipe_input(f"action {step}", [ROWS, HORIZON, ACTIONS], -2, 2)
    told = parts.instruction_encoder(ConfigUse.TRAINING)(WORDS, raw)
    batch = {key: to_float_image(value) for key, value in raw.items()}
    batch |= {key: torch.from_numpy(rows) for key, rows in told.items()}
    ends = torch.tensor([HORIZON, HORIZON - 2, HORIZON - 4])
    batch["action_is_pad"] = torch.arange(HORIZON) >= ends[:, None]
    time = recipe_input(f"time {step}", [ROWS], 0.01, 0.99)
    if parts.config.objective == "flow_matching":
        time = (1 - time / parts.config.timestep_sampling_s) ** 1.5
    return parts.preprocessor(batch), {"noise": noise_of(f"noise {step}"), "time": time}
