"""SAC: what its options change, and that its state is complete."""

from __future__ import annotations

import pytest
import torch

from proctor.config.builder import build
from proctor.config.online_training import OnlineTrainConfig
from proctor.errors import UsageError
from proctor.rl.algorithms.sac import IS_DEMONSTRATION, PENALTY
from tests.tiny_sac import make_batches, make_learner


def same(left, right):
    assert left.keys() == right.keys()
    return all(torch.equal(left[name], right[name]) for name in left)


def advance(learner, updates, batches=None):
    batches = batches or make_batches(learner)
    return [learner.update(batches) for _ in range(updates)]


VARIANTS = {
    "state": {"gripper": False},
    "gripper, several critics and batches": {
        "utd_ratio": 2, "num_critics": 4, "num_subsample_critics": 2,
    },
    "images": {"images": True},
    "images, encoder trained": {"images": True, "policy": {"freeze_vision_encoder": False}},
    "images, two encoders": {"images": True, "policy": {"shared_encoder": False}},
    "rare actor": {"policy_update_freq": 2, "gripper": False},
}  # fmt: skip


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_a_learner_restored_after_two_updates_goes_on_with_the_same_bits(options):
    whole = make_learner(**options)
    batches = make_batches(whole)
    advance(whole, 2, batches)
    kept = whole.state()
    restored = make_learner(seed=5, **options)
    restored.load_state(kept)
    again = make_batches(restored)
    for _ in range(2 * whole.settings.utd_ratio):
        next(again)
    assert advance(whole, 2, batches) == advance(restored, 2, again)
    assert same(whole.state(), restored.state())
    assert whole.step == restored.step == 4


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_an_update_moves_what_is_trainable_and_nothing_else(options):
    learner = make_learner(**options)
    before = learner.state()
    advance(learner, 1)
    after = learner.state()
    frozen = {f"network.{k}" for k, p in learner.network.named_parameters() if not p.requires_grad}
    unmoved = {name for name in before if torch.equal(before[name], after[name])}
    dead = {name for name in unmoved - frozen if "image_enc_layers" in name}  # ReLUs may be off
    assert unmoved == frozen | dead
    assert len(dead) < 4


def test_the_actor_is_updated_in_every_second_update_only():
    learner = make_learner(policy_update_freq=2, gripper=False)
    first, second, third = advance(learner, 3)
    assert "loss_actor" in first
    assert "loss_actor" not in second
    assert "loss_actor" in third


def test_with_one_batch_per_update_the_penalty_counts_only_with_the_fix():
    losses = {}
    for fix in (False, True):
        learner = make_learner(fix_penalty=fix)
        losses[fix] = advance(learner, 1)[0]["loss_discrete_critic"]
    assert losses[True] != losses[False]


def test_demonstrations_without_a_penalty_count_as_unpunished():
    losses = []
    for n_rows in (3, None):
        learner = make_learner(fix_penalty=True)
        batch = next(make_batches(learner))
        penalty = batch.complementary_info[PENALTY]
        penalty[3:] = 0
        batch.complementary_info[PENALTY] = penalty[:n_rows]
        losses.append(advance(learner, 1, iter([batch]))[0]["loss_discrete_critic"])
    assert losses[0] == losses[1]


def test_behaviour_cloning_moves_the_actor_to_the_demonstrated_actions():
    learner = make_learner(bc_weight=50.0, bc_gripper_weight=50.0, actor_lr=1e-2, critic_lr=1e-2)
    batch = next(make_batches(learner))
    metrics = advance(learner, 60, iter([batch] * 60))
    assert metrics[-1]["loss_bc"] < 0.1 * metrics[0]["loss_bc"]
    demonstrated = batch.complementary_info[IS_DEMONSTRATION].bool()
    commands = learner.gripper(batch.observation).argmax(-1)[demonstrated]
    assert commands.tolist() == batch.action[demonstrated, -1].long().tolist()


def test_behaviour_cloning_ignores_rows_of_actors():
    learner = make_learner(bc_weight=1.0, bc_gripper_weight=1.0)
    batch = next(make_batches(learner))
    batch.complementary_info[IS_DEMONSTRATION].zero_()
    metrics = advance(learner, 1, iter([batch]))[0]
    assert metrics["loss_bc"] == metrics["loss_bc_gripper"] == 0


def test_actors_get_the_weights_that_act_with_lerobots_names():
    learner = make_learner(images=True)
    sent = learner.actor_state()
    other = make_learner(images=True, seed=3).network
    for parameter in other.parameters():
        parameter.data.zero_()
    other.actor.load_state_dict(sent["policy"])
    other.discrete_critic.load_state_dict(sent["discrete_critic"])
    observation = next(make_batches(learner)).observation
    assert torch.equal(other.chunk(observation, {}), learner.network.chunk(observation, {}))
    advance(learner, 1)
    assert not same(sent["policy"], learner.actor_state()["policy"])


def test_an_unknown_activation_of_critics_is_refused():
    flag = {"algorithm.critic_network_kwargs.final_activation": "Linear"}
    settings = {"policy.type": "gaussian_actor", "env.type": "fake"}
    build(OnlineTrainConfig, settings)
    with pytest.raises(UsageError) as caught:
        build(OnlineTrainConfig, settings | flag)
    assert caught.value.code == "flag.invalid-value"
