"""The learner's loop: journal, admission, updates, weights, and exact resumption."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from proctor.errors import TrainingError
from proctor.rl.link.links import InProcessLink
from proctor.rl.transitions import Transition
from tests.refusals import refuses
from tests.unit.rl.toy_learner import (
    EPISODE,
    STATE,
    ToyAlgorithm,
    feed,
    five_demonstrations,
    free_running,
    open_learner,
    run,
    save,
    transition,
)


def final_bits(folder: Path, **options: object) -> bytes:
    learner = open_learner(folder, **options)  # type: ignore[arg-type]
    feed(learner, 40, interventions=range(10, 14))
    run(learner)
    return weights(learner)


def weights(learner: object) -> bytes:
    algorithm = learner.algorithm  # type: ignore[attr-defined]
    assert isinstance(algorithm, ToyAlgorithm)
    return algorithm.vector.numpy().tobytes()


def test_in_lockstep_every_environment_step_after_the_first_ones_gets_one_update(
    tmp_path: Path,
) -> None:
    learner = open_learner(tmp_path)
    feed(learner, 40)
    run(learner)
    assert learner.counters.environment_steps == 40
    assert learner.algorithm.step == 40 - 5 + 1


def test_in_lockstep_weights_are_published_at_the_ends_of_episodes(tmp_path: Path) -> None:
    learner = open_learner(tmp_path)
    feed(learner, 2 * EPISODE + 3)
    thread = threading.Thread(target=run, args=(learner,), kwargs={"stop_at": 2 * EPISODE + 3})
    thread.start()
    thread.join(60)
    newest = InProcessLink(learner.endpoint, "actor-0").newest_weights()
    assert newest is not None
    assert newest.version == 2 * EPISODE


def test_two_learners_with_the_same_transitions_end_with_the_same_bits(tmp_path: Path) -> None:
    assert final_bits(tmp_path / "a") == final_bits(tmp_path / "b")


@pytest.mark.parametrize("checkpoint_at", [2, 8, 14, 30])
@pytest.mark.parametrize("received", [0, 6])
def test_a_learner_that_was_killed_ends_with_the_same_bits(
    tmp_path: Path, checkpoint_at: int, received: int
) -> None:
    """``received`` transitions are in the journal and not in the checkpoint."""
    expected = final_bits(tmp_path / "whole", fill_offline=five_demonstrations)
    learner = open_learner(tmp_path / "killed", fill_offline=five_demonstrations)
    feed(learner, checkpoint_at + received, interventions=range(10, 14))
    run(learner, stop_at=checkpoint_at)
    checkpoint = save(learner, tmp_path / "checkpoint")
    later = open_learner(tmp_path / "killed", checkpoint, fill_offline=five_demonstrations)
    assert later.counters.environment_steps == checkpoint_at
    feed(later, 40, interventions=range(10, 14))
    run(later)
    assert weights(later) == expected


def test_a_learner_that_was_killed_before_its_first_checkpoint_repeats_all_updates(
    tmp_path: Path,
) -> None:
    expected = final_bits(tmp_path / "whole")
    learner = open_learner(tmp_path / "killed")
    feed(learner, 20, interventions=range(10, 14))
    run(learner, stop_at=12)
    later = open_learner(tmp_path / "killed")
    feed(later, 40, interventions=range(10, 14))
    run(later)
    assert weights(later) == expected


def test_an_acknowledged_transition_is_in_the_journal_of_the_next_learner(tmp_path: Path) -> None:
    learner = open_learner(tmp_path)
    link = InProcessLink(learner.endpoint, "actor-0")
    link.begin(replay=True)
    link.send([transition(index) for index in range(9)])
    run(learner, stop_at=1)
    assert link.wait_acknowledged(0.0)
    later = open_learner(tmp_path)
    kept = [int(one.transition.observation[STATE][0]) for one in later.storage.unadmitted()]
    assert kept == list(range(9))


def test_the_published_weights_survive_a_resume_in_the_middle_of_an_episode(
    tmp_path: Path,
) -> None:
    learner = open_learner(tmp_path / "run")
    feed(learner, EPISODE + 4)
    run(learner, stop_at=EPISODE + 4)
    checkpoint = save(learner, tmp_path / "checkpoint")
    later = open_learner(tmp_path / "run", checkpoint)
    assert later.published is not None
    assert learner.published is not None
    assert later.published.version == EPISODE
    same = later.published.modules["policy"]["vector"]
    assert np.array_equal(same, learner.published.modules["policy"]["vector"])
    assert not np.array_equal(same, later.algorithm.actor_state()["policy"]["vector"].numpy())


def test_interventions_go_to_both_buffers(tmp_path: Path) -> None:
    learner = open_learner(tmp_path, fill_offline=five_demonstrations)
    feed(learner, 12, interventions=range(4, 6))
    run(learner, stop_at=12)
    sizes = learner.storage.sizes
    assert (sizes.online, sizes.offline) == (12, 5 + 2)
    assert learner.counters.intervention_steps == 2


def test_batches_mark_the_rows_of_the_offline_buffer(tmp_path: Path) -> None:
    learner = open_learner(tmp_path, fill_offline=five_demonstrations)
    feed(learner, 6)
    run(learner, stop_at=6)
    assert isinstance(learner.algorithm, ToyAlgorithm)
    batch = learner.algorithm.batch
    assert batch is not None
    is_demonstration = batch.complementary_info["is_demonstration"].bool()
    assert torch.equal(is_demonstration, batch.observation[STATE][:, 0] >= 1000)
    assert is_demonstration.sum() == 2


def test_a_free_running_learner_goes_on_updating_without_new_transitions(tmp_path: Path) -> None:
    learner = open_learner(tmp_path, settings=free_running(40))
    feed(learner, 8)
    thread = threading.Thread(target=run, args=(learner,))
    thread.start()
    link = InProcessLink(learner.endpoint, "actor-1")
    link.begin(replay=False)
    while learner.algorithm.step < 50:
        assert thread.is_alive()
    link.send([transition(index) for index in range(32)])
    thread.join(60)
    assert learner.counters.environment_steps == 40
    assert set(learner.counters.open_episodes) == {"actor-0", "actor-1"}


def test_metrics_have_the_means_of_episodes_and_interventions(tmp_path: Path) -> None:
    learner = open_learner(tmp_path)
    feed(learner, 40, interventions=range(14))
    metrics = run(learner).metrics
    assert [one.step for one in metrics] == [14, 24, 34, 40]
    assert metrics[0].reward == EPISODE
    assert metrics[0].intervention_rate == 1.0
    assert metrics[1].intervention_rate == 0.0
    assert metrics[-1].online_buffer == 16


def broken(field: str, value: float) -> Transition:
    """Return a transition with a number that cannot be learned from."""
    good = transition(1)
    if field == "reward":
        return replace(good, reward=value)
    if field == "info":
        return replace(good, complementary_info={"discrete_penalty": value})
    array = np.full(2 if field == "action" else 3, value)
    return replace(good, **{field: array if field == "action" else {STATE: array}})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e39, -1e39, 1e30])
@pytest.mark.parametrize("field", ["reward", "info", "action", "observation", "next_observation"])
def test_transitions_that_nothing_can_be_learned_from_are_acknowledged_and_dropped(
    tmp_path: Path, field: str, value: float
) -> None:
    learner = open_learner(tmp_path)
    link = InProcessLink(learner.endpoint, "actor-0")
    link.begin(replay=True)
    link.send([transition(0), broken(field, value), broken(field, value), transition(2)])
    observer = run(learner, stop_at=2)
    assert link.wait_acknowledged(0.0)
    assert (learner.counters.environment_steps, learner.counters.dropped) == (2, 2)
    assert len(observer.said) == 1


@pytest.mark.parametrize("admitted", [False, True])
def test_a_journal_with_such_transitions_is_resumed_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, admitted: bool
) -> None:
    """Earlier versions stored them, and then could not be resumed from any checkpoint."""
    learner = open_learner(tmp_path, fill_offline=five_demonstrations)
    link = InProcessLink(learner.endpoint, "actor-0")
    link.begin(replay=True)
    with monkeypatch.context() as earlier:
        earlier.setattr(Transition, "is_learnable", True)
        with np.errstate(over="ignore"):
            link.send([transition(0), broken("reward", 1e39), transition(2)])
            run(learner, stop_at=3 if admitted else 1)
    checkpoint = save(learner, tmp_path / "checkpoint")

    resumed = open_learner(tmp_path, checkpoint, fill_offline=five_demonstrations)
    assert resumed.left_out == 1
    if not admitted:
        run(resumed, stop_at=3)
    assert resumed.left_out == 1
    assert (resumed.counters.environment_steps, resumed.storage.sizes.online) == (3, 2)
    assert resumed.algorithm.state()["vector"].isfinite().all()
    again = open_learner(
        tmp_path, save(resumed, tmp_path / "later"), fill_offline=five_demonstrations
    )
    assert (again.left_out, again.storage.sizes.online) == (1, 2)


def test_weights_that_are_not_finite_reach_neither_actors_nor_checkpoints(tmp_path: Path) -> None:
    learner = open_learner(tmp_path)
    assert isinstance(learner.algorithm, ToyAlgorithm)
    feed(learner, EPISODE)
    learner.algorithm.vector = torch.full((3,), float("nan"))
    with refuses(TrainingError, "training.not-finite"):
        learner.check_weights()
    with refuses(TrainingError, "training.not-finite"):
        run(learner)
    assert learner.published is None
