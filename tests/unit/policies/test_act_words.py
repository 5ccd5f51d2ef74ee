"""ACT that is told its task in words: what it hears, and what that changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_policies import batch_of, episode, make_parts, make_policy, small_act, small_act_words

from proctor.benchmarks.metaworld.tasks import TASKS
from proctor.errors import UsageError
from proctor.policies.act_words.network import HEARD, JITTER, SHIFT, shifted
from proctor.policies.act_words.words import MOST_WORDS, word_pieces
from proctor.policies.base import Query
from proctor.policies.runtime.network import draw


def told(words: str, **changes: object) -> np.ndarray:
    """Return the actions of one policy for one observation, its task being put in ``words``."""
    policy = make_policy(small_act_words(**changes))
    spec = episode(0)
    spec = replace(spec, task=replace(spec.task, instruction=words))
    return policy.act(batch_of(policy, [Query(spec, 0, None)]))


def pieces(words: str) -> set[int]:
    return set(word_pieces(words).flatten().tolist()) - {0}


def test_words_of_one_stem_share_pieces_and_others_do_not():
    assert pieces("push") & pieces("Pushing!")
    assert not pieces("push") & pieces("reach")
    assert pieces("Push the puck") == pieces("push, the PUCK.")


def test_an_instruction_without_words_or_without_end_is_heard_as_far_as_it_goes():
    assert not word_pieces("...").any()
    assert (word_pieces("word " * 1000) == word_pieces("word " * MOST_WORDS)).all()


def test_metaworlds_instructions_are_told_apart():
    heard = {row.instruction: word_pieces(row.instruction).tobytes() for row in TASKS}
    assert len(set(heard.values())) == len(heard) == 49  # push and push-back have the same words


def test_other_words_are_other_actions():
    push = told("push the puck")
    np.testing.assert_array_equal(push, told("Push the puck."))
    assert not np.array_equal(push, told("reach the goal"))


def test_words_given_by_hand_win_over_the_tasks_own():
    push, name = told("push the puck"), episode(0).task.name
    np.testing.assert_array_equal(told("reach", instruction="push the puck"), push)
    by_name = {name: "push the puck"}
    both = told("reach", instruction="pull", instructions=by_name)
    np.testing.assert_array_equal(both, push)


def test_words_given_by_hand_are_part_of_the_protocol():
    given = make_policy(small_act_words(instruction="push")).protocol()
    assert given != make_policy(small_act_words()).protocol()


def test_a_policy_that_is_not_told_takes_no_words():
    with pytest.raises(UsageError, match="act is not told its task"):
        small_act(instruction="push").validate()


@pytest.mark.parametrize(
    ("field", "value"), [("random_shift", -1), ("state_noise", -0.1), ("word_dropout", 1.0)]
)
def test_what_cannot_be_is_named(field, value):
    with pytest.raises(UsageError, match=field):
        small_act_words(**{field: value}).validate()


def test_only_the_part_of_a_picture_that_counts_is_looked_at():
    policy = make_policy(small_act_words(crop=[8, 4, 16, 16]))
    seen = batch_of(policy, [Query(episode(0), 0, None)])
    camera = next(key for key, value in seen.observations.items() if value.dtype == np.uint8)
    inside, outside = (
        replace(seen, observations={**seen.observations, camera: seen.observations[camera].copy()})
        for _ in range(2)
    )
    outside.observations[camera][:, :, :8] += 100
    inside.observations[camera][:, :, 8:24, 4:20] += 100
    np.testing.assert_array_equal(policy.act(outside), policy.act(seen))
    assert not np.array_equal(policy.act(inside), policy.act(seen))


@pytest.mark.parametrize("crop", [[0, 0, 0, 8], [-1, 0, 8, 8], [0, 0, 8], [8, 0, 1000, 8]])
def test_a_part_that_is_none_is_refused(crop):
    with pytest.raises(UsageError, match=r"crop"):
        small_act_words(crop=crop).validate()


def test_only_a_training_disturbs_what_is_seen_and_heard():
    config = small_act_words(dropout=0.0)
    network = make_parts(config).network
    generator = torch.Generator().manual_seed(0)
    words = torch.from_numpy(word_pieces("push the puck"))
    batch = {
        "observation.state": torch.randn(2, 4, generator=generator),
        "observation.image": torch.rand(2, 3, 64, 64, generator=generator),
        "words": words.expand(2, *words.shape),
        "action": torch.randn(2, 6, 3, generator=generator),
        "action_is_pad": torch.zeros(2, 6, dtype=torch.bool),
    }
    one, other = (draw(network.loss_draws, generator, 2) for _ in range(2))
    assert set(one) == {SHIFT, JITTER, HEARD}
    with torch.no_grad():
        network.eval()
        assert network.loss(batch, one)[0] == network.loss(batch, other)[0]
        network.train()
        assert network.loss(batch, one)[0] != network.loss(batch, other)[0]


def test_pictures_are_moved_each_by_its_own_draw_and_their_border_is_drawn_out():
    picture = torch.arange(25.0).reshape(1, 1, 5, 5)
    moved = shifted(torch.cat([picture] * 2), torch.tensor([[0.5, 0.5], [0.999, 0.0]]), most=1)
    np.testing.assert_array_equal(moved[0], picture[0])
    below = np.concatenate([picture[0, 0, 1:], picture[0, 0, -1:]])  # one row further down
    np.testing.assert_array_equal(moved[1, 0], np.concatenate([below[:, :1], below[:, :-1]], 1))
