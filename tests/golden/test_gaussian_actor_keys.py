"""Every tensor of LeRobot's Gaussian actors and ResNet10 has a place, and none is left over."""

from __future__ import annotations

import re

import pytest
import torch
from recipes import GOLDEN

from proctor.features import Feature, FeatureKind
from proctor.policies.blocks.encoder_sizes import resnet10_sizes
from proctor.policies.blocks.resnet10 import ResNet10
from proctor.policies.gaussian_actor.config import GaussianActorConfig
from proctor.policies.gaussian_actor.network import GaussianActorNetwork

INPUTS = {
    "observation.images.front": Feature(FeatureKind.VISUAL, (128, 128, 3), "uint8"),
    "observation.images.wrist": Feature(FeatureKind.VISUAL, (128, 128, 3), "uint8"),
    "observation.state": Feature(FeatureKind.STATE, (18,), "float32"),
}
ACTION = {"action": Feature(FeatureKind.ACTION, (3,), "float32")}
VARIANTS = [(shared, n) for shared in (True, False) for n in (None, 3)]


def listed(shared: bool, n: int | None) -> dict[str, list[str]]:
    """Return the sections of a variant: the full state dict, and the files LeRobot writes."""
    parts = re.split(
        r"^# (?=shared_encoder)", (GOLDEN / "keys_gaussian_actor.txt").read_text(), flags=re.M
    )
    start = f"shared_encoder={shared} num_discrete_actions={n}:"
    part = next(part for part in parts if part.startswith(start))
    sections = re.split(r"^## ", part, flags=re.M)[1:]
    return {
        lines[0]: [line for line in lines[1:] if line and not line.startswith("#")]
        for lines in (section.splitlines() for section in sections)
    }


def built(shared: bool, n: int | None) -> GaussianActorNetwork:
    with torch.device("meta"):
        return GaussianActorNetwork(
            GaussianActorConfig(
                input_features=INPUTS,
                output_features=ACTION,
                shared_encoder=shared,
                num_discrete_actions=n,
            )
        )


def layout(state) -> list[str]:
    return [f"{name} {list(value.shape)}" for name, value in state.items()]


@pytest.mark.parametrize(("shared", "n"), VARIANTS)
def test_at_true_size_all_tensors_are_lerobots_in_its_order(shared, n):
    assert (
        layout(built(shared, n).state_dict()) == listed(shared, n)["full state_dict (with aliases)"]
    )


@pytest.mark.parametrize(("shared", "n"), VARIANTS)
def test_a_file_keeps_the_names_that_lerobot_keeps(shared, n):
    network = built(shared, n)
    kept = {k: v for k, v in network.state_dict().items() if k not in network.tied}
    wanted = listed(shared, n)["written pretrained_model/model.safetensors"]
    assert sorted(layout(kept)) == sorted(wanted)


def test_resnet10_has_the_published_tensors_in_their_order():
    with torch.device("meta"):
        encoder = ResNet10(resnet10_sizes("lerobot/resnet10"))
    lines = (GOLDEN / "keys_resnet10.txt").read_text().splitlines()
    assert layout(encoder.state_dict()) == [line for line in lines if not line.startswith("#")]
    assert sum(p.numel() for p in encoder.parameters()) == 4_905_792
