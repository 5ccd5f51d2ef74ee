"""Diffusion Policy against outputs that LeRobot computed."""

from __future__ import annotations

import pytest
import torch
from recipes import assert_close, fill_weights, load_case

from proctor.policies.diffusion.config import DiffusionConfig
from proctor.policies.diffusion.network import Diffusion
from proctor.policies.lerobot.config.config import decode_config

FORWARD = 1e-5
SAMPLED = 1e-4
LOSS = 1e-6


@pytest.fixture(scope="module", params=["diffusion_env_ddpm", "diffusion_img_gn_ddim"])
def case(request):
    return load_network(request.param)


def load_network(name):
    raw, inputs, expected = load_case(name)
    network = Diffusion(decode_config(raw, DiffusionConfig, "golden"))
    fill_weights(network, "diffusion.")
    return network.eval().requires_grad_(False), inputs, expected


def test_the_noise_schedule_matches(case):
    network, inputs, expected = case
    schedule = network.schedule
    assert_close("betas", schedule.betas, expected["betas"], 1e-7)
    assert_close("alphas_cumprod", schedule.alphas_cumprod, expected["alphas_cumprod"], 1e-7)
    assert [step.t for step in schedule.steps] == expected["inference_timesteps"].tolist()
    noisy = schedule.add_noise(inputs["action"], inputs["eps"], inputs["timesteps"])
    assert_close("noisy", noisy, expected["noisy"], FORWARD)


def test_the_condition_matches(case):
    network, inputs, expected = case
    if network.config.cameras:
        assert_close("pos_grid", network.rgb_encoder.pool.pos_grid, expected["pos_grid"], 1e-7)
        return
    assert_close("global_cond", network.condition(inputs), expected["global_cond"], FORWARD)


def test_image_features_match_as_far_as_rounding_lets_them():
    """This golden is ill-conditioned: its sinusoidal weights cancel and GroupNorm amplifies.

    Float32 and float64 of one and the same network differ by 0.1 here, as do float32 kernels of
    one and the same torch (AVX2, AVX-512, no oneDNN), so 1e-5 is out of reach on any machine but
    the one that made it (noise of 1e-7 on the images moves features by 0.17). What can be held: the
    typical error is small, and several times smaller than with any mistake we could make. The exact
    comparison is in tests/parity, on one machine's kernels.
    """
    network, inputs, expected = load_network("diffusion_img_gn_ddim")
    right = typical_error(network, inputs, expected)
    for mistake in (wrong_groups, wrong_crop):
        network, inputs, expected = load_network("diffusion_img_gn_ddim")
        mistake(network)
        assert typical_error(network, inputs, expected) > 4 * right
    print(f"global_cond: median |difference| {right:.1e}")
    assert right < 0.01


def typical_error(network, inputs, expected) -> float:
    features = network.condition(inputs).reshape(4, -1)[:, 2:]
    return (features - expected["global_cond"].reshape(4, -1)[:, 2:]).abs().median().item()


def wrong_groups(network) -> None:
    for module in network.rgb_encoder.modules():
        if isinstance(module, torch.nn.GroupNorm):
            module.num_groups = 8


def wrong_crop(network) -> None:
    network.rgb_encoder.crop = None


def test_the_unet_matches(case):
    network, inputs, expected = case
    found = network.unet(inputs["noise"], inputs["timesteps"], expected["global_cond"])
    assert_close("unet_out", found, expected["unet_out"], FORWARD)


def test_sampling_matches(case):
    network, inputs, expected = case
    noise = torch.zeros(2, *network.draws["noise"][1])  # DDPM's own noises are forced to zero
    noise[:, 0] = inputs["noise"]
    whole = expected.get("sample", expected.get("sample_zero_variance_noise"))
    found = network.sample(expected["global_cond"], noise)
    assert_close("sample", found, whole, SAMPLED)
    first = network.config.n_obs_steps - 1
    chunk = found[:, first : first + network.config.n_action_steps]
    assert_close("chunk", chunk, expected["chunk"], SAMPLED)


def test_the_loss_matches(case, monkeypatch):
    network, inputs, expected = case
    monkeypatch.setattr(network, "condition", lambda batch, places: expected["global_cond"])
    time = (inputs["timesteps"] + 0.5) / network.config.num_train_timesteps
    found, _ = network.loss(inputs, {"noise": inputs["eps"], "time": time})
    difference = abs(found.item() / expected["loss_eval_mode"].item() - 1)
    print(f"loss: relative difference {difference:.1e}")
    assert difference <= LOSS
