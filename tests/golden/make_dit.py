"""Makes data/dit_run: what LeRobot's own multi_task_dit does with a tiny CLIP, words to training.

    PYTHON tests/golden/make_dit.py        (PYTHON: of a venv with lerobot 0.6.1, transformers)

Weights follow the recipe of recipes.py and are not stored; neither is anything downloaded: the CLIP
is a made-up one, and its tokenizer has a token for every byte.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.multi_task_dit.configuration_multi_task_dit import MultiTaskDiTConfig
from lerobot.policies.multi_task_dit.modeling_multi_task_dit import MultiTaskDiTPolicy
from recipes import GOLDEN, fill_weights, recipe_input
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

OUT = GOLDEN / "dit_run"
WORDS = ["push the red block", "open it", "Grasp the MUG and, carefully, set it down on the plate"]
STEPS, LR, HORIZON, ACTIONS, N_OBS = 5, 1e-3, 8, 4, 2
KEPT = (
    "noise_predictor.output_proj.weight",
    "noise_predictor.transformer_blocks.1.adaLN_modulation.1.bias",
    "observation_encoder.text_encoder.projection.weight",
    "observation_encoder.vision_encoder.model.vision_model.embeddings.class_embedding",
    "observation_encoder.vision_encoder.model.vision_model.encoder.layers.0.mlp.fc1.weight",
    "observation_encoder.text_encoder.text_encoder.text_model.encoder.layers.0.mlp.fc1.bias",
)
"""Weights that are stored after training."""
VARIANTS = {
    "flow": {"objective": "flow_matching", "num_integration_steps": 3},
    "diffusion": {
        "objective": "diffusion",
        "noise_scheduler_type": "DDIM",
        "num_inference_steps": 4,
        "use_rope": False,
        "use_positional_encoding": True,
        "use_separate_rgb_encoder_per_camera": True,
        "do_mask_loss_for_padding": True,
    },
}


def make_clip(folder: Path) -> None:
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "projection_dim": 8,
    }
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [*letters, *(f"{one}</w>" for one in letters)]
    vocabulary += ["th", "the</w>", "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({t: n for n, t in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e</w>\n")
    text = sizes | {"vocab_size": len(vocabulary), "max_position_embeddings": 20}
    vision = sizes | {"image_size": 16, "patch_size": 8}
    config = CLIPConfig(text_config=text | {"eos_token_id": 2}, vision_config=vision)
    CLIPModel(config).save_pretrained(folder)
    CLIPTokenizer.from_pretrained(folder).save_pretrained(folder)


def config_of(clip: Path, **changes) -> MultiTaskDiTConfig:
    return MultiTaskDiTConfig(
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (5,)),
            "observation.images.top": PolicyFeature(FeatureType.VISUAL, (3, 24, 32)),
            "observation.images.wrist": PolicyFeature(FeatureType.VISUAL, (3, 24, 32)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTIONS,))},
        device="cpu",
        push_to_hub=False,
        n_obs_steps=N_OBS,
        horizon=HORIZON,
        n_action_steps=5,
        hidden_dim=16,
        num_layers=2,
        num_heads=2,
        dropout=0.0,
        timestep_embed_dim=8,
        vision_encoder_name=str(clip),
        text_encoder_name=str(clip),
        image_resize_shape=(20, 26),
        image_crop_shape=(16, 16),
        image_crop_is_random=False,
        tokenizer_max_length=20,
        optimizer_lr=LR,
        **changes,
    )


def policy_of(clip: Path, **changes) -> MultiTaskDiTPolicy:
    policy = MultiTaskDiTPolicy(config_of(clip, **changes))
    fill_weights(policy, "", matrices=0.4)
    return policy


def raw_batch() -> dict:
    rows = len(WORDS)
    pictures = {
        f"observation.images.{name}": recipe_input(name, [rows, N_OBS, 24, 32, 3], 0, 255)
        for name in ("top", "wrist")
    }
    pictures = {key: p.byte().permute(0, 1, 4, 2, 3).float() / 255 for key, p in pictures.items()}
    state = recipe_input("state", [rows, N_OBS, 5], -2, 2)
    return {**pictures, "observation.state": state, "task": list(WORDS)}


def stats() -> dict:
    mean, std = (recipe_input(f"image {name}", [3, 1, 1], 0.2, 0.6) for name in ("mean", "std"))
    made = {f"observation.images.{name}": {"mean": mean, "std": std} for name in ("top", "wrist")}
    for key, size in (("observation.state", 5), ("action", ACTIONS)):
        made[key] = {
            "min": recipe_input(f"{key} min", [size], -3, -1),
            "max": recipe_input(f"{key} max", [size], 1, 3),
        }
    return made


def noise_of(name: str) -> torch.Tensor:
    return recipe_input(name, [len(WORDS), HORIZON, ACTIONS], -2, 2)


def act(name: str, clip: Path, outputs: dict, **changes) -> None:
    policy = policy_of(clip, **changes).eval()
    before, after = make_pre_post_processors(policy.config, dataset_stats=stats())
    batch = before(raw_batch())
    outputs["tokens"] = batch["observation.language.tokens"]
    outputs["mask"] = batch["observation.language.attention_mask"]
    with torch.no_grad(), patch("torch.randn", return_value=noise_of("noise")):
        chunk = policy._generate_actions(policy._prepare_batch(batch))
    outputs[f"{name}/chunk_normalized"] = chunk
    outputs[f"{name}/chunk"] = after(chunk)
    (OUT / name).mkdir(parents=True)
    policy.config.save_pretrained(OUT / name)
    before.save_pretrained(OUT / name)
    after.save_pretrained(OUT / name)


def train(name: str, clip: Path, outputs: dict, **changes) -> None:
    policy = policy_of(clip, **changes)
    before, _ = make_pre_post_processors(policy.config, dataset_stats=stats())
    optimizer = policy.config.get_optimizer_preset().build(policy.get_optim_params())
    schedule = policy.config.get_scheduler_preset().build(optimizer, STEPS)
    losses = []
    policy.train()
    for step in range(STEPS):
        batch = before({**raw_batch(), **actions_of(step)})
        time = recipe_input(f"time {step}", [len(WORDS)], 0.01, 0.99)
        if changes["objective"] == "flow_matching":
            policy.objective._sample_timesteps = lambda rows, device, time=time: time
        steps = (time * 100).long()
        noise = noise_of(f"noise {step}")
        with (
            patch("torch.randn_like", return_value=noise),
            patch("torch.randint", return_value=steps),
        ):
            loss, _ = policy.forward(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
    outputs[f"{name}/losses"] = torch.stack(losses)
    state = policy.state_dict()
    outputs |= {f"{name}/{key}": state[key].contiguous() for key in KEPT if key in state}
    learning = [key for key, value in policy.named_parameters() if value.requires_grad]
    (OUT / f"{name}.json").write_text(json.dumps(learning, indent=0))


def actions_of(step: int) -> dict:
    ends = torch.tensor([HORIZON, HORIZON - 2, HORIZON - 4])
    return {
        "action": recipe_input(f"action {step}", [len(WORDS), HORIZON, ACTIONS], -2, 2),
        "action_is_pad": torch.arange(HORIZON) >= ends[:, None],
    }


def main() -> None:
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    outputs: dict[str, torch.Tensor] = {}
    with tempfile.TemporaryDirectory() as scratch:
        clip = Path(scratch) / "clip"
        clip.mkdir()
        make_clip(clip)
        for name, changes in VARIANTS.items():
            act(name, clip, outputs, **changes)
            train(name, clip, outputs, **changes)
        (OUT / "clip").mkdir()
        for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(clip / file, OUT / "clip" / file)
        for file in OUT.rglob("*.json"):  # nobody else's folder
            file.write_text(file.read_text().replace(str(clip), "./clip"))
    kept = {key: value.contiguous() for key, value in outputs.items()}
    save_file(kept, OUT / "outputs.safetensors")


if __name__ == "__main__":
    main()
