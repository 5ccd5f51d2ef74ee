"""VQ-BeT and TD-MPC: what they draw and recall is an episode's own, and what cannot be is refused.

That they compute what LeRobot does is in tests/golden.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_policies import (
    ACTION,
    INPUTS,
    batch_of,
    episode,
    fresh_queries,
    make_parts,
    make_policy,
    small_tdmpc,
    small_vqbet,
)
from tests.refusals import refuses

from proctor.errors import UsageError
from proctor.features import Feature, FeatureKind, NormMode
from proctor.policies.base import Query
from proctor.policies.runtime.chunk_policy import ChunkPolicy
from proctor.policies.runtime.network import draw_noise, gumbel
from proctor.policies.tdmpc.network import MEAN, TdMpc
from proctor.policies.vqbet.codes import VqVae

FIRST_CODES = "vq_layer.layers.0._codebook.embed"
CONFIGS = {"tdmpc": small_tdmpc(), "vqbet": small_vqbet()}


@pytest.fixture(scope="module")
def policies():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    made = {name: make_policy(config) for name, config in CONFIGS.items()}
    with torch.no_grad():  # a world that promises nothing is no place to search in
        for value in made["tdmpc"].network.model.parameters():
            value.add_(0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1)))
    yield made
    torch.set_num_threads(before)


def roll_out(policy: ChunkPolicy, size: int, n_queries: int) -> np.ndarray:
    """Play eight episodes in batches of ``size``, some queries each."""
    specs = [episode(index) for index in range(8)]
    states = {spec.index: policy.new_episode(spec) for spec in specs}
    every, played = policy.spec.n_action_steps, {spec.index: [] for spec in specs}
    for first in range(0, 8, size):
        for number in range(n_queries):
            group = specs[first : first + size]
            queries = [Query(spec, number * every, states[spec.index]) for spec in group]
            for spec, chunk in zip(group, policy.act(batch_of(policy, queries)), strict=True):
                played[spec.index].append(chunk)
    return np.stack([np.concatenate(chunks) for chunks in played.values()])


@pytest.mark.parametrize(("name", "n_queries"), [("tdmpc", 3), ("vqbet", 1)])
def test_batches_of_1_3_and_8_give_the_same_bits(policies, name, n_queries):
    alone = roll_out(policies[name], 1, n_queries)
    assert len(np.unique(alone[:, 0], axis=0)) == 8
    for size in (3, 8):
        np.testing.assert_array_equal(roll_out(policies[name], size, n_queries), alone)


def test_a_plan_begins_where_the_last_one_of_its_episode_ended(policies):
    policy = policies["tdmpc"]
    first, second = fresh_queries(policy, [episode(0), episode(1)])
    policy.act(batch_of(policy, [first, second]))
    assert first.state[MEAN].shape == (3, 3)
    assert not np.array_equal(first.state[MEAN], second.state[MEAN])
    went_on = policy.act(batch_of(policy, [Query(first.spec, 2, first.state)]))
    afresh = policy.act(batch_of(policy, fresh_queries(policy, [first.spec], step=2)))
    assert not np.array_equal(went_on, afresh)


def test_a_search_finds_better_plans_than_a_thousand_tries(monkeypatch):
    network = make_parts(small_tdmpc(cem_iterations=8, n_gaussian_samples=128)).network
    best = torch.tensor([0.3, -0.6, 0.9])

    def estimate_value(z, plans, *_):
        return -((plans - best) ** 2).sum((1, 3))

    monkeypatch.setattr(network, "estimate_value", estimate_value)
    drawn = draw_noise(network.draws, torch.Generator().manual_seed(0), 2)
    plan, mean = network.plan(torch.zeros(2, 6), torch.zeros(2, 3, 3), drawn)
    tries = 2 * torch.rand(2, 3, 1000, 3, generator=torch.Generator().manual_seed(1)) - 1
    for found in (plan, mean):
        assert (estimate_value(None, found[:, :, None]) > estimate_value(None, tries).max()).all()


def test_actions_of_a_plan_are_played_once_each_or_the_first_repeatedly():
    steps = {"n_action_repeats": 1, "n_action_steps": 2}
    for changes, n in (({"n_action_repeats": 3}, 3), (steps, 2)):
        policy = make_policy(small_tdmpc(**changes))
        chunk = policy.act(batch_of(policy, fresh_queries(policy, [episode(0)])))[0]
        assert len(chunk) == policy.spec.n_action_steps == n
        assert (chunk[0] == chunk[-1]).all() == ("n_action_steps" not in changes)


def test_codes_are_drawn_as_often_as_they_are_likely():
    logits = torch.tensor([0.0, 1.0, 2.0])
    uniform = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0))
    chosen = (logits + gumbel(uniform)).argmax(1)
    shares = torch.bincount(chosen, minlength=3) / len(chosen)
    torch.testing.assert_close(shares, logits.softmax(0), atol=0.01, rtol=0)


def test_codes_follow_what_they_stand_for_in_training_only():
    torch.manual_seed(0)
    codes = VqVae(small_vqbet())
    actions = torch.randn(4, 3, 3).repeat(10, 1, 1) + 0.02 * torch.randn(40, 3, 3)
    before = {name: value.clone() for name, value in codes.state_dict().items()}
    codes.eval().loss(actions)
    assert all(torch.equal(value, before[name]) for name, value in codes.state_dict().items())
    losses = []
    optimizer = torch.optim.Adam(codes.parameters(), 1e-2)
    for _ in range(60):
        loss, parts = codes.train().loss(actions)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert parts["n_different_codes"] >= 2
    assert not torch.equal(codes.vq_layer.codebooks[0].embed, before[FIRST_CODES])


def test_the_first_phase_ends_after_its_steps_and_leaves_the_codes_alone():
    network = make_parts(small_vqbet(n_vqvae_training_steps=2)).network.train()
    batch = {"action": torch.randn(2, 6, 3)}
    seen = []
    for step in (1, 2):
        loss, parts = network.loss(batch, {})  # of actions alone
        loss.backward()
        assert network.action_token.grad is None
        network.after_update(step)
        seen.append(bool(network.codes.discretized))
    assert seen == [False, True]
    assert "recon_l1_error" in parts
    with pytest.raises(KeyError, match="observation"):  # now it has to look
        network.loss(batch, {})


def test_the_slow_copy_follows_the_weights():
    network = make_parts(small_tdmpc(target_model_momentum=0.9)).network
    assert isinstance(network, TdMpc)
    slow = network.model_target.state_dict()
    with torch.no_grad():
        for value in network.model.parameters():
            value.add_(1.0)
    before = {name: value.clone() for name, value in slow.items()}
    network.after_update(1)
    for name, value in network.model_target.state_dict().items():
        torch.testing.assert_close(value, before[name] + 0.1)
    assert not any(value.requires_grad for value in network.model_target.parameters())


WIDE = INPUTS | {"observation.image": Feature(FeatureKind.VISUAL, (64, 80, 3), "uint8")}
TWO = INPUTS | {"observation.images.b": Feature(FeatureKind.VISUAL, (64, 64, 3), "uint8")}


@pytest.mark.parametrize(
    ("config", "code", "named"),
    [
        (small_vqbet(input_features=TWO), "policy.wrong-inputs", "observation.state"),
        (small_vqbet(gpt_n_head=3), "policy.not-divisible", "gpt_n_head"),
        (small_vqbet(gpt_block_size=7), "policy.out-of-range", "gpt_block_size"),
        (small_vqbet(crop_shape=[70, 10]), "policy.crop-too-large", "64x64"),
        (small_vqbet(bet_softmax_temperature=0.0), "policy.out-of-range", "bet_softmax_temp"),
        (small_vqbet(vqvae_n_embed=10**9), "policy.out-of-range", "vqvae_n_embed"),
        (small_tdmpc(input_features=WIDE), "policy.image-size-mismatch", "64x80"),
        (small_tdmpc(input_features=TWO), "policy.too-many-inputs", "observation.images.b"),
        (small_tdmpc(n_action_steps=2), "policy.conflict", "n_action_repeats=1"),
        (small_tdmpc(n_elites=20), "policy.out-of-range", "n_elites"),
        (small_tdmpc(n_obs_steps=2), "policy.one-observation", "n_obs_steps"),
        (small_tdmpc(cem_iterations=1000, n_gaussian_samples=100_000), "policy.out-of-range", ""),
        (
            small_tdmpc(normalization_mapping={"ACTION": NormMode.MEAN_STD}),
            "policy.conflict",
            "MIN_MAX",
        ),
    ],
)
def test_an_invalid_config_is_refused_and_names_the_field(config, code, named):
    with refuses(UsageError, code) as refused:
        replace(config, output_features=ACTION).validate()
    assert named in str(refused.value)
