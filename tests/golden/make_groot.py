"""Makes data/groot_run: what LeRobot's own GR00T does with a tiny model, words to training.

    PYTHON tests/golden/make_groot.py        (PYTHON: of a venv with lerobot 0.6.1, transformers)

Weights follow the recipe of recipes.py and are not stored; neither is anything downloaded: the base
model, its backbone and its tokenizer are made up. The embodiment ``arm`` has statistics in the base
model and relative actions; ``new_embodiment`` has none, so a dataset's are used.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.groot import processor_groot
from lerobot.policies.groot.configuration_groot import GrootConfig
from lerobot.policies.groot.groot_n1_7 import GR00TN17, GR00TN17Config
from lerobot.policies.groot.modeling_groot import GrootPolicy
from recipes import GOLDEN, hashed_weight, recipe_input
from safetensors.torch import save_file

OUT = GOLDEN / "groot_run"
WORDS = ["Push the red_block!", "open it", "pick up the red cube and put it on the plate please"]
STEPS, LR = 5, 1e-3
CHUNK, ACTIONS, STATES, MOST = 6, 5, 5, 8
KEPT = (
    "action_head.action_decoder.layer2.W",
    "action_head.action_encoder.W2.b",
    "action_head.model.transformer_blocks.0.attn1.to_k.weight",
    "action_head.model.transformer_blocks.1.norm1.linear.weight",
    "action_head.position_embedding.weight",
    "action_head.vl_self_attention.transformer_blocks.0.ff.net.2.weight",
    "action_head.vlln.bias",
    "backbone.model.model.language_model.layers.1.mlp.down_proj.weight",
)
"""Weights that are stored after training."""
HEAD = {
    "model_type": "Gr00tN1d7", "dtype": "float32", "select_layer": 2, "backbone_embedding_dim": 24,
    "max_state_dim": MOST, "max_action_dim": MOST, "action_horizon": CHUNK, "hidden_size": 12,
    "input_embedding_dim": 16, "max_seq_len": 8, "max_num_embodiments": 12,
    "state_dropout_prob": 0.0, "attn_dropout": 0.0,
    "diffusion_model_cfg": {
        "positional_embeddings": None, "num_layers": 4, "num_attention_heads": 2,
        "attention_head_dim": 8, "norm_type": "ada_norm", "dropout": 0.0, "final_dropout": True,
        "output_dim": 12, "interleave_self_attention": True,
    },
    "vl_self_attention_cfg": {
        "positional_embeddings": None, "num_layers": 1, "num_attention_heads": 2,
        "attention_head_dim": 12, "dropout": 0.0, "final_dropout": True,
    },
}  # fmt: skip
QWEN = {
    "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 6, "video_token_id": 7, "vision_start_token_id": 3, "vision_end_token_id": 4,
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_vl_text", "head_dim": 8, "hidden_size": 24, "intermediate_size": 32,
        "num_attention_heads": 4, "num_hidden_layers": 3, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06, "vocab_size": 400, "max_position_embeddings": 512,
        "rope_parameters": {
            "mrope_interleaved": True, "mrope_section": [2, 1, 1], "rope_theta": 5000000,
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
    },
    "vision_config": {
        "model_type": "qwen3_vl", "deepstack_visual_indexes": [0], "depth": 2, "hidden_size": 16,
        "in_channels": 3, "intermediate_size": 24, "num_heads": 2, "num_position_embeddings": 16,
        "out_hidden_size": 24, "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2,
    },
}  # fmt: skip
IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor", "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5], "patch_size": 8, "temporal_patch_size": 2, "merge_size": 2,
    "size": {"shortest_edge": 256, "longest_edge": 65536}, "resample": 3,
}  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in "
    "message['content'] %}{% if part['type'] == 'image' %}<|vision_start|><|image_pad|>"
    "<|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
)


def group(name: str, size: int, low: float, steps: int | None = None) -> dict:
    shape = [size] if steps is None else [steps, size]
    spread = {"min": low, "q01": low * 0.6, "q99": -low * 0.6, "max": -low}
    made = {key: (recipe_input(f"{name} {key}", shape, 0.8, 1.2) * value).tolist()
            for key, value in spread.items()}  # fmt: skip
    middle = {key: recipe_input(f"{name} {key}", shape, 0, 1).tolist() for key in ("mean", "std")}
    return made | middle


def make_base(folder: Path) -> None:
    """Write the base model in NVIDIA's layout, without weights."""
    folder.mkdir(parents=True)
    keys = ["single_arm", "gripper"]
    absolute = {"type": "NON_EEF", "format": "DEFAULT", "state_key": None}
    arm = {
        "state": {"delta_indices": [0], "modality_keys": keys},
        "action": {
            "delta_indices": list(range(CHUNK - 1)),
            "modality_keys": keys,
            "action_configs": [absolute | {"rep": rep} for rep in ("RELATIVE", "ABSOLUTE")],
        },
        "video": {"delta_indices": [0], "modality_keys": ["wrist_image", "top"]},
        "language": {"delta_indices": [0], "modality_keys": ["task"]},
    }
    kwargs = {
        "modality_configs": {"arm": arm},
        "use_percentiles": True,
        "use_relative_action": True,
        "max_action_horizon": CHUNK,
        "image_crop_size": [29, 29],
        "image_target_size": [32, 32],
    }
    sizes = {"single_arm": 4, "gripper": 1}
    stats = {
        "state": {key: group(f"state {key}", size, -2) for key, size in sizes.items()},
        "action": {key: group(f"action {key}", size, -2) for key, size in sizes.items()},
        "relative_action": {"single_arm": group("relative", 4, -3, CHUNK - 1)},
    }
    write(folder / "config.json", HEAD | {"model_name": "./backbone"})
    write(folder / "processor_config.json", {"processor_kwargs": kwargs})
    write(folder / "statistics.json", {"arm": stats})
    write(folder / "embodiment_id.json", {"arm": 3, "new_embodiment": 10})


def make_backbone(folder: Path) -> None:
    """Write the backbone's config, tokenizer and image processor."""
    folder.mkdir(parents=True)
    write(folder / "config.json", QWEN)
    write(folder / "preprocessor_config.json", IMAGES)
    write(folder / "video_preprocessor_config.json", IMAGES | {
        "video_processor_type": "Qwen3VLVideoProcessor"})  # fmt: skip
    shutil.copy(GOLDEN / "groot_n17_processors" / "tokenizer.json", folder)
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<|endoftext|>"}
    write(folder / "tokenizer_config.json", told | {"chat_template": TEMPLATE})


def write(file: Path, content: dict) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n")


def work_on(folder: Path) -> Path:
    """Copy base and backbone to ``folder`` with their paths and weights; return the base."""
    for name in ("base", "backbone"):
        shutil.copytree(OUT / name, folder / name)
    config = folder / "base" / "config.json"
    config.write_text(config.read_text().replace("./backbone", str(folder / "backbone")))
    stated = json.loads(config.read_text())
    model = GR00TN17(GR00TN17Config(**stated), load_backbone_weights=False)
    fill_named(model)
    weights = {k: v.contiguous() for k, v in model.state_dict().items() if "lm_head" not in k}
    save_file(weights, folder / "base" / "model.safetensors", metadata={"format": "pt"})
    processor_groot.GROOT_N1_7_BACKBONE_MODEL = str(folder / "backbone")
    return folder / "base"


def fill_named(model) -> None:
    """Give every parameter its recipe value; tied ones by their first name."""
    for name, value in model.named_parameters():
        value.data.copy_(hashed_weight(name, value.shape))


def config_of(base: Path, tag: str, **changes) -> GrootConfig:
    return GrootConfig(
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (STATES,)),
            "observation.images.top": PolicyFeature(FeatureType.VISUAL, (3, 40, 48)),
            "observation.images.wrist_image": PolicyFeature(FeatureType.VISUAL, (3, 40, 48)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTIONS,))},
        device="cpu", push_to_hub=False, chunk_size=CHUNK, n_action_steps=CHUNK - 1,
        max_state_dim=MOST, max_action_dim=MOST, base_model_path=str(base), embodiment_tag=tag,
        use_bf16=False, optimizer_lr=LR, optimizer_weight_decay=0.1, max_steps=20,
        use_relative_actions=tag == "arm", **changes,
    )  # fmt: skip


def raw_batch(rows: slice = slice(None)) -> dict:
    n = len(WORDS)
    shape = [n, 40, 48, 3]
    pictures = {f"observation.images.{name}": recipe_input(name, shape, 0, 255)
                for name in ("top", "wrist_image")}  # fmt: skip
    pictures = {key: (p.byte().permute(0, 3, 1, 2).float() / 255)[rows] for key, p in
                pictures.items()}  # fmt: skip
    state = recipe_input("state", [n, STATES], -1.5, 1.5)[rows]
    return {**pictures, "observation.state": state, "task": WORDS[rows]}


def stats() -> dict:
    return {
        key: {
            "min": recipe_input(f"{key} min", [size], -2, -1),
            "max": recipe_input(f"{key} max", [size], 1, 2),
        }
        for key, size in (("observation.state", STATES), ("action", ACTIONS))
    }


def noise_of(name: str) -> torch.Tensor:
    return recipe_input(name, [len(WORDS), CHUNK, MOST], -2, 2)


def chunk_of(policy, before, after, rows: slice) -> torch.Tensor:
    batch = before(raw_batch(rows))
    with patch("torch.randn", lambda *_, **__: noise_of("noise")[rows].clone()):
        return after(policy.predict_action_chunk(batch))


def act(name: str, tag: str, base: Path, outputs: dict) -> None:
    policy = GrootPolicy(config_of(base, tag)).eval()
    given = None if tag == "arm" else stats()
    before, after = make_pre_post_processors(policy.config, dataset_stats=given)
    each = [chunk_of(policy, before, after, slice(n, n + 1)) for n in range(len(WORDS))]
    outputs[f"{name}/chunk"] = torch.cat(each)
    outputs[f"{name}/chunk_batched"] = chunk_of(policy, before, after, slice(None))
    folder = OUT / name
    policy.config.save_pretrained(folder)
    before.save_pretrained(folder)
    after.save_pretrained(folder)
    for file in folder.glob("*.json"):
        text = file.read_text().replace(str(base), "./base")
        file.write_text(text.replace(str(base.parent / "backbone"), "./backbone"))


def actions_of(step: int) -> dict:
    ends = torch.tensor([CHUNK - 1, CHUNK - 2, CHUNK - 3])
    shape = [len(WORDS), CHUNK - 1, ACTIONS]
    return {
        "action": recipe_input(f"action {step}", shape, -2, 2),
        "action_is_pad": torch.arange(CHUNK - 1) >= ends[:, None],
    }


def train(name: str, tag: str, base: Path, outputs: dict, **changes) -> None:
    policy = GrootPolicy(config_of(base, tag, **changes))
    given = None if tag == "arm" else stats()
    before, _ = make_pre_post_processors(policy.config, dataset_stats=given)
    optimizer = policy.config.get_optimizer_preset().build(policy.get_optim_params())
    schedule = policy.config.get_scheduler_preset().build(optimizer, STEPS)
    losses, head = [], policy._groot_model.action_head
    policy.train()
    for step in range(STEPS):
        batch = before({**raw_batch(), **actions_of(step)})
        time = recipe_input(f"time {step}", [len(WORDS)], 0.01, 0.99)
        head.sample_time = lambda *_, time=time, **__: time
        with patch("torch.randn", lambda *_, step=step, **__: noise_of(f"noise {step}")):
            loss, _ = policy.forward(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
    outputs[f"{name}/losses"] = torch.stack(losses)
    state = policy.state_dict()
    outputs |= {f"{name}/{key}": state[f"_groot_model.{key}"].contiguous() for key in KEPT}
    groups = [[n for n, p in policy.named_parameters() if any(p is q for q in g["params"])]
              for g in optimizer.param_groups]  # fmt: skip
    write(OUT / f"{name}.json", {"groups": groups, "decays": [g["weight_decay"] for g in
                                                             optimizer.param_groups]})  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    make_base(OUT / "base")
    make_backbone(OUT / "backbone")
    base = work_on(Path(sys.argv[1]))
    outputs: dict[str, torch.Tensor] = {}
    act("arm", "arm", base, outputs)
    act("new", "new_embodiment", base, outputs)
    train("head", "arm", base, outputs)
    train("more", "new_embodiment", base, outputs, tune_top_llm_layers=1, tune_vlln=False)
    save_file({k: v.contiguous() for k, v in outputs.items()}, OUT / "outputs.safetensors")


if __name__ == "__main__":
    main()
