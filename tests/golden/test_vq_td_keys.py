"""Every tensor of VQ-BeT's and TD-MPC's published layouts has a place, and none is left over."""

from __future__ import annotations

import json
import re

import pytest
from recipes import GOLDEN

from proctor.features import Feature, FeatureKind
from proctor.policies.lerobot.checkpoint.checkpoint import instantiate_network
from proctor.policies.lerobot.checkpoint.weights import SkipWeightInit
from proctor.policies.lerobot.config.config import decode_config
from proctor.policies.lerobot.config.families import family

TRUE = GOLDEN / "keys_vq_td_true.txt"
INPUTS = {
    "observation.state": Feature(FeatureKind.STATE, (4,), "float32"),
    "observation.image": Feature(FeatureKind.VISUAL, (96, 96, 3), "uint8"),
}
ACTION = {"action": Feature(FeatureKind.ACTION, (4,), "float32")}


def section(file, name: str) -> list[str]:
    parts = re.split(r"^#### ", file.read_text(), flags=re.M)[1:]
    found = next(part for part in parts if part.splitlines()[0].split(" 1")[0] == name)
    return found.splitlines()[1:]


def layout(network, prefix: str) -> list[str]:
    return [
        f"{prefix}{name} {list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        for name, value in network.state_dict().items()
    ]


def at_true_size(kind: str):
    plugin = family(kind)
    assert plugin is not None
    with SkipWeightInit():  # weights without memory
        config = plugin.config(input_features=INPUTS, output_features=ACTION)
        return instantiate_network(plugin, config), plugin.prefix


@pytest.mark.parametrize("kind", ["vqbet", "tdmpc"])
def test_at_true_size_all_tensors_are_lerobots_in_its_order(kind):
    network, prefix = at_true_size(kind)
    assert layout(network, prefix) == section(TRUE, kind)


@pytest.mark.parametrize("kind", ["vqbet", "tdmpc"])
def test_the_optimiser_knows_parameters_by_lerobots_numbers(kind):
    network, prefix = at_true_size(kind)
    names = {id(parameter): prefix + name for name, parameter in network.named_parameters()}
    found = [
        f"{number} {names[id(parameter)]}"
        for number, group in enumerate(network.parameter_groups())
        for parameter in group["params"]
    ]
    assert found == section(TRUE, f"order of {kind}")


@pytest.mark.parametrize(("kind", "short"), [("vqbet", "vq"), ("tdmpc", "td")])
def test_the_small_layouts_of_the_fact_sheet_match_too(kind, short):
    plugin = family(kind)
    assert plugin is not None
    raw = json.loads((GOLDEN / kind / "config.json").read_text())
    if kind == "vqbet":
        raw |= {"gpt_n_layer": 1, "spatial_softmax_num_keypoints": 32}
    with SkipWeightInit():  # weights without memory
        network = instantiate_network(plugin, decode_config(raw, plugin.config, "golden"))
    assert layout(network, plugin.prefix) == section(GOLDEN / "keys_vq_td.txt", short)
