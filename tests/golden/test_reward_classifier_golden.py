"""The reward classifier against outputs that LeRobot computed."""

from __future__ import annotations

import json

import pytest
import torch
from gaussian_actor_cases import fill_parameters, write_tiny_resnet10
from recipes import GOLDEN, assert_close, load_case

from proctor.policies.lerobot.config.config import decode_config
from proctor.policies.reward_classifier.config import RewardClassifierConfig
from proctor.policies.reward_classifier.network import RewardClassifier

FORWARD = 1e-5
NOTES = json.loads((GOLDEN / "reward_classifier" / "notes.json").read_text())


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    raw, inputs, expected = load_case("reward_classifier")
    raw["model_name"] = write_tiny_resnet10(tmp_path_factory.mktemp("encoder") / "r10_tiny")
    network = RewardClassifier(decode_config(raw, RewardClassifierConfig, "golden"))
    fill_parameters(network)
    return network.eval(), inputs, expected


def test_every_stage_matches(case):
    network, inputs, expected = case
    with torch.no_grad():
        for name in ("front", "wrist"):
            stages = network.encoders[f"observation_images_{name}"]
            features = stages[0](inputs[f"observation.images.{name}"])
            assert_close("encoder", features, expected[f"encoder.{name}"], FORWARD)
            spatial = stages[1](features)
            assert_close("spatial", spatial, expected[f"spatial.{name}"], FORWARD)
        assert_close("hidden", network.hidden_states(inputs), expected["hidden_states"], FORWARD)
        assert_close("logits", network.logits(inputs), expected["logits"], FORWARD)
        found = network.probabilities(inputs)
        assert_close("probabilities", found, expected["probabilities"], FORWARD)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.6])
def test_the_threshold_decides_the_reward(case, threshold):
    network, inputs, expected = case
    found = network.predict_reward(inputs, threshold)
    assert torch.equal(found, expected[f"predict_reward_threshold_{threshold}"])


def test_the_loss_and_its_gradients_match(case):
    network, inputs, expected = case
    network.zero_grad()
    loss, parts = network.loss(inputs | {"next.reward": inputs["next.reward"][:, None]}, {})
    loss.backward()
    assert_close("loss", loss, expected["loss"], FORWARD)
    assert_close("accuracy", parts["accuracy"], expected["accuracy"], FORWARD)
    trained = {name for name, p in network.named_parameters() if p.grad is not None}
    assert trained == set(NOTES["params_with_gradient"])
    for name, parameter in network.named_parameters():
        if name in trained:
            assert_close(name, parameter.grad, expected[f"grad.{name}"], FORWARD)


def test_the_projections_have_gradients_if_they_are_asked_for(case):
    network, inputs, _ = case
    network.zero_grad()
    network.config.train_projections = True
    network.loss(inputs | {"next.reward": inputs["next.reward"][:, None]}, {})[0].backward()
    network.config.train_projections = False
    trained = {name for name, p in network.named_parameters() if p.grad is not None}
    more = set(NOTES["requires_grad_but_no_gradient"])
    assert trained == set(NOTES["params_with_gradient"]) | more


def test_a_file_keeps_the_names_that_lerobot_keeps(case):
    network, _, _ = case
    state = network.state_dict()
    assert sorted(key for key in state if key not in network.tied) == NOTES["written_file_keys"]
    assert len(network.tied) == NOTES["alias_metadata_entries"]
