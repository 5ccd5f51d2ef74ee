"""Starts of training data, apart from the published ones that evaluations use."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proctor.benchmarks.base import Benchmark
from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.benchmarks.gym_hil.benchmark import GymHil, GymHilConfig
from proctor.benchmarks.training_starts import has_published_starts, seeded_spec, unpublished
from proctor.config.recording import RecordConfig, RecordedStarts, RecordSettings
from proctor.evaluation.recording import Attempts
from proctor.runs.journal import EpisodeRecord
from proctor.types import EpisodeSpec, Task

N_STATES = 50


class Listed(Fake):
    """A benchmark that is evaluated from fifty init states, and can place scenes itself."""

    places_scenes = True

    def spec(self, task: Task, index: int, seed: int) -> EpisodeSpec:
        return EpisodeSpec(task, index, seed + index, index % N_STATES)


@pytest.fixture
def listed() -> Listed:
    return Listed(FakeConfig())


def planned(benchmark: Benchmark, rows: Any = (), **settings: Any) -> list[EpisodeSpec]:
    record = RecordSettings(n_episodes=60, **settings)
    config = cast("RecordConfig", SimpleNamespace(record=record, seed=1_000_000))
    return Attempts(benchmark, config, rows).plan()


def test_recordings_start_from_scenes_that_their_seeds_place(listed: Listed) -> None:
    plan = planned(listed)
    evaluated = {listed.spec(spec.task, index, 1000).world for index in range(60) for spec in plan}
    assert {spec.init_state for spec in plan} == {None}
    assert not {spec.world for spec in plan} & evaluated
    assert len({spec.world for spec in plan if spec.task == plan[0].task}) == 60


def test_the_published_starts_are_recorded_on_request(listed: Listed) -> None:
    plan = planned(listed, starts=RecordedStarts.PUBLISHED)
    assert {spec.init_state for spec in plan} == set(range(N_STATES))


def test_a_resumed_recording_keeps_its_kind_of_starts(listed: Listed) -> None:
    """Recordings of older versions have the published starts, and do not say so."""
    (task, *_) = listed.tasks()
    row = cast(
        "EpisodeRecord",
        SimpleNamespace(
            key=(task.suite, task.task_id, 0),
            init_state=3,
            episode_index=0,
            outcome=SimpleNamespace(counts=False),
        ),
    )
    assert None not in {spec.init_state for spec in planned(listed, [row])}


def test_a_benchmark_that_cannot_place_scenes_keeps_its_starts(listed: Listed) -> None:
    listed.places_scenes = False
    assert None not in {spec.init_state for spec in planned(listed)}
    fake = Fake(FakeConfig())
    (task, *_) = fake.tasks()
    assert unpublished(fake, fake.spec(task, 1, 7)) == fake.spec(task, 1, 7)
    assert (has_published_starts(listed), has_published_starts(fake)) == (True, False)


def test_a_cube_with_one_place_is_said() -> None:
    """There is no start that an evaluation could keep for itself."""
    fixed = GymHil(GymHilConfig(random_block_position=False))
    assert ["one place" in note for note in fixed.notes] == [True]
    assert GymHil(GymHilConfig()).notes == ()


def test_a_seed_alone_chooses_the_init_state(listed: Listed) -> None:
    (task, *_) = listed.tasks()
    specs = [seeded_spec(listed, task, seed) for seed in range(1000, 1000 + N_STATES)]
    assert [spec.seed for spec in specs] == list(range(1000, 1000 + N_STATES))
    assert [spec.init_state for spec in specs] == list(range(N_STATES))
    assert {spec.index for spec in specs} == {0}
    fake = Fake(FakeConfig())
    assert seeded_spec(fake, task, 123_456) == replace(fake.spec(task, 0, 123_456))
