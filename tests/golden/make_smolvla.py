"""Makes data/smolvla_run: what LeRobot's own SmolVLA does with a tiny model, words to training.

    PYTHON tests/golden/make_smolvla.py        (PYTHON: of a venv with lerobot 0.6.1, transformers)

Weights follow the recipe of recipes.py and are not stored; neither is anything downloaded: the
vision-language model is a made-up one, and its tokenizer has a token for every byte.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.smolvla import modeling_smolvla as theirs
from lerobot.policies.smolvla import smolvlm_with_expert
from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
from recipes import GOLDEN, fill_weights, recipe_input
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast, SmolVLMConfig

OUT = GOLDEN / "smolvla_run"
WORDS = ["push the red block", "open it", "Grasp the mug and, carefully, set it down on the plate"]
STEPS = 5
LR = 1e-3
CHUNK, ACTIONS, MOST = 6, 5, 8
KEPT = (
    "model.action_out_proj.weight",
    "model.state_proj.weight",
    "model.vlm_with_expert.lm_expert.layers.0.self_attn.q_proj.weight",
    "model.vlm_with_expert.lm_expert.layers.1.self_attn.k_proj.weight",
    "model.vlm_with_expert.vlm.model.text_model.layers.1.mlp.down_proj.weight",
    "model.vlm_with_expert.vlm.model.connector.modality_projection.proj.weight",
    "model.vlm_with_expert.vlm.model.vision_model.embeddings.patch_embedding.weight",
)
"""Weights that are stored after training."""


def make_vlm(folder: Path) -> None:
    text = LlamaConfig(
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=6,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=258,
        rms_norm_eps=1e-5,
        pad_token_id=257,
    )
    vision = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
    }
    SmolVLMConfig(text_config=text.to_dict(), vision_config=vision, scale_factor=2).save_pretrained(
        folder
    )
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {letter: number for number, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>"
    ).save_pretrained(folder)


def config_of(**changes) -> SmolVLAConfig:
    return SmolVLAConfig(
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (4,)),
            "observation.images.top": PolicyFeature(FeatureType.VISUAL, (3, 24, 40)),
            "observation.images.wrist": PolicyFeature(FeatureType.VISUAL, (3, 32, 32)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTIONS,))},
        device="cpu",
        push_to_hub=False,
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        max_state_dim=MOST,
        max_action_dim=MOST,
        resize_imgs_with_padding=(32, 32),
        tokenizer_max_length=32,
        num_vlm_layers=4,
        vlm_model_name=str(OUT / "vlm"),
        optimizer_lr=LR,
        **changes,
    )


def policy_of(**changes) -> theirs.SmolVLAPolicy:
    policy = theirs.SmolVLAPolicy(config_of(**changes))
    fill_weights(policy, "")
    return policy


def raw_batch(rows: int) -> dict:
    pictures = {
        "observation.images.top": recipe_input("top", [rows, 24, 40, 3], 0, 255),
        "observation.images.wrist": recipe_input("wrist", [rows, 32, 32, 3], 0, 255),
    }
    pictures = {key: (p.byte().permute(0, 3, 1, 2).float() / 255) for key, p in pictures.items()}
    return {
        **pictures,
        "observation.state": recipe_input("state", [rows, 4], -2, 2),
        "task": WORDS[:rows],
    }


def stats() -> dict:
    return {
        "observation.state": {
            "mean": recipe_input("state mean", [4], -1, 1),
            "std": recipe_input("state std", [4], 0.5, 2),
        },
        "action": {
            "mean": recipe_input("action mean", [ACTIONS], -1, 1),
            "std": recipe_input("action std", [ACTIONS], 0.5, 2),
        },
    }


def noise_of(name: str) -> torch.Tensor:
    return recipe_input(name, [len(WORDS), CHUNK, MOST], -2, 2)


def act(outputs: dict) -> None:
    policy = policy_of()
    before, after = make_pre_post_processors(policy.config, dataset_stats=stats())
    batch = before(raw_batch(len(WORDS)))
    outputs["tokens"] = batch["observation.language.tokens"]
    outputs["mask"] = batch["observation.language.attention_mask"]
    chunk = policy.predict_action_chunk(batch, noise=noise_of("noise"))
    outputs["chunk_normalized"] = chunk
    outputs["chunk"] = after(chunk)
    policy.config.save_pretrained(OUT)
    before.save_pretrained(OUT)
    after.save_pretrained(OUT)
    for name, changes in {
        "self_attn": {"attention_mode": "self_attn"},
        "never_joint": {"self_attn_every_n_layers": -1, "num_steps": 3},
    }.items():
        other = policy_of(**changes).predict_action_chunk(batch, noise=noise_of("noise"))
        outputs[f"chunk_{name}"] = other


def train(name: str, outputs: dict, **changes) -> None:
    policy = policy_of(**changes)
    before, _ = make_pre_post_processors(policy.config, dataset_stats=stats())
    optimizer = policy.config.get_optimizer_preset().build(policy.get_optim_params())
    schedule = policy.config.get_scheduler_preset().build(optimizer, STEPS)
    losses = []
    policy.train()
    for step in range(STEPS):
        batch = before({**raw_batch(len(WORDS)), **actions_of(step)})
        time = recipe_input(f"time {step}", [len(WORDS)], 0.01, 0.99)
        loss, _ = policy.forward(batch, noise=noise_of(f"noise {step}"), time=time)
        loss.backward()
        norm = policy.config.optimizer_grad_clip_norm
        torch.nn.utils.clip_grad_norm_(policy.parameters(), norm, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
    outputs[f"{name}/losses"] = torch.stack(losses)
    state = policy.state_dict()
    outputs |= {f"{name}/{key}": state[key].contiguous() for key in KEPT}
    learning = [key for key, value in policy.named_parameters() if value.requires_grad]
    (OUT / f"{name}.json").write_text(json.dumps(learning, indent=0))


def actions_of(step: int) -> dict:
    ends = torch.tensor([CHUNK, CHUNK - 2, CHUNK - 4])
    return {
        "action": recipe_input(f"action {step}", [len(WORDS), CHUNK, ACTIONS], -2, 2),
        "action_is_pad": torch.arange(CHUNK) >= ends[:, None],
    }


def turn_aloha(outputs: dict) -> None:
    values = recipe_input("aloha", [2, 3, 14], 0, 1)
    blank = SimpleNamespace()
    kinds = theirs.SmolVLAPolicy
    outputs["aloha/state"] = kinds._pi_aloha_decode_state(blank, values[:, 0].clone())
    outputs["aloha/encoded"] = kinds._pi_aloha_encode_actions(blank, values.clone())
    outputs["aloha/decoded"] = kinds._pi_aloha_encode_actions_inv(blank, values.clone())


def main() -> None:
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "vlm").mkdir(parents=True)
    make_vlm(OUT / "vlm")
    special = SimpleNamespace(fake_image_token_id=0, global_image_token_id=0)
    no_processor = SimpleNamespace(from_pretrained=lambda _: SimpleNamespace(tokenizer=special))
    smolvlm_with_expert.AutoProcessor = no_processor
    outputs: dict[str, torch.Tensor] = {}
    act(outputs)
    train("expert", outputs)
    train("all", outputs, train_expert_only=False, freeze_vision_encoder=False)
    turn_aloha(outputs)
    for file in OUT.glob("*.json"):  # nobody else's folder
        file.write_text(file.read_text().replace(str(OUT), "."))
    save_file(
        {key: value.contiguous() for key, value in outputs.items()}, OUT / "outputs.safetensors"
    )


if __name__ == "__main__":
    main()
