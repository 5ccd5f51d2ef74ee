"""Every policy family at its smallest size for the fake benchmark: fields and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from proctor.benchmarks.base import interface_of
from proctor.features import ACTION, IMAGE, STATE, Feature, FeatureKind, Interface
from proctor.plugins import find_benchmark, find_policy
from proctor.policies.base import Batch, Query
from proctor.policies.compatibility import default_inputs
from proctor.policies.lerobot.checkpoint.checkpoint import instantiate_network
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.lerobot.config.config import decode_config
from proctor.policies.lerobot.config.families import family
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint
from proctor.types import EpisodeSpec, Task
from tests.tiny_pi import N_WORDS, RUNS, tiny_sizes
from tests.unit.policies.tiny_groot_n15 import write_base as write_n15
from tests.unit.policies.tiny_tokenizer import write_clip

_GOLDEN = RUNS.parent
SIDE = 40
"""Image size in pixels."""
_XVLA = json.loads((_GOLDEN / "xvla_run" / "auto" / "config.json").read_text())
_PI: dict[str, Any] = {
    "chunk_size": 4, "n_action_steps": 4, "max_state_dim": 4, "max_action_dim": 4,
    "image_resolution": [28, 28], "tokenizer_max_length": 24, "tokenizer": str(RUNS / "words"),
}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    "act": {
        "chunk_size": 4, "n_action_steps": 4, "dim_model": 16, "n_heads": 2, "latent_dim": 4,
        "dim_feedforward": 24, "n_encoder_layers": 1, "n_vae_encoder_layers": 1,
        "pretrained_backbone_weights": None,
    },
    "diffusion": {
        "horizon": 8, "n_action_steps": 4, "down_dims": [16, 24], "n_groups": 8,
        "diffusion_step_embed_dim": 14, "num_train_timesteps": 4, "crop_shape": None,
        "spatial_softmax_num_keypoints": 5, "pretrained_backbone_weights": None,
    },
    "multi_task_dit": {
        "horizon": 8, "n_action_steps": 4, "hidden_dim": 16, "num_layers": 1, "num_heads": 2,
        "timestep_embed_dim": 8, "objective": "flow_matching", "num_integration_steps": 3,
        "image_crop_shape": [32, 32], "tokenizer_max_length": 12, "load_clip_weights": False,
    },
    "vqbet": {
        "n_obs_steps": 2, "action_chunk_size": 3, "crop_shape": None, "use_group_norm": True,
        "pretrained_backbone_weights": None, "gpt_input_dim": 16, "gpt_output_dim": 16,
        "gpt_hidden_dim": 16, "gpt_n_head": 2, "gpt_n_layer": 1, "gpt_block_size": 12,
        "spatial_softmax_num_keypoints": 4, "bet_softmax_temperature": 2.0,
    },
    "tdmpc": {
        "horizon": 3, "latent_dim": 6, "mlp_dim": 16, "cem_iterations": 2, "n_elites": 4,
        "n_gaussian_samples": 16, "n_pi_samples": 3, "image_encoder_hidden_dim": 4,
        "state_encoder_hidden_dim": 8,
    },
    "gaussian_actor": {
        "image_encoder_hidden_dim": 4, "image_embedding_pooling_dim": 2, "latent_dim": 6,
        "actor_network_kwargs": {"hidden_dims": [10, 8]}, "sample_actions": True,
    },
    "smolvla": {
        "chunk_size": 4, "n_action_steps": 4, "max_state_dim": 4, "max_action_dim": 4,
        "num_vlm_layers": 2, "num_steps": 2, "resize_imgs_with_padding": [16, 16],
        "tokenizer_max_length": 8, "vlm_model_name": str(_GOLDEN / "smolvla_run" / "vlm"),
    },
    "pi0": _PI | {"num_inference_steps": 2},
    "pi05": _PI | {"num_inference_steps": 2},
    "pi0_fast": _PI | {
        "max_decoding_steps": 6, "action_tokenizer_name": str(RUNS / "codes"),
        "validate_action_token_prefix": False,
    },
    "xvla": {
        "chunk_size": 4, "n_action_steps": 4, "florence_config": _XVLA["florence_config"],
        "hidden_size": 32, "depth": 1, "num_heads": 4, "num_domains": 2, "len_soft_prompts": 2,
        "dim_time": 8, "action_mode": "auto", "num_denoising_steps": 2, "max_state_dim": 20,
        "resize_imgs_with_padding": [32, 32], "tokenizer_max_length": 12,
        "tokenizer_name": str(_GOLDEN / "xvla_run" / "tokenizer"),
    },
    "groot": {
        "chunk_size": 4, "n_action_steps": 4, "max_state_dim": 12, "max_action_dim": 12,
        "tokenizer": str(_GOLDEN / "groot_run" / "backbone"), "num_inference_timesteps": 2,
        "use_bf16": False, "warmup_ratio": 0.0001,
    },
    "groot_n15": {
        "chunk_size": 4, "n_action_steps": 4, "max_state_dim": 7, "max_action_dim": 5,
        "use_bf16": False,
    },
}  # fmt: skip
SAID = tuple(f"do {i}" for i in range(6))
LEARNT_IN_WORDS = (
    "multi_task_dit",
    "smolvla",
    "pi0",
    "pi05",
    "pi0_fast",
    "xvla",
    "groot",
    "groot_n15",
)
"""Families with a language model: their tests are marked vla."""


@contextmanager
def tiny_models() -> Iterator[None]:
    """Make model names mean tiny models, and use one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with tiny_sizes(vocabulary=N_WORDS):
        yield
    torch.set_num_threads(before)


def fields_of(kind: str, scratch: Path) -> dict[str, Any]:
    """Return the fields of a tiny policy; files that it reads are written to ``scratch``."""
    if kind == "groot":
        return TINY[kind] | {"base_model_path": str(groot_base(scratch / "groot_base"))}
    if kind == "groot_n15":
        folder = scratch / "groot_n15_base"
        base = folder / "base" if folder.exists() else write_n15(folder, statistics=False)
        return TINY[kind] | {"base_model_path": str(base), "tokenizer": str(base)}
    if kind != "multi_task_dit":
        return TINY[kind]
    clip = scratch / "clip"
    name = str(clip if clip.exists() else write_clip(clip))
    return TINY[kind] | {"text_encoder_name": name, "vision_encoder_name": name}


def groot_base(folder: Path) -> Path:
    """Return a base model of GR00T in NVIDIA's layout, without statistics; weights are random."""
    if not folder.exists():
        folder.mkdir(parents=True)
        stated = json.loads((_GOLDEN / "groot_run" / "base" / "config.json").read_text())
        stated |= {"max_state_dim": 12, "max_action_dim": 12}
        stated["model_name"] = str(_GOLDEN / "groot_run" / "backbone")
        (folder / "config.json").write_text(json.dumps(stated))
        sizes = {"image_target_size": [32, 32], "image_crop_size": [29, 29]}
        processor = {"processor_kwargs": sizes | {"use_albumentations": True}}
        (folder / "processor_config.json").write_text(json.dumps(processor))
        made = family("groot")
        assert made is not None
        inputs = {IMAGE: {"type": "VISUAL", "shape": [3, SIDE, SIDE]}}
        inputs[STATE] = {"type": "STATE", "shape": [2]}
        raw = TINY["groot"] | {"type": "groot", "base_model_path": str(folder)}
        raw |= {
            "input_features": inputs,
            "output_features": {ACTION: {"type": "ACTION", "shape": [2]}},
        }
        network = instantiate_network(made, decode_config(raw, made.config, "tiny"))
        tied = network.tied.values()
        tensors = {k: v for k, v in network.state_dict().items() if k not in tied}
        save_file(tensors, folder / "model.safetensors")
    return folder


def flags_of(kind: str, scratch: Path) -> dict[str, Any]:
    """Return the flags of a command that creates such a policy."""
    fields = {"type": kind, "device": "cpu"} | fields_of(kind, scratch)
    return {
        f"policy.{name}": value if isinstance(value, str) else json.dumps(value)
        for name, value in fields.items()
    }


def offered() -> Interface:
    """Return the interface of the fake benchmark."""
    benchmark = find_benchmark("fake")
    return interface_of(benchmark.make(benchmark.config(image_size=SIDE)))


def first_actions(policy: Any, size: int, words: Sequence[str] = SAID) -> np.ndarray:
    """Return the first actions of an episode for each of ``words``, in batches of ``size``."""
    drawn, n, rows = np.random.default_rng(0), policy.spec.n_obs_steps, len(words)
    seen = {
        STATE: drawn.normal(size=(rows, n, 2)).astype(np.float32),
        IMAGE: drawn.integers(0, 256, (rows, n, SIDE, SIDE, 3), dtype=np.uint8),
    }
    tasks = [Task("s", i, f"t{i}", said, 9, 9) for i, said in enumerate(words)]
    specs = [EpisodeSpec(task, i, 0) for i, task in enumerate(tasks)]
    queries = [Query(spec, 0, policy.new_episode(spec)) for spec in specs]
    found = []
    for at in range(0, rows, size):
        part = slice(at, at + size)
        found.append(policy.act(Batch(queries[part], {k: v[part] for k, v in seen.items()})))
    return np.concatenate(found)


def checkpoint_of(kind: str, scratch: Path) -> Path:
    """Return the folder of a checkpoint with random weights that are not zero."""
    folder = scratch / kind
    if folder.exists():
        return folder
    plugin = find_policy(kind)
    config: Any = plugin.config(**fields_of(kind, scratch))
    if kind in ("groot", "groot_n15"):  # with inputs it is a new policy, and not the base model
        action = Feature(FeatureKind.ACTION, (offered().action.size,), "float32")
        config.input_features, config.output_features = default_inputs(offered()), {ACTION: action}
    policy: Any = plugin.make(config, offered())
    made = family(kind)
    assert made is not None
    config = policy.parts.config
    torch.manual_seed(0)
    network = instantiate_network(
        made, config
    )  # a policy's weights may lack those that only training needs
    for value in network.parameters():
        value.data += 0.05 * torch.randn_like(value)
    pipelines = policy.parts.preprocessor, policy.parts.postprocessor
    write_checkpoint(LoadedCheckpoint(config, network, made.prefix, *pipelines), folder)
    return folder
