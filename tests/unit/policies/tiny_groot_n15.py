"""A tiny GR00T N1.5 on disk: the base model, a tokenizer, and a checkpoint as LeRobot 0.5.1's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from proctor.policies.groot.config import GrootN15Config
from proctor.policies.groot.network.network import GrootN15
from proctor.policies.lerobot.config.config import decode_config

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
ACTIONS, STATES, CHUNK = 3, 4, 6
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>")
TAG = "so100"

_TRANSFORMER = {"num_attention_heads": 2, "dropout": 0.2, "num_layers": 2}
BASE: dict[str, Any] = {
    "model_type": "gr00t_n1_5",
    "backbone_cfg": {"select_layer": 2, "project_to_dim": None},
    "action_head_cfg": {
        "input_embedding_dim": 16,
        "backbone_embedding_dim": 12,
        "hidden_size": 10,
        "max_seq_len": 9,
        "action_dim": 5,
        "action_horizon": CHUNK,
        "max_state_dim": 7,
        "max_num_embodiments": 32,
        "num_target_vision_tokens": 3,
        "diffusion_model_cfg": {**_TRANSFORMER, "attention_head_dim": 8, "output_dim": 10},
        "vl_self_attention_cfg": {**_TRANSFORMER, "attention_head_dim": 6},
    },
}
EAGLE = {
    "text_config": {
        "hidden_size": 12,
        "head_dim": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 24,
        "num_hidden_layers": 3,
        "vocab_size": 300,
        "rope_theta": 1e6,
    },
    "vision_config": {
        "hidden_size": 12,
        "image_size": 28,
        "intermediate_size": 20,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "patch_size": 14,
    },
    "image_token_index": 5,
}


def config_json(base: Path) -> dict[str, Any]:
    """Return config.json as LeRobot 0.5.1 writes it, with the fields that matter here."""
    image = {"type": "VISUAL", "shape": [3, 20, 24]}
    return {
        "type": "groot",
        "n_obs_steps": 1,
        "input_features": {
            FRONT: image,
            WRIST: image,
            "observation.state": {"type": "STATE", "shape": [STATES]},
        },
        "output_features": {"action": {"type": "ACTION", "shape": [ACTIONS]}},
        "chunk_size": 50,
        "n_action_steps": 50,
        "max_state_dim": 7,
        "max_action_dim": 5,
        "base_model_path": str(base),
        "tokenizer_assets_repo": "lerobot/eagle2hg-processor-groot-n1p5",
        "embodiment_tag": "new_embodiment",
        "use_bf16": False,
    }


def write_base(folder: Path, *, statistics: bool = True) -> Path:
    """Write a base model in NVIDIA's layout; return its folder."""
    eagle, base = folder / "eagle", folder / "base"
    (base / "experiment_cfg").mkdir(parents=True)
    eagle.mkdir()
    (eagle / "config.json").write_text(json.dumps(EAGLE))
    stated = BASE | {"backbone_cfg": BASE["backbone_cfg"] | {"eagle_path": str(eagle)}}
    (base / "config.json").write_text(json.dumps(stated))
    if statistics:
        (base / "experiment_cfg/metadata.json").write_text(json.dumps({TAG: metadata()}))
    network = network_of(base)
    tensors = {k: v for k, v in network.state_dict().items() if k not in network.tied}
    save_file(tensors, base / "model.safetensors")
    write_tokenizer(base)
    return base


def metadata() -> dict[str, Any]:
    """Return the statistics of one embodiment, in groups."""
    groups = {"single_arm": 2, "gripper": 1}
    shapes = {name: {"shape": [n], "rotation_type": None} for name, n in groups.items()}
    bounds = {name: {"min": [-2.0] * n, "max": [4.0] * n} for name, n in groups.items()}
    return {
        "modalities": {"video": {"front": {}, "wrist": {}}, "state": shapes, "action": shapes},
        "statistics": {"state": bounds, "action": bounds},
    }


def network_of(base: Path) -> GrootN15:
    """Return the network with weights that do not depend on the random generator."""
    raw = config_json(base) | {"type": "groot_n15"}
    network = GrootN15(decode_config(raw, GrootN15Config, "test"))
    generator = torch.Generator().manual_seed(3)
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return network


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of bytes and Eagle's special tokens."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: n for n, text in enumerate([*SPECIALS, *letters])}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    (folder / "tokenizer.json").write_text(made.to_str())
    (folder / "tokenizer_config.json").write_text('{"pad_token": "<|endoftext|>"}')


def write_lerobot_checkpoint(base: Path, folder: Path) -> Path:
    """Write a checkpoint as LeRobot 0.5.1 does."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_json(base)))
    network = network_of(base)
    held = {k: v for k, v in network.state_dict().items() if k not in network.tied}
    save_file({f"_groot_model.{k}": v for k, v in held.items()}, folder / "model.safetensors")
    stats = {
        "observation.state.min": torch.full((STATES,), -1.0),
        "observation.state.max": torch.full((STATES,), 3.0),
        "action.min": torch.tensor([-1.0, 0.0, 2.0]),
        "action.max": torch.tensor([1.0, 5.0, 2.0]),
    }
    pack, unpack = "policy_preprocessor_step_2.safetensors", "policy_post_step_0.safetensors"
    save_file(stats, folder / pack)
    save_file(stats, folder / unpack)
    before = [
        {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
        {"registry_name": "to_batch_processor", "config": {}},
        {
            "registry_name": "groot_pack_inputs_v3",
            "config": {
                "state_horizon": 1,
                "action_horizon": CHUNK,
                "max_state_dim": 7,
                "max_action_dim": 5,
                "language_key": "task",
                "formalize_language": False,
                "embodiment_tag": "new_embodiment",
                "embodiment_mapping": {"new_embodiment": 31, "so100": 2},
                "normalize_min_max": True,
            },
            "state_file": pack,
        },
        {"registry_name": "groot_eagle_encode_v3", "config": {}},
        {"registry_name": "groot_eagle_collate_v3", "config": {}},
        {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}},
    ]
    after = [
        {
            "registry_name": "groot_action_unpack_unnormalize_v1",
            "config": {"env_action_dim": ACTIONS, "normalize_min_max": True},
            "state_file": unpack,
        },
        {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}},
    ]
    for name, steps in (("policy_preprocessor", before), ("policy_postprocessor", after)):
        text = json.dumps({"name": name, "steps": steps})
        (folder / f"{name}.json").write_text(text)
    write_tokenizer(folder)
    return folder
