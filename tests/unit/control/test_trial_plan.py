"""The order of trials is balanced and random, and depends on the entropy only."""

from __future__ import annotations

from collections import Counter

from proctor.control.trials.plan import draw_trials, remaining_trials


def test_every_block_has_every_policy_once() -> None:
    trials = draw_trials(3, 40, 7)
    assert [trial.number for trial in trials] == list(range(120))
    for block in range(40):
        assert {t.policy for t in trials if t.block == block} == {0, 1, 2}


def test_the_first_place_of_a_block_is_shared_fairly() -> None:
    firsts = Counter(trial.policy for trial in draw_trials(2, 1000, 1)[::2])
    assert 420 < firsts[0] < 580


def test_a_longer_session_has_the_same_beginning() -> None:
    assert draw_trials(4, 50, 3)[:80] == draw_trials(4, 20, 3)
    assert draw_trials(4, 20, 3) != draw_trials(4, 20, 4)


def test_a_decision_leaves_only_begun_blocks() -> None:
    trials = draw_trials(2, 3, 0)
    done = {(0, 0), (0, 1), (1, trials[2].policy)}
    assert [t.block for t in remaining_trials(trials, done, decided=False)] == [1, 2, 2]
    assert remaining_trials(trials, done, decided=True) == [trials[3]]
