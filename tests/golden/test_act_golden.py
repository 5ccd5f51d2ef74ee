"""ACT against outputs that LeRobot computed."""

from __future__ import annotations

import pytest
import torch
from recipes import assert_close, fill_weights, load_case

from proctor.policies.act.config import ActConfig
from proctor.policies.act.network import Act, TemporalEnsemble, image_positions
from proctor.policies.lerobot.config.config import decode_config

FORWARD = 1e-5
LOSS = 1e-6


@pytest.fixture(scope="module")
def case():
    raw, inputs, expected = load_case("act_img")
    network = Act(decode_config(raw, ActConfig, "golden"))
    fill_weights(network, "model.")
    return network.eval(), inputs, expected


def test_the_backbone_matches(case):
    network, inputs, expected = case
    with torch.no_grad():
        found = network.backbone(inputs["observation.images.top"])
    assert_close("feature_map", found, expected["feature_map"], FORWARD)


def test_the_position_tables_match(case):
    network, _, expected = case
    _, width, h, w = expected["cam_pos_embed"].shape
    found = image_positions(torch.zeros(1, width, h, w)).T.reshape(1, width, h, w)
    assert_close("cam_pos_embed", found, expected["cam_pos_embed"], FORWARD)
    table = network.vae_encoder_pos_enc
    assert_close("vae_encoder_pos_enc", table, expected["vae_encoder_pos_enc"], FORWARD)


def test_the_chunk_matches_in_rollouts(case):
    network, inputs, expected = case
    with torch.no_grad():
        found = network.chunk(inputs, {})
    assert_close("eval_actions", found, expected["eval_actions"], FORWARD)
    first = found[:, : network.config.n_action_steps]
    assert_close("select_action_first4", first, expected["select_action_first4"], FORWARD)


def test_the_latent_matches_in_training(case):
    network, inputs, expected = case
    with torch.no_grad():
        mean, log_variance = network.train().encode_actions(inputs)
        actions = network.decode(inputs, mean)
    assert_close("mu", mean, expected["mu"], FORWARD)
    assert_close("log_sigma_x2", log_variance, expected["log_sigma_x2"], FORWARD)
    assert_close("train_actions", actions, expected["train_actions_zero_eps"], FORWARD)


def test_the_losses_match(case):
    network, inputs, expected = case
    noise = torch.zeros(2, network.config.latent_dim)
    total, parts = network.train().loss(inputs, {"latent": noise})
    for name, found, key in (
        ("loss", total, "loss_zero_eps"),
        ("l1", parts["l1_loss"], "l1_loss"),
        ("kl", parts["kld_loss"], "kld_loss"),
    ):
        difference = abs(found.item() / expected[key].item() - 1)
        print(f"{name}: relative difference {difference:.1e}")
        assert difference <= LOSS


def test_the_camera_order_does_not_change_the_chunk(case):
    network, inputs, expected = case
    swapped = dict(inputs)
    a, b = network.config.cameras
    swapped[a], swapped[b] = inputs[b], inputs[a]
    with torch.no_grad():
        found = network.eval().chunk(swapped, {})
    assert_close("swapped cameras", found, expected["eval_actions"], FORWARD)


def test_temporal_ensembling_matches():
    _, inputs, expected = load_case("act_temporal_ensemble")
    chunks = inputs["chunks"]  # [steps, episodes, T, A]
    for episode in range(chunks.shape[1]):
        ensemble = TemporalEnsemble(coeff=0.01, chunk_size=chunks.shape[2])
        found = torch.stack([ensemble.update(chunk) for chunk in chunks[:, episode]])
        assert_close("actions", found, expected["actions"][:, episode], FORWARD)
