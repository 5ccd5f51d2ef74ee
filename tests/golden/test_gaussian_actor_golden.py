"""The Gaussian actor against outputs that LeRobot computed."""

from __future__ import annotations

import pytest
import torch
from gaussian_actor_cases import CASES, load_actor, observation
from recipes import assert_close

from proctor.policies.gaussian_actor.network import Moments, log_prob, sample

FORWARD = 1e-5
GRIPPER = [case for case in CASES if case != "sac_state"]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("encoders")
    with torch.no_grad():
        yield {case: load_actor(case, scratch) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_the_encodings_match(cases, case):
    network, inputs, expected = cases[case]
    seen = observation(inputs)
    features = network.encoder_critic.image_features(seen)
    for camera, found in features.items():
        assert_close(camera, found, expected[f"fwd.image_features.{camera}"], FORWARD)
    for name, encoder in (("actor", network.encoder_actor), ("critic", network.encoder_critic)):
        assert_close(name, encoder(seen), expected[f"fwd.{name}_encoding"], FORWARD)
        assert torch.equal(encoder(seen), encoder(seen, features))


@pytest.mark.parametrize("case", CASES)
def test_the_gaussian_and_its_samples_match(cases, case):
    network, inputs, expected = cases[case]
    moments = network.actor(observation(inputs))
    assert_close("mean", moments.mean, expected["fwd.mean"], FORWARD)
    assert_close("variance", moments.variance, expected["fwd.std"], FORWARD)
    action, log_probability = sample(moments, inputs["noise0"])
    assert_close("action", action, expected["fwd.action"], FORWARD)
    assert_close("log_prob", log_probability, expected["fwd.log_prob"], FORWARD)


@pytest.mark.parametrize("case", CASES)
def test_the_sampled_action_ends_with_the_gripper_command(cases, case):
    network, inputs, expected = cases[case]
    found = network.chunk(observation(inputs), {"noise": inputs["noise1"]})
    assert_close("action", found[:, 0], expected["fwd.select_action"], FORWARD)


@pytest.mark.parametrize("case", GRIPPER)
def test_the_gripper_critic_matches(cases, case):
    network, inputs, expected = cases[case]
    found = network.discrete_critic(observation(inputs))
    assert_close("Q", found, expected["fwd.discrete_q"], FORWARD)


@pytest.mark.parametrize("case", CASES)
def test_the_deterministic_action_is_tanh_of_the_mean(cases, case):
    network, inputs, expected = cases[case]
    found = network.chunk(observation(inputs), {})[:, 0]
    n = expected["fwd.mean"].shape[1]
    assert_close("action", found[:, :n], expected["fwd.mean"].tanh(), FORWARD)


@pytest.mark.parametrize("case", CASES)
def test_a_standard_deviation_of_s_would_be_seen(cases, case):
    network, inputs, expected = cases[case]
    moments = network.actor(observation(inputs))
    wrong, _ = sample(Moments(moments.mean, moments.variance**2), inputs["noise0"])
    assert (wrong - expected["fwd.action"]).abs().max() > 0.01


@pytest.mark.parametrize("case", CASES)
def test_the_log_probability_of_given_actions_is_that_of_the_samples(cases, case):
    network, inputs, expected = cases[case]
    moments = network.actor(observation(inputs))
    assert_close(
        "log_prob", log_prob(moments, expected["fwd.action"]), expected["fwd.log_prob"], 1e-4
    )
