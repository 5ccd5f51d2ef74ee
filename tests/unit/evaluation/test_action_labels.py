"""A policy acts, and the recorded labels are the scripted expert's actions in its states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.fake import Fake
from proctor.callbacks.action_labels import ExpertLabeling
from proctor.config.base import RECORDED_SEED
from proctor.engine.expert_labeler import ExpertLabeler
from proctor.errors import UsageError, WorkerError
from proctor.runs.journal import read_journal
from proctor.types import EpisodeSpec, Task
from tests.recordings import columns, episodes_of, record, same
from tests.refusals import refuses
from tests.unit.evaluation.test_recording import MakeRun, StopAfter

DAGGER = {
    "policy__type": "random",
    "policy__n_action_steps": 3,
    "record__label": "expert",
    "eval__use_async_envs": False,
}


def asked_of(episode: dict[str, Any]) -> Any:
    """Return the expert's action in every state of an episode."""
    world = episode["observation.environment_state"].astype(np.float64)
    return np.clip((world[:, 2:] - world[:, :2]) * 10, -1, 1)


def played_in(episode: dict[str, Any]) -> Any:
    """Return the executed action of every step but the last, from the change of the state."""
    world = episode["observation.environment_state"].astype(np.float64)
    return np.diff(world[:, :2], axis=0) * 10


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of the random policy with the expert's labels."""
    root = tmp_path_factory.mktemp("labelled") / "d"
    recorded = record(root, **DAGGER)
    assert [(task.kept, task.attempts) for task in recorded.tasks] == [(2, 2), (2, 2)]
    assert sum(task.failed for task in recorded.tasks) > 0  # failures matter here
    return root


def test_the_policy_plays_and_the_experts_actions_are_recorded(labelled: Path) -> None:
    for episode in episodes_of(labelled):
        wanted = asked_of(episode)
        assert np.allclose(episode["action"], wanted, atol=1e-5)
        assert np.abs(played_in(episode) - wanted[:-1]).max() > 0.3


def test_labels_change_no_episode(tmp_path: Path, labelled: Path, run: MakeRun) -> None:
    load = {"env__n_tasks": 2, "env__episode_length": 14, "eval__n_episodes": 2}
    plain = run(**load, policy__n_action_steps=3, seed=RECORDED_SEED)
    rows = read_journal(labelled.with_name("d.recording")).rows
    assert {r.key: r.digest for r in rows} == {r.key: r.digest for r in plain.rows}


def test_labels_are_the_same_whatever_the_number_of_workers(tmp_path: Path) -> None:
    mixed = DAGGER | {"record__expert_share": 0.5, "record__noise": 0.4, "env__n_tasks": 1}
    record(tmp_path / "one", **mixed)
    record(tmp_path / "other", **mixed | {"eval__use_async_envs": True, "eval__batch_size": 3})
    assert same(columns(tmp_path / "one"), columns(tmp_path / "other"))


def test_a_labelled_recording_that_was_stopped_goes_on_to_the_same_numbers(
    tmp_path: Path, labelled: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        record(tmp_path / "d", StopAfter(1), **DAGGER)
    record(tmp_path / "d", resume=True, **DAGGER)
    assert same(columns(tmp_path / "d"), columns(labelled))
    with pytest.raises(UsageError) as refused:
        record(tmp_path / "d", resume=True, **DAGGER | {"record__label": "played"})
    assert "record.label" in str(refused.value)


def test_an_expert_that_always_plays_shows_what_it_shows_alone(tmp_path: Path) -> None:
    every = {"record__keep": "all", "record__noise": 0.4, "eval__use_async_envs": False}
    record(tmp_path / "alone", **every)
    record(tmp_path / "always", **DAGGER | every, record__expert_share=1)
    record(tmp_path / "twice", **every, record__label="expert")
    alone = columns(tmp_path / "alone")
    assert same(columns(tmp_path / "always"), alone)
    assert same(columns(tmp_path / "twice"), alone)


def test_the_expert_plays_a_share_of_stretches(tmp_path: Path) -> None:
    flags = {"env__endless": True, "env__episode_length": 61, "record__n_episodes": 4}
    record(tmp_path / "d", **DAGGER, **flags, record__expert_share=0.5)
    shares = []
    for episode in episodes_of(tmp_path / "d"):
        right = np.isclose(played_in(episode), asked_of(episode)[:-1], atol=1e-3).all(axis=1)
        by_stretch = right.reshape(6, 10)
        assert (by_stretch.all(axis=1) | ~by_stretch[:, :9].any(axis=1)).all()
        shares.append(by_stretch.all(axis=1).mean())
    assert 0.2 < np.mean(shares) < 0.8
    assert len(set(shares)) > 1  # sampled for every episode


def test_who_plays_a_stretch_depends_on_the_episode_and_the_step_alone() -> None:
    task = Task("point", 0, "point-0", "", 50, fps=10)
    teaching = ExpertLabeling(0.3)
    spec = EpisodeSpec(task, 3, 1003)
    forwards = [teaching.expert_acts(spec, step) for step in range(2000)]
    backwards = [teaching.expert_acts(spec, step) for step in reversed(range(2000))]
    assert forwards == backwards[::-1]
    assert 0.2 < np.mean(forwards) < 0.4
    assert all(len(set(forwards[i : i + 10])) == 1 for i in range(0, 2000, 10))


def test_an_expert_that_gives_no_numbers_is_not_written_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from proctor.benchmarks.fake import FakeConfig

    monkeypatch.setattr(Fake, "expert", lambda self, task: lambda seen: [np.nan, 0.0])
    benchmark = Fake(FakeConfig())
    spec = benchmark.spec(benchmark.tasks()[0], 0, 0)
    labeler = ExpertLabeler(benchmark, spec, ExpertLabeling())
    with refuses(WorkerError, "worker.failed") as refused:
        labeler.expert_action({key: np.zeros(4) for key in labeler.inputs}, 4)
    assert "at step 5" in str(refused.value)


def test_the_card_says_whose_actions_they_are(labelled: Path) -> None:
    card = (labelled / "README.md").read_text()
    assert "what the scripted expert of fake would have done in each state" in card
    assert '"label": "expert"' in card
    assert '"type": "random"' in card


def test_a_benchmark_without_an_expert_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Fake, "expert_inputs", ())
        with refuses(UsageError, "record.no-expert"):
            record(tmp_path / "d", **DAGGER)

    def none(self: Fake, task: Task) -> Any:
        raise UsageError(f"fake has no script for {task.name}")

    monkeypatch.setattr(Fake, "expert", none)
    with refuses(UsageError, "record.no-expert") as refused:
        record(tmp_path / "d", **DAGGER)
    assert "point-0" in str(refused.value)
    assert list(tmp_path.iterdir()) == []
