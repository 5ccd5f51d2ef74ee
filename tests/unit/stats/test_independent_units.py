"""Independent units: episodes that start alike are one unit, whatever named them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from proctor.runs.journal import EpisodeRecord
from proctor.stats.independent_units import (
    UnitCounts,
    independent_units,
    may_pair,
    unit_numbers,
)
from proctor.types import Outcome, Start
from tests.run_folders import episode

TOLERANCE = 0.01


def start(*values: float, names: str = "xyzuvw") -> Start:
    digest = repr((names, values))
    return Start(tuple(names[: len(values)]), values, TOLERANCE, digest)


def measured(index: int, *values: float, task: int = 0, seed: int | None = None) -> EpisodeRecord:
    row = episode(task, index, Outcome.SUCCESS)
    return replace(row, start=start(*values), seed=row.seed if seed is None else seed)


def perturbed(index: int, seed: int, *values: float, level: int = 1) -> EpisodeRecord:
    row = episode(0, index, Outcome.FAILURE, suite=f"point@delay-{level}")
    found = start(*values) if values else None
    return replace(row, seed=seed, world=f"seed {seed}", clean_task=("point", 0), start=found)


def test_equal_starts_of_a_task_are_one_unit_whatever_seed_named_them() -> None:
    rows = [measured(0, 1.0, 2.0), measured(1, 1.0, 2.0), measured(2, 3.0, 2.0)]
    assert unit_numbers(rows)[0] == unit_numbers(rows)[1] != unit_numbers(rows)[2]
    assert [len(unit) for unit in independent_units(rows)] == [2, 1]
    assert len(independent_units([measured(0, 1.0), measured(0, 1.0, task=1)])) == 2


def test_one_seed_with_different_starts_is_two_units() -> None:
    rows = [measured(0, 1.0, seed=7), measured(1, 2.0, seed=7)]
    assert len(independent_units(rows)) == 2


def test_starts_within_the_tolerance_are_equal_in_any_order_of_arrival() -> None:
    rng = random.Random(0)
    centres = [[rng.uniform(-1, 1) for _ in range(6)] for _ in range(40)]
    rows = [
        measured(index, *(x + rng.uniform(-0.4, 0.4) * TOLERANCE for x in centres[index % 40]))
        for index in range(200)
    ]
    rng.shuffle(rows)
    units = independent_units(rows)
    assert len(units) == 40
    assert all(len({row.episode_index % 40 for row in unit}) == 1 for unit in units)


def test_starts_just_beyond_the_tolerance_differ() -> None:
    rows = [measured(0, 0.0, 0.0), measured(1, 0.0, 1.01 * TOLERANCE)]
    assert len(independent_units(rows)) == 2


def test_a_world_that_shows_no_state_is_known_by_its_first_observation() -> None:
    rows = [
        replace(episode(0, index, Outcome.SUCCESS), start=Start((), (), TOLERANCE, digest))
        for index, digest in enumerate("aab")
    ]
    assert [len(unit) for unit in independent_units(rows)] == [2, 1]


@pytest.mark.parametrize("order", range(6))
def test_variants_of_a_start_belong_to_their_clean_episode(order: int) -> None:
    """Also if their objects were moved, and if two seeds are one clean start."""
    rows = [
        measured(0, 1.0),
        measured(1, 5.0),
        perturbed(0, 1000, 1.7),
        perturbed(0, 1000, level=2),
        perturbed(1, 1001, 5.9),
        measured(2, 1.0),
        perturbed(2, 1002, 9.9),
    ]
    random.Random(order).shuffle(rows)
    units = independent_units(rows)
    assert sorted(sorted({row.seed for row in unit}) for unit in units) == [[1000, 1002], [1001]]


def test_variants_without_clean_episodes_are_units_by_seed_and_by_start() -> None:
    rows = [perturbed(0, 1000, 1.0), perturbed(0, 1000, 1.0, level=2), perturbed(1, 1001, 2.0)]
    assert len(independent_units(rows)) == 2
    fixed = [perturbed(index, 1000 + index, 1.0) for index in range(12)]
    assert len(independent_units(fixed)) == 1


def test_starts_that_were_not_measured_are_those_of_the_plan() -> None:
    rows = [
        replace(episode(0, index, Outcome.SUCCESS), world=f"w{index % 2}") for index in range(4)
    ]
    assert [len(unit) for unit in independent_units(rows)] == [2, 2]


def test_an_episode_whose_worker_died_joins_the_measured_episodes_of_its_seed() -> None:
    lost = replace(episode(0, 2, Outcome.DIVERGED), seed=1000, world="seed 1000")
    rows = [measured(0, 1.0), measured(1, 4.0), lost]
    assert len(independent_units(rows)) == 2


@pytest.mark.parametrize("at_once", [0, 40, 90])
@pytest.mark.parametrize("seed", range(3))
def test_counts_agree_with_the_units_however_they_arrive(seed: int, at_once: int) -> None:
    rng = random.Random(seed)
    rows = [measured(index, float(rng.randrange(9))) for index in range(30)]
    rows += [perturbed(index, 1000 + index, level=level) for index in range(30) for level in (1, 2)]
    rng.shuffle(rows)
    won = {id(row): rng.random() < 0.5 for row in rows}
    counts = UnitCounts((row, won[id(row)]) for row in rows[:at_once])
    for row in rows[at_once:]:
        counts.add(row, won[id(row)])
    units = independent_units(rows)
    assert (counts.distinct, counts.episodes) == (len(units), len(rows))
    assert counts.effective_n == pytest.approx(len(rows) ** 2 / sum(len(u) ** 2 for u in units))
    first = [min(unit, key=lambda row: row.key) for unit in units]
    assert counts.first == (sum(won[id(row)] for row in first), len(units))
    expected = sorted((sum(won[id(row)] for row in unit), len(unit)) for unit in units)
    assert sorted(counts.clusters) == expected


@pytest.mark.parametrize("at_once", [0, 20, 60])
def test_counts_of_tasks_agree_however_they_arrive(at_once: int) -> None:
    rows = [measured(n, float(n % (3 + task)), task=task) for n in range(30) for task in (0, 1)]
    counts = UnitCounts((row, row.episode_index % 2 == 0) for row in rows[:at_once])
    for row in rows[at_once:]:
        counts.add(row, row.episode_index % 2 == 0)
    assert [(one.successes, one.episodes, one.effective_n) for one in counts.tasks] == [
        (15, 30, pytest.approx(3)),
        (15, 30, pytest.approx(30**2 / (8**2 + 8**2 + 7**2 + 7**2))),
    ]


def test_a_pair_needs_equal_starts_where_both_are_known() -> None:
    a, b = measured(0, 1.0), measured(0, 2.0)
    assert not may_pair(a.started, b.started)
    assert may_pair(a.started, replace(b, start=a.start).started)
    older = replace(b, start=None)
    assert may_pair(a.started, older.started)
    assert not may_pair(replace(a, world="w1").started, replace(older, world="w2").started)
