"""Runs under the Python of LeRobot 0.5.1, with transformers and diffusers: GR00T N1.5.

    HF_LEROBOT_HOME=... python lerobot_groot_n15_side.py FOLDER

FOLDER/ours is a tiny checkpoint, FOLDER/given.safetensors holds observations, noise, times and
actions, FOLDER/words.json the instructions. It loads the checkpoint, steps and all, and writes the
tokens, images and chunk of each row, and then the losses and some weights of a short training, into
FOLDER/theirs.safetensors.
"""

import json
import sys
from pathlib import Path
from unittest.mock import patch

import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.groot.groot_n1 import GR00TN15, GR00TN15Config
from lerobot.policies.groot.modeling_groot import GrootPolicy
from lerobot.policies.groot.processor_groot import GrootActionUnpackUnnormalizeStep
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

STEPS = 5
# Its files ask for FlashAttention, which needs a GPU.
PreTrainedModel._check_and_adjust_attn_implementation = lambda *_, **__: "eager"


def create_groot_model(policy) -> GR00TN15:
    """Make the base model; transformers 5.3, which 0.5.1 pins, fails in LeRobot's own way to it."""
    base = Path(policy.config.base_model_path)
    stated = json.loads((base / "config.json").read_text())
    backbone = {k: v for k, v in stated["backbone_cfg"].items() if k != "eagle_path"}
    model = GR00TN15(GR00TN15Config(**stated | {"backbone_cfg": backbone}), str(base))
    settings = policy.config
    model.backbone.set_trainable_parameters(settings.tune_llm, settings.tune_visual)
    model.action_head.set_trainable_parameters(
        settings.tune_projector, settings.tune_diffusion_model
    )
    return model


def observed(given: dict, words: list[str], rows: slice) -> dict:
    seen = {key: value[rows] for key, value in given.items() if key.startswith("observation.")}
    return {**seen, "task": words[rows]}


def act(policy, before, after, given: dict, words: list[str]) -> dict:
    """Return tokens, images and chunk of each row, alone in its batch."""
    chunks, found = [], {}
    for row in range(len(words)):
        rows = slice(row, row + 1)
        batch = before(observed(given, words, rows))
        found[f"tokens {row}"] = batch["eagle_input_ids"][0]
        found[f"pixels {row}"] = batch["eagle_pixel_values"]
        with patch("torch.randn", lambda *_, rows=rows, **__: given["noise"][rows].clone()):
            chunk = policy.predict_action_chunk(batch)
        # Its own step keeps only the last action of a chunk, so each action is unpacked alone.
        steps = [after(action) for action in chunk.transpose(0, 1)]
        chunks.append(torch.stack(steps, 1))
    return {**found, "chunk": torch.cat(chunks)}


def train(policy, before, given: dict, words: list[str]) -> dict:
    """Return the losses of some steps, and the trained weights after them."""
    optimizer = policy.config.get_optimizer_preset().build(policy.get_optim_params())
    schedule = policy.config.get_scheduler_preset().build(optimizer, STEPS)
    head, losses = policy._groot_model.action_head, []
    policy.train()
    for step in range(STEPS):
        # One instruction for all: LeRobot gives the first one to the whole batch.
        batch = observed(given, [words[0]] * len(words), slice(None))
        batch = before({**batch, "action": given[f"action {step}"]})
        head.sample_time = lambda *_, step=step, **__: given[f"time {step}"]
        noise = given[f"noise {step}"]
        with patch("torch.randn", lambda *_, noise=noise, **__: noise.clone()):
            loss, _ = policy.forward(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
    weights = {
        f"weight {name.removeprefix('_groot_model.')}": value.detach().clone().contiguous()
        for name, value in policy.named_parameters()
        if value.requires_grad
    }
    return {"losses": torch.stack(losses), **weights}


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    given = load_file(folder / "given.safetensors")
    words = json.loads((folder / "words.json").read_text())
    GrootPolicy._create_groot_model = create_groot_model
    config = PreTrainedConfig.from_pretrained(folder / "ours")
    policy = GrootPolicy.from_pretrained(folder / "ours", config=config).eval()
    before, after = make_pre_post_processors(config, pretrained_path=str(folder / "ours"))
    assert isinstance(after.steps[0], GrootActionUnpackUnnormalizeStep)
    for module in policy.modules():  # draws of dropout cannot be shared
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    found = act(policy, before, after, given, words)
    found |= train(policy, before, given, words)
    save_file(
        {key: value.contiguous() for key, value in found.items()}, folder / "theirs.safetensors"
    )


if __name__ == "__main__":
    main()
