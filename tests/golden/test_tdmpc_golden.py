"""TD-MPC against outputs that LeRobot computed."""

from __future__ import annotations

import pytest
from recipes import assert_close, fill_weights, load_case

from proctor.policies.lerobot.config.config import decode_config
from proctor.policies.tdmpc.config import TdMpcConfig
from proctor.policies.tdmpc.network import TdMpc

FORWARD = 1e-5


@pytest.fixture(scope="module")
def case():
    raw, inputs, expected = load_case("tdmpc")
    network = TdMpc(decode_config(raw, TdMpcConfig, "golden"))
    fill_weights(network, "")
    return network.eval().requires_grad_(False), inputs, expected


def first(inputs):
    return {key: inputs[key][:, 0] for key in ("observation.state", "observation.image")}


def test_the_model_of_the_world_matches(case):
    network, inputs, expected = case
    world, action = network.model, inputs["action"][:, 0]
    z = world.encode(first(inputs))
    after, reward = world.step(z, action)
    found = {
        "z": z,
        "z_next": after,
        "reward": reward,
        "pi": world.act(z),
        "Qs": world.values(z, action),
        "V": world.value(z),
    }
    for name, value in found.items():
        assert_close(name, value, expected[name], FORWARD)


def test_the_action_without_a_search_matches_and_is_played_twice(case):
    network, inputs, expected = case
    found = network.chunk(first(inputs), {})
    assert found.shape == (2, 2, 4)
    for step in (0, 1):
        assert_close("action", found[:, step], expected["select_action"], FORWARD)


def test_the_loss_and_its_parts_match(case):
    network, inputs, expected = case
    loss, parts = network.loss(inputs, {})
    assert_close("loss", loss, expected["loss"], FORWARD)
    for name, value in parts.items():
        assert_close(name, value, expected[f"loss.{name}"], FORWARD)
