"""Small policies, checkpoints and an interface without a simulator, for the tests beside."""

from __future__ import annotations

import copy
import shutil
import tempfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proctor.features import ActionSpec, Feature, FeatureKind, Interface
from proctor.policies.act.config import ActConfig
from proctor.policies.base import Batch, Query
from proctor.policies.diffusion.config import DiffusionConfig
from proctor.policies.gaussian_actor.config import GaussianActorConfig
from proctor.policies.language_act.config import LanguageActConfig
from proctor.policies.lerobot.checkpoint.checkpoint import instantiate_network
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.lerobot.config.config import CheckpointConfig, CheckpointPlugin
from proctor.policies.lerobot.config.families import family
from proctor.policies.lerobot.processors.pipelines import default_pipelines
from proctor.policies.runtime.chunk_policy import ChunkPolicy, LoadedCheckpoint
from proctor.policies.runtime.network import Network
from proctor.policies.tdmpc.config import TdMpcConfig
from proctor.policies.vqbet.config import VqBetConfig
from proctor.types import EpisodeSpec, Task

STATE = "observation.state"
IMAGE = "observation.image"
INPUTS = {
    STATE: Feature(FeatureKind.STATE, (4,), "float32"),
    IMAGE: Feature(FeatureKind.VISUAL, (64, 64, 3), "uint8"),
}
ACTION = {"action": Feature(FeatureKind.ACTION, (3,), "float32")}


def small_act(**changes: Any) -> ActConfig:
    fields: dict[str, Any] = {
        "input_features": INPUTS,
        "output_features": ACTION,
        "dim_model": 32,
        "n_heads": 4,
        "dim_feedforward": 40,
        "n_encoder_layers": 1,
        "n_vae_encoder_layers": 1,
        "latent_dim": 4,
        "chunk_size": 6,
        "n_action_steps": 3,
        "pretrained_backbone_weights": None,
    }
    return ActConfig(**{**fields, **changes})


def small_language_act(**changes: Any) -> LanguageActConfig:
    fields: dict[str, Any] = {
        "input_features": INPUTS,
        "output_features": ACTION,
        "dim_model": 32,
        "n_heads": 4,
        "dim_feedforward": 40,
        "n_encoder_layers": 1,
        "n_decoder_layers": 1,
        "chunk_size": 6,
        "n_action_steps": 3,
    }
    return LanguageActConfig(**{**fields, **changes})


def small_diffusion(**changes: Any) -> DiffusionConfig:
    fields: dict[str, Any] = {
        "input_features": INPUTS,
        "output_features": ACTION,
        "horizon": 8,
        "n_action_steps": 4,
        "down_dims": [16, 24],
        "n_groups": 8,
        "diffusion_step_embed_dim": 14,
        "num_train_timesteps": 10,
        "spatial_softmax_num_keypoints": 5,
        "pretrained_backbone_weights": None,
    }
    return DiffusionConfig(**{**fields, **changes})


def small_vqbet(**changes: Any) -> VqBetConfig:
    fields: dict[str, Any] = {
        "input_features": INPUTS,
        "output_features": ACTION,
        "n_obs_steps": 2,
        "action_chunk_size": 3,
        "crop_shape": [40, 40],
        "use_group_norm": True,
        "pretrained_backbone_weights": None,
        "spatial_softmax_num_keypoints": 4,
        "vqvae_n_embed": 6,
        "vqvae_embedding_dim": 8,
        "vqvae_enc_hidden_dim": 10,
        "gpt_block_size": 12,
        "gpt_input_dim": 16,
        "gpt_output_dim": 16,
        "gpt_n_layer": 1,
        "gpt_n_head": 2,
        "gpt_hidden_dim": 16,
        "bet_softmax_temperature": 1.0,
    }
    return VqBetConfig(**{**fields, **changes})


def small_tdmpc(**changes: Any) -> TdMpcConfig:
    fields: dict[str, Any] = {
        "input_features": INPUTS,
        "output_features": ACTION,
        "horizon": 3,
        "image_encoder_hidden_dim": 4,
        "state_encoder_hidden_dim": 8,
        "latent_dim": 6,
        "q_ensemble_size": 3,
        "mlp_dim": 16,
        "cem_iterations": 2,
        "n_gaussian_samples": 16,
        "n_pi_samples": 3,
        "n_elites": 4,
    }
    return TdMpcConfig(**{**fields, **changes})


def small_gaussian_actor(**changes: Any) -> GaussianActorConfig:
    fields: dict[str, Any] = {
        "input_features": INPUTS,
        "output_features": ACTION,
        "image_encoder_hidden_dim": 4,
        "image_embedding_pooling_dim": 2,
        "latent_dim": 6,
        "actor_network_kwargs": {"hidden_dims": [10, 8]},
        "discrete_critic_network_kwargs": {"hidden_dims": [8]},
    }
    return GaussianActorConfig(**{**fields, **changes})


def make_parts(config: CheckpointConfig) -> LoadedCheckpoint:
    plugin = family(config.type)
    assert plugin is not None
    network = _drawn_once(plugin, config)
    stats = {}
    for key, feature in {**config.input_features, **config.output_features}.items():
        shape = (3, 1, 1) if feature.kind is FeatureKind.VISUAL else feature.shape
        some = torch.linspace(0.1, 0.9, int(np.prod(shape))).reshape(shape)
        stats[key] = {"mean": some, "std": some + 0.5, "min": -some, "max": some + 1}
    pre, post = default_pipelines(config, stats, stats)
    return LoadedCheckpoint(config, network, plugin.prefix, pre, post)


class Kept:
    """Networks that were drawn and checkpoints that were written, by the config they are of.

    Whoever replaces parts of networks replaces this by one of their own.
    """

    def __init__(self) -> None:
        self.drawn: dict[str, tuple[Network, torch.Tensor]] = {}
        self.written = tempfile.TemporaryDirectory(prefix="small-policies-")


kept = Kept()


def _drawn_once(plugin: CheckpointPlugin, config: CheckpointConfig) -> Network:
    """Return a network of one's own: drawing a backbone's weights takes longer than most tests."""
    described, drawn = repr(config), kept.drawn
    if described not in drawn:
        while len(drawn) >= 4:  # of 45 MB each
            del drawn[next(iter(drawn))]
        torch.manual_seed(0)
        drawn[described] = instantiate_network(plugin, config), torch.get_rng_state()
    network, generator = drawn[described]
    torch.set_rng_state(generator)  # as if it had been drawn now
    return copy.deepcopy(network)


def make_policy(config: CheckpointConfig) -> ChunkPolicy:
    return ChunkPolicy(make_parts(config), "cpu")


def write_small(config: CheckpointConfig, folder: Path) -> Path:
    """Write a checkpoint to be edited: a copy of one that is written once."""
    once = Path(kept.written.name, sha256(repr(config).encode()).hexdigest())
    if not once.exists():
        write_checkpoint(make_parts(config), once)
    shutil.copytree(once, folder)
    return folder


def episode(index: int, task_id: int = 0) -> EpisodeSpec:
    return EpisodeSpec(Task("fake", task_id, f"task-{task_id}", "do it", 50, 10), index, 1000)


def observe(spec: EpisodeSpec, step: int, n_obs_steps: int) -> dict[str, np.ndarray]:
    """Return what the episode's world looks like at ``step``, [n_obs_steps, ...] for each key."""
    seen: dict[str, list[np.ndarray]] = {STATE: [], IMAGE: []}
    for back in reversed(range(n_obs_steps)):
        rng = np.random.default_rng([spec.task.task_id, spec.index, max(0, step - back)])
        seen[STATE].append(rng.normal(size=4))
        seen[IMAGE].append(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    return {key: np.stack(values) for key, values in seen.items()}


def batch_of(policy: ChunkPolicy, queries: list[Query]) -> Batch:
    rows = [observe(query.spec, query.step, policy.spec.n_obs_steps) for query in queries]
    return Batch(queries, {key: np.stack([row[key] for row in rows]) for key in policy.spec.inputs})


def fresh_queries(policy: ChunkPolicy, specs: list[EpisodeSpec], step: int = 0) -> list[Query]:
    return [Query(spec, step, policy.new_episode(spec)) for spec in specs]


OFFERED = Interface(
    name="fake",
    features={
        STATE: Feature(FeatureKind.STATE, (4,), "float32"),
        IMAGE: Feature(FeatureKind.VISUAL, (64, 64, 3), "uint8"),
    },
    action=ActionSpec(3, -1.0, 1.0),
    fps=10,
)
"""A benchmark's promises without its worlds."""


def without(key: str, interface: Interface = OFFERED) -> Interface:
    return replace(interface, features={k: v for k, v in interface.features.items() if k != key})


def offering(
    key: str, kind: FeatureKind, shape: tuple[int, ...], interface: Interface = OFFERED
) -> Interface:
    feature = Feature(kind, shape, "uint8" if kind is FeatureKind.VISUAL else "float32")
    return replace(interface, features={**interface.features, key: feature})
