"""SAC's losses and updates against numbers that LeRobot's own learner computed."""

from __future__ import annotations

import msgspec
import pytest
import torch
from gaussian_actor_cases import CASES, load_actor
from recipes import load_case, recipe_weight

from proctor.config.sections.online import SacSettings
from proctor.rl.algorithms.sac import Sac
from proctor.rl.algorithms.sac_draws import SacDraws
from proctor.rl.transitions import TransitionBatch

UPDATES = 3
NOISE_BEFORE_UPDATES = 5
"""Noise tensors that the goldens use for single forwards and losses."""


@pytest.fixture(autouse=True)
def float64():
    """Compute in float64: Adam's first step takes the sign even of a gradient that is rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def load_learner(name, scratch, **options):
    """Return a golden's learner with the recipe's weights, its inputs and expected outputs."""
    network, inputs, expected = load_actor(name, scratch)
    settings = msgspec.convert(load_case(name)[0]["algorithm"], SacSettings)
    learner = Sac(network.double(), settings, torch.Generator(), **options)
    for key, tensor in learner.algorithm_tensors():
        if key != "log_alpha":
            tensor.copy_(recipe_weight(key, tensor.shape))
    return learner, {key: value.double() for key, value in inputs.items()}, expected


def batch_of(inputs, index):
    def part(name):
        return below(f"batch{index}.{name}.", inputs)

    done = inputs[f"batch{index}.done"]
    return TransitionBatch(
        observation=part("state"),
        action=inputs[f"batch{index}.action"],
        reward=inputs[f"batch{index}.reward"],
        next_observation=part("next_state"),
        done=done,
        truncated=torch.zeros_like(done),
        complementary_info=part("complementary_info"),
    )


def draws_of(inputs, update, utd):
    first = NOISE_BEFORE_UPDATES + update * (utd + 2)
    noise = [inputs[f"noise{first + i}"] for i in range(utd + 2)]
    return SacDraws(torch.stack(noise[:utd]), torch.stack(noise[utd:])[None])


def run_updates(learner, inputs):
    """Make the golden's updates; return the metrics of each."""
    utd = learner.settings.utd_ratio
    return [
        learner.update_with(
            [batch_of(inputs, u * utd + i) for i in range(utd)], draws_of(inputs, u, utd)
        )
        for u in range(UPDATES)
    ]


def below(prefix, tensors):
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


@pytest.mark.parametrize("name", CASES)
def test_three_updates_give_lerobots_losses_norms_and_parameters(name, tmp_path):
    learner, inputs, expected = load_learner(name, tmp_path)
    for u, metrics in enumerate(run_updates(learner, inputs)):
        wanted = below(f"update{u}.", expected)
        assert set(metrics) == set(wanted)
        for key, value in metrics.items():
            tolerance = 1e-4 if key.endswith("grad_norm") else 1e-5
            assert value == pytest.approx(wanted[key].item(), rel=tolerance, abs=1e-5), (u, key)
    found = dict(learner.algorithm_tensors()) | dict(learner.network.named_parameters())
    for key, value in below("after.", expected).items():
        torch.testing.assert_close(found[key].detach().float(), value, rtol=0, atol=2e-5, msg=key)


@pytest.mark.parametrize("name", ["sac_img_discrete", "sac_resnet10"])
def test_the_fix_includes_the_gripper_penalty_that_lerobot_leaves_out(name, tmp_path):
    learner, inputs, expected = load_learner(name, tmp_path, fix_penalty=True)
    found = run_updates(learner, inputs)[0]["loss_discrete_critic"]
    assert found != pytest.approx(expected["update0.loss_discrete_critic"].item(), rel=1e-4)
