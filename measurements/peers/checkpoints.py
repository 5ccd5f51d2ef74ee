"""Checkpoints with random weights that LeRobot and Proctor both load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from measurements.peers.cases import LIBERO_CAMERAS, LIBERO_SIZE
from proctor.features import Feature, FeatureKind
from proctor.policies.act import config as act
from proctor.policies.act.config import ActConfig
from proctor.policies.diffusion import config as diffusion
from proctor.policies.diffusion.config import DiffusionConfig
from proctor.policies.lerobot.checkpoint.checkpoint import instantiate_network
from proctor.policies.lerobot.checkpoint.saving import write_checkpoint
from proctor.policies.lerobot.config.config import CheckpointConfig
from proctor.policies.lerobot.processors.pipelines import default_pipelines
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint

LEAST_LEROBOT = "0.4.4"
"""The oldest LeRobot that loads them; newer ones do too."""

PICTURE = {"mean": 0.5, "std": 0.25, "min": 0.0, "max": 1.0}


@dataclass(frozen=True)
class World:
    """Observations and actions of a policy in one benchmark, and their usual values."""

    size: int
    state: int
    action: int
    usual: dict[str, float]
    cameras: tuple[str, ...] = ("observation.image",)

    @property
    def inputs(self) -> dict[str, Feature]:
        """The cameras and the state."""
        picture = Feature(FeatureKind.VISUAL, (self.size, self.size, 3), "uint8")
        state = Feature(FeatureKind.STATE, (self.state,), "float32")
        return {**dict.fromkeys(self.cameras, picture), "observation.state": state}

    @property
    def outputs(self) -> dict[str, Feature]:
        """The action."""
        return {"action": Feature(FeatureKind.ACTION, (self.action,), "float32")}


METAWORLD = World(480, 4, 4, {"mean": 0.0, "std": 0.5, "min": -1.0, "max": 1.0})
LIBERO = World(LIBERO_SIZE, 8, 7, METAWORLD.usual, LIBERO_CAMERAS)
PUSHT = World(96, 2, 2, {"mean": 256.0, "std": 100.0, "min": 0.0, "max": 512.0})
WORLDS = {"metaworld": METAWORLD, "pusht": PUSHT, "libero": LIBERO}


def write_checkpoints(folder: Path) -> dict[str, Path]:
    """Write an ACT for each benchmark and a Diffusion Policy for PushT; return their paths.

    ACT has LeRobot's sizes except for its chunk of 20 (LeRobot: 100). The Diffusion Policy has half
    the channels of LeRobot's and 5 DDIM steps instead of 100 DDPM steps, to finish soon on a CPU.
    """
    made = {f"act-{name}": write_act(folder, name) for name in WORLDS}
    diffusion_config = DiffusionConfig(
        **_shared(PUSHT),
        horizon=16,
        n_action_steps=8,
        crop_shape=[84, 84],
        down_dims=[256, 512, 1024],
        noise_scheduler_type="DDIM",
        num_inference_steps=5,
    )
    made["diffusion-pusht"] = _write(diffusion_config, PUSHT, folder / "diffusion-pusht")
    return made


def write_act(folder: Path, benchmark: str) -> Path:
    """Write the ACT of one benchmark; return its path."""
    world = WORLDS[benchmark]
    config = ActConfig(**_shared(world), chunk_size=20, n_action_steps=20)
    return _write(config, world, folder / f"act-{benchmark}")


def _shared(world: World) -> dict[str, Any]:
    return {
        "input_features": world.inputs,
        "output_features": world.outputs,
        "pretrained_backbone_weights": None,
        "device": "cpu",
    }


def _write(config: CheckpointConfig, world: World, folder: Path) -> Path:
    plugin = act.PLUGIN if config.type == "act" else diffusion.PLUGIN
    torch.manual_seed(0)
    network = instantiate_network(plugin, config).eval()
    stats = {}
    for key, feature in {**world.inputs, **world.outputs}.items():
        is_picture = feature.kind is FeatureKind.VISUAL
        shape = (3, 1, 1) if is_picture else feature.shape
        numbers = PICTURE if is_picture else world.usual
        stats[key] = {name: torch.full(shape, value) for name, value in numbers.items()}
    pre, post = default_pipelines(config, stats, stats)
    write_checkpoint(
        LoadedCheckpoint(config, network, plugin.prefix, pre, post), folder, LEAST_LEROBOT
    )
    return folder
