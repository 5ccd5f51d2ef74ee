"""The interval of one rate over several tasks: of these tasks, and of tasks like these."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from proctor.callbacks.wandb import success_metrics
from proctor.cli import main
from proctor.errors import UsageError
from proctor.report.claims.card_file import read_card
from proctor.report.run.page_data import page_data
from proctor.report.run.run import load_run
from proctor.report.run.summary import POOLED, STRATIFIED, eval_info, tally
from proctor.runs.journal import EpisodeRecord
from proctor.stats.anytime import AnytimeInterval
from proctor.stats.counts import Counts
from proctor.stats.independent_units import RateCounts
from proctor.stats.rates import wilson_interval
from proctor.stats.task_rates import stratified_n, suite_interval, these_tasks_interval
from proctor.types import Outcome
from tests.refusals import refuses
from tests.run_folders import RECORD, episode, write_run


def counts(tasks: Sequence[tuple[int, int]]) -> tuple[RateCounts, list[RateCounts]]:
    """Return the counts of tasks of independent episodes, and their total."""
    won, n = (sum(column) for column in zip(*tasks, strict=True))
    return RateCounts(won, n, n), [RateCounts(k, size, size) for k, size in tasks]


def rows_of(*tasks: tuple[int, int], copies: int = 1) -> list[EpisodeRecord]:
    """Return the episodes of (successes, starts) of each task, ``copies`` of each start."""
    outcomes = (Outcome.FAILURE, Outcome.SUCCESS)
    return [
        replace(episode(task, copy * n + i, outcomes[i < won]), world=f"w{i}", seed=1000 + i)
        for task, (won, n) in enumerate(tasks)
        for i in range(n)
        for copy in range(copies)
    ]


APART = [(20, 20), (19, 20), (2, 20), (0, 20)]


def test_tasks_that_differ_make_the_interval_of_these_tasks_narrower() -> None:
    total, tasks = counts(APART)
    low, high = these_tasks_interval(total, tasks) or (0, 0)
    pooled = wilson_interval(41, 80) or (0, 0)
    assert pooled[0] < low < 41 / 80 < high < pooled[1]
    shrunk = np.array([(k + 0.5) / (n + 1) for k, n in APART])
    within = np.mean(shrunk * (1 - shrunk) * 21 / 20)
    assert stratified_n(total, tasks) == pytest.approx(80 * 41 / 80 * 39 / 80 / within)


def test_tasks_that_are_alike_keep_the_pooled_interval() -> None:
    total, tasks = counts([(10, 20)] * 4)
    assert these_tasks_interval(total, tasks) == wilson_interval(40, 80)


@pytest.mark.parametrize("tasks", [[(4, 4), (0, 4)], [(50, 50), (0, 4)], [(7, 20)]])
def test_few_starts_of_a_task_or_one_task_pool_the_episodes(tasks: list[tuple[int, int]]) -> None:
    total, of_tasks = counts(tasks)
    assert these_tasks_interval(total, of_tasks) == wilson_interval(total.successes, total.episodes)


@pytest.mark.parametrize(
    "tasks", [APART, [(10, 20)] * 4, [(20, 20)] * 5, [(1, 2), (2, 2), (0, 3)], [(0, 1)] * 3]
)
def test_the_interval_of_tasks_like_these_holds_that_of_these_tasks(
    tasks: list[tuple[int, int]],
) -> None:
    of_suite, of_tasks = suite_interval(*counts(tasks)), these_tasks_interval(*counts(tasks))
    assert of_suite is not None
    assert of_tasks is not None
    assert of_suite[0] <= of_tasks[0] <= of_tasks[1] <= of_suite[1]


def test_one_or_two_tasks_say_nothing_of_others() -> None:
    assert suite_interval(*counts([(3, 20)])) is None
    assert suite_interval(*counts([(3, 20), (4, 20)])) is None


def test_copies_of_episodes_change_neither_interval() -> None:
    once, twice = tally(rows_of(*APART)), tally(rows_of(*APART, copies=3))
    assert twice.interval == pytest.approx(once.interval)
    assert twice.suite_interval == pytest.approx(once.suite_interval)
    assert twice.episodes == 3 * once.episodes


def test_copies_do_not_make_a_task_a_stratum() -> None:
    added = tally(rows_of((4, 4), (0, 4), copies=5))
    assert added.interval_kind == POOLED
    assert added.interval == pytest.approx(wilson_interval(4, 8))


def test_both_intervals_cover_what_they_are_about() -> None:
    rng, inside = np.random.default_rng(3), np.zeros(3)
    rates = np.linspace(0.02, 0.98, 12)
    for _ in range(1500):
        chosen = rng.choice(rates, 8)
        tasks = [(int(k), 10) for k in rng.binomial(10, chosen)]
        total, of_tasks = counts(tasks)
        these = these_tasks_interval(total, of_tasks) or (0, 0)
        suite = suite_interval(total, of_tasks) or (0, 0)
        inside += (
            these[0] <= chosen.mean() <= these[1],
            suite[0] <= rates.mean() <= suite[1],
            these[0] <= rates.mean() <= these[1],
        )
    covered = inside / 1500
    assert covered[0] > 0.94
    assert covered[1] > 0.94
    assert covered[2] < 0.75, "the interval of these tasks is no claim about others"


def test_a_rule_that_decides_the_number_of_episodes_has_neither() -> None:
    added = tally(rows_of(*APART), AnytimeInterval(0.1))
    assert added.suite_interval is None
    assert added.interval != tally(rows_of(*APART)).interval


def test_every_place_shows_the_same_intervals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(*APART)
    folder = write_run(tmp_path / "run", rows, replace(RECORD, planned_episodes=80))
    run = load_run(folder)
    info = eval_info(run.rows, 80, RECORD.sessions)["overall"]
    these, suite = run.tally.interval, run.tally.suite_interval
    assert these is not None
    assert suite is not None
    assert run.tally.interval_kind == STRATIFIED
    assert info["pc_success_interval95"] == [100 * end for end in these]
    assert info["pc_success_suite_interval95"] == [100 * end for end in suite]
    page = page_data(run)
    assert page["overall"]["suite_interval"] == pytest.approx(list(suite), abs=1e-6)
    assert page["interval"] == STRATIFIED
    metrics = success_metrics(Counts.of(rows))
    assert (metrics["success/low95"], metrics["success/high95"]) == these
    assert (metrics["success/suite_low95"], metrics["success/suite_high95"]) == suite
    assert Counts.of(rows).rate_text == run.tally.brief
    line = f"[{100 * suite[0]:.1f}, {100 * suite[1]:.1f}]"
    assert f"Mean over tasks like these: {line}." in run.to_markdown()
    assert main(["report", str(folder), "--card"]) == 0
    capsys.readouterr()
    card = read_card(folder / "card.json")
    assert (card.overall.interval, card.overall.suite_interval) == (these, suite)
    assert main(["compare", str(folder / "card.json"), str(folder)]) == 0
    assert str(run.tally) in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize("name", ["interval", "suite_interval"])
def test_a_card_with_another_interval_is_refused(tmp_path: Path, name: str) -> None:
    rows = rows_of(*APART)
    folder = write_run(tmp_path / "run", rows, replace(RECORD, planned_episodes=80))
    assert main(["report", str(folder), "--card"]) == 0
    values = json.loads((folder / "card.json").read_text())
    values["overall"][name] = [0.51, 0.515]
    (folder / "card.json").write_text(json.dumps(values))
    with refuses(UsageError, "card.not-a-card"):
        read_card(folder / "card.json")


def test_a_card_of_an_older_version_has_the_pooled_interval(tmp_path: Path) -> None:
    rows = rows_of(*APART)
    folder = write_run(tmp_path / "run", rows, replace(RECORD, planned_episodes=80))
    assert main(["report", str(folder), "--card"]) == 0
    values = json.loads((folder / "card.json").read_text())
    values |= {"format": 1, "interval": POOLED}
    del values["overall"]["suite_interval"]
    values["overall"]["interval"] = wilson_interval(41, 80)
    (folder / "card.json").write_text(json.dumps(values))
    assert read_card(folder / "card.json").overall.interval == wilson_interval(41, 80)
