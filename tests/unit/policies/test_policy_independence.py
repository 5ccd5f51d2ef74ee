"""A row of a batch depends on its own episode and on nothing else."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_policies import (
    batch_of,
    episode,
    fresh_queries,
    make_policy,
    small_act,
    small_diffusion,
    small_language_act,
)

from proctor.policies.base import Query

CONFIGS = {
    "act": small_act(),
    "language_act": small_language_act(),
    "language_act, not normalised": small_language_act(feature_norm=False, qk_norm=False),
    "diffusion, ddpm": small_diffusion(),
    "diffusion, ddim": small_diffusion(noise_scheduler_type="DDIM", num_inference_steps=5),
}


# Both samplers draw by one rule, and words are rows like others (their own test: batches); the rest
# has its turn in `make test-all`.
def names(*slow: str) -> list[Any]:
    marks = {name: [pytest.mark.slow] for name in slow}
    return [pytest.param(name, marks=marks.get(name, []), id=name) for name in CONFIGS]


NAMES = names("diffusion, ddpm", "language_act")


LONG = pytest.mark.slow
"""Of what another case shows as well, for `make test-all`."""


@pytest.fixture(
    params=[pytest.param(1, marks=LONG), 2],
    ids=["one thread", "two threads"],
)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", names("diffusion, ddpm", "diffusion, ddim"))
def test_batches_of_1_2_and_7_give_the_same_bits(name, threads):
    policy = make_policy(CONFIGS[name])
    specs = [episode(index) for index in range(7)]
    alone = [policy.act(batch_of(policy, fresh_queries(policy, [spec]))) for spec in specs]
    for size in (2, 7):
        together = [
            policy.act(batch_of(policy, fresh_queries(policy, specs[i : i + size])))
            for i in range(0, len(specs), size)
        ]
        np.testing.assert_array_equal(np.concatenate(together), np.concatenate(alone))


@pytest.mark.parametrize("name", NAMES)
def test_a_row_gives_the_same_bits_wherever_it_stands(name):
    """One fixed batch size would not do here: Diffusion's rows differ by position at size 7."""
    policies = [make_policy(replace(CONFIGS[name], pad_to=size)) for size in (None, 7)]
    specs = [episode(index) for index in range(7)]
    forth, back = (
        policy.act(batch_of(policy, fresh_queries(policy, order)))
        for policy, order in zip(policies, (specs, specs[::-1]), strict=True)
    )
    np.testing.assert_array_equal(forth, back[::-1])


def roll_out(policy, specs, order, n_queries=4):
    """Play ``n_queries`` queries of every episode; ``order`` says who is in which batch."""
    states = {spec.key: policy.new_episode(spec) for spec in specs}
    done = {spec.key: 0 for spec in specs}
    played = {spec.key: [] for spec in specs}
    for group in order(specs, n_queries):
        queries = [
            Query(spec, done[spec.key] * policy.spec.n_action_steps, states[spec.key])
            for spec in group
        ]
        for spec, chunk in zip(group, policy.act(batch_of(policy, queries)), strict=True):
            done[spec.key] += 1
            played[spec.key].append(chunk)
    return {key: np.concatenate(chunks) for key, chunks in played.items()}


def one_by_one(specs, n_queries):
    return [[spec] for spec in specs for _ in range(n_queries)]


def all_together(specs, n_queries):
    return [specs] * n_queries


def four_tasks_at_a_time(specs, n_queries):
    """Batches of episodes at different depths, as continuous batching forms them."""
    pending = list(itertools.chain.from_iterable([spec] * n_queries for spec in specs))
    while pending:
        group = []
        for spec in {s.key: s for s in pending}.values():
            if len(group) < 4:
                group.append(spec)
        for spec in group:
            pending.remove(spec)
        yield group


@pytest.mark.parametrize(
    "coeff", [0.01, *(pytest.param(coeff, marks=pytest.mark.slow) for coeff in (0.0, -0.2))]
)
def test_temporal_ensembling_of_8_episodes_in_a_batch_equals_8_separate_runs(coeff):
    policy = make_policy(small_act(temporal_ensemble_coeff=coeff, n_action_steps=1))
    specs = [episode(index) for index in range(8)]
    apart = roll_out(policy, specs, one_by_one, n_queries=7)
    together = roll_out(policy, specs, all_together, n_queries=7)
    for key in apart:
        assert apart[key].shape == (7, 3)
        np.testing.assert_array_equal(together[key], apart[key])


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=LONG) for name in ("act", "diffusion, ddim")), *NAMES[1:3]],
)
def test_50_tasks_share_one_policy_without_touching_each_other(name):
    policy = make_policy(CONFIGS[name])
    specs = [episode(0, task_id) for task_id in range(50)]
    apart = roll_out(policy, specs, one_by_one, n_queries=2)
    shared = roll_out(policy, specs, four_tasks_at_a_time, n_queries=2)
    for key in apart:
        np.testing.assert_array_equal(shared[key], apart[key])


def test_noise_differs_by_episode_task_and_query_and_repeats_for_the_same():
    policy = make_policy(small_diffusion())
    keys = [(episode(0), 0), (episode(1), 0), (episode(0, 1), 0), (episode(0), 4)]
    noises = [policy._draw(Query(spec, step, None))["noise"] for spec, step in keys]
    for a, b in itertools.combinations(noises, 2):
        assert np.abs(a - b).max() > 0.1
    again = policy._draw(Query(episode(0), 4, None))["noise"]
    np.testing.assert_array_equal(again, noises[3])
    assert again.dtype == np.float32


def test_drawing_noise_leaves_the_global_generator_alone():
    policy = make_policy(small_diffusion())
    before = torch.get_rng_state()
    policy.act(batch_of(policy, fresh_queries(policy, [episode(0)])))
    assert torch.equal(torch.get_rng_state(), before)
