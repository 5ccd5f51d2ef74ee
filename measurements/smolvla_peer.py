"""LeRobot's own SmolVLA module, out of its files alone: a host need not have LeRobot installed.

FOLDER holds ``lerobot/policies/smolvla``, ``lerobot/policies/common`` and ``lerobot/utils`` of
LeRobot 0.6.1. Of what these import, only what computes is theirs; configs, queues and real-time
chunking are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from proctor.features import LANGUAGE_MASK, LANGUAGE_TOKENS, STATE
from proctor.policies.smolvla.network import SmolVla
from proctor.policies.smolvla.vlm import sizes_of

_PACKAGES = ("lerobot", "lerobot.policies", "lerobot.policies.smolvla", "lerobot.policies.common")
_LEFT_OUT = {
    "lerobot.utils.import_utils": {
        "_transformers_available": True,
        "require_package": lambda *_, **__: None,
    },
    "lerobot.policies.pretrained": {"PreTrainedPolicy": object},
    "lerobot.policies.rtc.modeling_rtc": {"RTCProcessor": object},
    "lerobot.policies.utils": {"populate_queues": None},
    "lerobot.policies.smolvla.configuration_smolvla": {"SmolVLAConfig": object},
}


def _modules(folder: Path) -> tuple[Any, Any]:
    """Import the files, without the packages that they lie in."""
    for name in (*_PACKAGES, "lerobot.utils", "lerobot.policies.rtc"):
        package = ModuleType(name)
        package.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = package
    for name, contents in _LEFT_OUT.items():
        module = ModuleType(name)
        vars(module).update(contents)
        sys.modules[name] = module
    both = import_module("lerobot.policies.smolvla.smolvlm_with_expert")
    both.DynamicCache = _cache(both.DynamicCache)  # type: ignore[attr-defined]
    special = SimpleNamespace(fake_image_token_id=0, global_image_token_id=0)
    both.AutoProcessor = SimpleNamespace(  # type: ignore[attr-defined]
        from_pretrained=lambda _: SimpleNamespace(tokenizer=special)
    )
    return import_module("lerobot.policies.smolvla.modeling_smolvla"), both


def _cache(kind: type[Any]) -> type[Any]:
    """Return transformers' cache with ``crop`` as it was: newer ones only take what to remove."""

    class Cache(kind):  # type: ignore[misc]
        def crop(self, max_length: int) -> None:
            for layer in self.layers:
                layer.keys = layer.keys[..., :max_length, :]
                layer.values = layer.values[..., :max_length, :]

    return Cache


def chunk_of(network: SmolVla, folder: Path, scratch: Path) -> Callable[..., Tensor]:
    """Return LeRobot's computation with our weights: inputs and noise to a chunk."""
    modelling, _ = _modules(folder)
    sizes, config = sizes_of(network.config.vlm_model_name), network.config
    text = asdict(sizes.text_config) | {"model_type": "llama", "head_dim": sizes.text_config.head}
    told = {
        "model_type": "smolvlm",
        "text_config": text,
        "vision_config": asdict(sizes.vision_config) | {"model_type": "smolvlm_vision"},
        "scale_factor": sizes.scale_factor,
        "tie_word_embeddings": False,
    }
    (scratch / "config.json").write_text(json.dumps(told))
    names = (
        "max_state_dim max_action_dim chunk_size num_steps use_cache freeze_vision_encoder "
        "train_expert_only train_state_proj load_vlm_weights attention_mode num_expert_layers "
        "num_vlm_layers self_attn_every_n_layers expert_width_multiplier min_period max_period "
        "add_image_special_tokens prefix_length rtc_config"
    )
    fields = {name: getattr(config, name) for name in names.split()}
    theirs = SimpleNamespace(
        **fields, vlm_model_name=str(scratch), device=None, compile_model=False
    )
    model = modelling.VLAFlowMatching(theirs)
    model.load_state_dict(network.state_dict())
    model = model.eval().to(network.state_proj.weight.device)
    sides = config.resize_imgs_with_padding or [512, 512]

    @torch.no_grad()
    def chunk(inputs: dict[str, Tensor], noise: Tensor) -> Tensor:
        pictures = [
            modelling.resize_with_pad(inputs[key], sides[1], sides[0], pad_value=0) * 2.0 - 1.0
            for key in config.cameras
        ]
        there = torch.ones(len(noise), dtype=torch.bool, device=noise.device)
        state = modelling.pad_vector(inputs[STATE], config.max_state_dim)
        mask = inputs[LANGUAGE_MASK].bool()
        longest = int(mask.sum(1).max())  # LeRobot pads to the longest of a batch
        tokens = inputs[LANGUAGE_TOKENS][:, :longest]
        made: Tensor = model.sample_actions(
            pictures, [there] * len(pictures), tokens, mask[:, :longest], state, noise=noise
        )
        return made[..., : config.action_dim]

    return chunk
