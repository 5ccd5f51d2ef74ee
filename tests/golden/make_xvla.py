"""Makes data/xvla_run: what LeRobot's own X-VLA does with a tiny model, words to training.

    PYTHON tests/golden/make_xvla.py        (PYTHON: of a venv with lerobot 0.6.1, transformers)

Weights follow the recipe of recipes.py and are not stored, neither is anything downloaded: its
Florence-2 is a made-up one, and its tokenizer has a token for every byte. Beside it lie, in
keys_xvla.txt, the names and shapes of the tensors of one at true size.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.xvla.configuration_xvla import XVLAConfig
from lerobot.policies.xvla.modeling_xvla import XVLAPolicy
from recipes import GOLDEN, fill_weights, recipe_input
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

OUT = GOLDEN / "xvla_run"
WORDS = ["push the red block", "open it", "Grasp the mug and, carefully, set it down on the plate"]
ROWS, STEPS, CHUNK = len(WORDS), 5, 6
MODES = {"ee6d": 20, "auto": 5}
KEPT = (
    "model.transformer.action_decoder.fc.weight",
    "model.transformer.soft_prompt_hub.weight",
    "model.transformer.blocks.0.attn.qkv.weight",
    "model.vlm.language_model.encoder.layers.0.fc1.weight",
    "model.vlm.language_model.encoder.embed_positions.weight",
    "model.vlm.vision_tower.blocks.1.0.channel_block.channel_attn.qkv.weight",
    "model.vlm.multi_modal_projector.image_projection.weight",
)
"""Weights that are stored after training."""
FLORENCE = {
    "vision_config": {
        "depths": [1, 1],
        "patch_size": [7, 3],
        "patch_stride": [4, 2],
        "patch_padding": [3, 1],
        "patch_prenorm": [False, True],
        "embed_dim": [8, 16],
        "num_heads": [2, 4],
        "num_groups": [2, 4],
        "window_size": 3,
        "projection_dim": 24,
        "max_position_embeddings": 10,
        "max_temporal_embeddings": 4,
    },
    "text_config": {
        "model_type": "bart",
        "vocab_size": 260,
        "d_model": 24,
        "encoder_layers": 2,
        "encoder_attention_heads": 3,
        "encoder_ffn_dim": 40,
        "decoder_layers": 1,
        "decoder_attention_heads": 3,
        "decoder_ffn_dim": 40,
        "max_position_embeddings": 64,
        "scale_embedding": True,
        "pad_token_id": 257,
    },
}


def make_tokenizer(folder: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {letter: number for number, letter in enumerate(letters)}
    numbers |= {"<s>": 256, "<pad>": 257, "</s>": 258}
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 258), ("<s>", 256), add_prefix_space=False
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)


def config_of(mode: str) -> XVLAConfig:
    return XVLAConfig(
        input_features={
            "observation.images.top": PolicyFeature(FeatureType.VISUAL, (3, 24, 40)),
            "observation.images.wrist": PolicyFeature(FeatureType.VISUAL, (3, 32, 32)),
            "observation.state": PolicyFeature(FeatureType.STATE, (4,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (MODES[mode],))},
        device="cpu",
        push_to_hub=False,
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        florence_config=FLORENCE,
        tokenizer_name=str(OUT / "tokenizer"),
        tokenizer_max_length=24,
        hidden_size=32,
        depth=2,
        num_heads=4,
        mlp_ratio=2.0,
        num_domains=3,
        len_soft_prompts=4,
        dim_time=8,
        max_len_seq=128,
        action_mode=mode,
        num_denoising_steps=3,
        max_state_dim=20,
        resize_imgs_with_padding=(32, 32),
        num_image_views=3,
        optimizer_lr=1e-3,
    )


def policy_of(mode: str) -> XVLAPolicy:
    policy = XVLAPolicy(config_of(mode))
    fill_weights(policy, "")
    language = policy.model.vlm.language_model
    language.encoder.embed_tokens.weight = language.shared.weight
    fill_weights(language.shared, "model.vlm.language_model.shared.")
    return policy.eval()  # no dropout, in training either: nothing is random but what is given


def raw_batch() -> dict:
    pictures = {
        "observation.images.top": recipe_input("top", [ROWS, 24, 40, 3], 0, 255),
        "observation.images.wrist": recipe_input("wrist", [ROWS, 32, 32, 3], 0, 255),
    }
    pictures = {key: (p.byte().permute(0, 3, 1, 2).float() / 255) for key, p in pictures.items()}
    return {
        **pictures,
        "observation.state": recipe_input("state", [ROWS, 4], -2, 2),
        "task": WORDS,
    }


def act(mode: str, outputs: dict) -> None:
    policy = policy_of(mode)
    before, after = make_pre_post_processors(policy.config)
    batch = before(raw_batch())
    outputs["tokens"] = batch["observation.language.tokens"]
    torch.manual_seed(0)
    outputs[f"{mode}/noise"] = torch.randn(ROWS, CHUNK, policy.model.dim_action)
    torch.manual_seed(0)
    outputs[f"{mode}/chunk"] = after(policy.predict_action_chunk(batch))
    (OUT / mode).mkdir()
    policy.config.save_pretrained(OUT / mode)
    before.save_pretrained(OUT / mode)
    after.save_pretrained(OUT / mode)


def train(mode: str, outputs: dict) -> None:
    policy = policy_of(mode)
    before, _ = make_pre_post_processors(policy.config)
    optimizer = policy.config.get_optimizer_preset().build(policy.get_optim_params())
    schedule = policy.config.get_scheduler_preset().build(optimizer, STEPS)
    losses = []
    for step in range(STEPS):
        wanted = recipe_input(f"action {step}", [ROWS, CHUNK, MODES[mode]], 0, 1)
        batch = before({**raw_batch(), "action": wanted})
        torch.manual_seed(step)
        outputs[f"{mode}/time {step}"] = torch.rand(1)
        outputs[f"{mode}/noise {step}"] = torch.randn(ROWS, CHUNK, policy.model.dim_action)
        torch.manual_seed(step)
        loss, _ = policy.forward(batch)
        loss.backward()
        norm = policy.config.optimizer_grad_clip_norm
        torch.nn.utils.clip_grad_norm_(policy.parameters(), norm, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
    outputs[f"{mode}/losses"] = torch.stack(losses)
    state = policy.state_dict()
    outputs |= {f"{mode}/{key}": state[key].contiguous() for key in KEPT}


def write_keys() -> None:
    """Write the names and shapes at true size: LeRobot's defaults on Florence-2-large."""
    large = {"embed_dim": [256, 512, 1024, 2048], "num_heads": [8, 16, 32, 64]}
    large |= {"num_groups": [8, 16, 32, 64], "projection_dim": 1024}
    text = {"model_type": "bart", "vocab_size": 51289, "max_position_embeddings": 4096}
    config = config_of("ee6d")
    sizes = XVLAConfig(
        input_features=config.input_features,
        output_features=config.output_features,
        device="cpu",
        florence_config={"vision_config": large, "text_config": text},
        resize_imgs_with_padding=(224, 224),
    )
    with torch.device("meta"):
        policy = XVLAPolicy(sizes)
    lines = [f"{key} {list(value.shape)}\n" for key, value in policy.state_dict().items()]
    (GOLDEN / "keys_xvla.txt").write_text("".join(lines))


def main() -> None:
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    make_tokenizer(OUT / "tokenizer")
    outputs: dict[str, torch.Tensor] = {}
    for mode in MODES:
        act(mode, outputs)
        train(mode, outputs)
    for file in OUT.rglob("*.json"):  # nobody else's folder
        text = file.read_text().replace(str(OUT), "..")
        file.write_text(text)
        json.loads(text)
    save_file(
        {key: value.contiguous() for key, value in outputs.items()}, OUT / "outputs.safetensors"
    )
    write_keys()


if __name__ == "__main__":
    main()
