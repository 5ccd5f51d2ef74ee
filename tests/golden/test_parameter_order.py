"""The order of parameters, by which alone LeRobot's optimiser states know them."""

from __future__ import annotations

import re

import pytest
from recipes import GOLDEN

from proctor.features import Feature, FeatureKind
from proctor.policies.act.config import ActConfig
from proctor.policies.act.network import Act
from proctor.policies.diffusion.config import DiffusionConfig
from proctor.policies.diffusion.network import Diffusion

ACTION = {"action": Feature(FeatureKind.ACTION, (3,), "float32")}
INPUTS = {
    "observation.state": Feature(FeatureKind.STATE, (4,), "float32"),
    "observation.images.top": Feature(FeatureKind.VISUAL, (96, 96, 3), "uint8"),
}


def stored_names(section: str) -> list[str]:
    text = (GOLDEN / "keys_act_diff.txt").read_text()
    part = re.split(r"^#### ", text, flags=re.M)[1:]
    found = next(p for p in part if p.startswith(section))
    return [line.split(" ")[0] for line in found.splitlines()[1:] if line]


@pytest.mark.parametrize("kind", ["act", "diff"])
def test_tensors_come_in_the_order_of_lerobots_checkpoints(kind):
    if kind == "act":
        layers = {"n_encoder_layers": 1, "n_vae_encoder_layers": 1}
        sizes = {"dim_model": 64, "dim_feedforward": 128, "chunk_size": 10, "n_action_steps": 10}
        config = ActConfig(input_features=INPUTS, output_features=ACTION, **layers, **sizes)
        network, prefix = Act(config), "model."
    else:
        config = DiffusionConfig(
            input_features=INPUTS,
            output_features=ACTION,
            down_dims=[32, 64, 128],
            use_group_norm=True,
            use_separate_rgb_encoder_per_camera=False,
        )
        network, prefix = Diffusion(config), "diffusion."
    assert [prefix + name for name in network.state_dict()] == stored_names(kind)


def test_act_trains_its_backbone_in_a_group_of_its_own_at_its_own_rate():
    config = ActConfig(input_features=INPUTS, output_features=ACTION, optimizer_lr_backbone=3e-6)
    network = Act(config)
    others, backbone = network.parameter_groups()
    names = {id(p): name for name, p in network.named_parameters()}
    assert {names[id(p)].split(".")[0] for p in backbone["params"]} == {"backbone"}
    assert len(others["params"]) + len(backbone["params"]) == len(names)
    assert backbone["lr"] == 3e-6
    assert "lr" not in others


def test_act_without_cameras_has_an_empty_group_as_lerobot_has():
    world = {"observation.environment_state": Feature(FeatureKind.ENV, (5,), "float32")}
    network = Act(ActConfig(input_features=world, output_features=ACTION))
    assert network.parameter_groups()[1]["params"] == []
