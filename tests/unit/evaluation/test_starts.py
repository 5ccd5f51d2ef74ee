"""Episodes with the same initial state: counted, reported, and allowed for in intervals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from proctor.benchmarks.fake import Fake
from proctor.callbacks.wandb import WandbConfig, success_metrics
from proctor.cli import main
from proctor.evaluation import tracking
from proctor.evaluation.run import Evaluation
from proctor.report.run.page_data import page_data
from proctor.report.run.run import load_run
from proctor.report.run.starts import planned_repeats, start_warnings
from proctor.report.run.summary import eval_info, tally
from proctor.stats.anytime import AnytimeInterval
from proctor.stats.counts import Counts
from proctor.stats.independent_units import UnitCounts
from proctor.stats.rates import rate_text, wilson_interval
from proctor.types import EpisodeSpec, Outcome, Task
from tests.run_folders import RECORD, eight_episodes, episode, write_run

N_STARTS = 2


@pytest.fixture
def two_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every task of the fake benchmark two initial states only, as LIBERO's have 50."""

    def spec(self: Fake, task: Task, index: int, seed: int) -> EpisodeSpec:
        return EpisodeSpec(task, index, seed + index % N_STARTS, world=f"w{index % N_STARTS}")

    monkeypatch.setattr(Fake, "spec", spec)


def units(*repeats: int) -> UnitCounts:
    """Episodes of starts that were not measured: so many of each."""
    rows = [
        replace(episode(0, index, Outcome.SUCCESS), world=f"w{start}", seed=start)
        for start, n in enumerate(repeats)
        for index in range(n)
    ]
    return UnitCounts((row, True) for row in rows)


@pytest.mark.parametrize(
    ("repeats", "distinct", "worth"),
    [
        ((1,) * 50, 50, 50.0),
        ((3,) * 50, 50, 50.0),
        ((2,) * 20 + (1,) * 30, 50, 70**2 / 110),
        ((), 0, 0.0),
    ],
)
def test_equal_repeats_are_worth_their_worlds_and_unequal_ones_less(
    repeats: tuple[int, ...], distinct: int, worth: float
) -> None:
    counts = units(*repeats)
    assert counts.distinct == distinct
    assert counts.effective_n == pytest.approx(worth)


def test_the_interval_of_copies_is_that_of_the_worlds_they_are_copies_of() -> None:
    worth = units(*(3,) * 50).effective_n
    assert wilson_interval(90, 150, effective_n=worth) == pytest.approx(wilson_interval(30, 50))
    assert wilson_interval(150, 150, effective_n=worth) == pytest.approx(wilson_interval(50, 50))


def test_unequal_copies_are_covered_as_often_as_the_interval_says() -> None:
    rng = np.random.default_rng(0)
    repeats = np.array([2] * 20 + [1] * 30)
    worth = units(*repeats).effective_n
    inside = {None: 0, worth: 0}
    for _ in range(4000):
        successes = int(((rng.random(50) < 0.5) * repeats).sum())
        for n in inside:
            low, high = wilson_interval(successes, 70, effective_n=n) or (0, 0)
            inside[n] += low <= 0.5 <= high
    assert inside[worth] / 4000 > 0.94
    assert inside[None] / 4000 < 0.91


def test_a_rate_names_its_worlds_where_they_are_fewer_than_its_episodes() -> None:
    rows = [episode(0, i, Outcome.SUCCESS if i < 90 else Outcome.FAILURE) for i in range(150)]
    rows = [replace(row, world=f"w{row.episode_index % 50}") for row in rows]
    assert str(tally(rows)) == "60.0% [46.2, 72.4] n=150 (50 starts)"
    assert rate_text(3, 4, units(1, 1, 1, 1)) == rate_text(3, 4)
    rows = [replace(episode(0, index, Outcome.FAILURE), world="one") for index in range(3)]
    assert str(tally(rows)).endswith("n=3 (1 start)")


def test_the_same_name_in_another_task_is_another_world() -> None:
    rows = [replace(episode(task, 0, Outcome.SUCCESS), world="w") for task in range(3)]
    assert tally(rows).units.distinct == 3


@pytest.mark.usefixtures("two_starts")
def test_a_run_that_repeats_worlds_says_so_at_its_start_and_everywhere_in_its_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--policy.type=random", "--env.type=fake", "--env.n_tasks=2", "--eval.n_episodes=6"]
    flags += ["--eval.use_async_envs=false", f"--output_dir={tmp_path / 'run'}"]
    assert main(["eval", *flags]) == 0
    out, err = capsys.readouterr()
    assert "warning: 12 planned episodes begin from 4 " in err
    assert "warning: 12 episodes begin from 4 " in err
    assert "n=12 (4 starts)" in out
    assert out.count("n=6 (2 starts)") == 2
    info = json.loads((tmp_path / "run/eval_info.json").read_text())
    assert (info["overall"]["n_episodes"], info["overall"]["n_starts"]) == (12, 4)
    assert info["per_task"][0]["metrics"]["n_starts"] == 2
    low, high = info["overall"]["pc_success_wilson95"]
    wide = wilson_interval(sum(info["per_task"][0]["metrics"]["successes"]), 6, effective_n=2)
    assert info["per_task"][0]["metrics"]["pc_success_wilson95"] == [
        100 * end for end in wide or ()
    ]
    assert "12 episodes begin from 4" in info["proctor"]["warnings"][0]
    page = page_data(load_run(tmp_path / "run"))
    assert (page["overall"]["n"], page["overall"]["starts"]) == (12, 4)
    assert page["overall"]["interval"] == pytest.approx([low / 100, high / 100], abs=1e-6)
    assert page["warnings"] == info["proctor"]["warnings"]


def test_a_run_whose_worlds_all_differ_is_warned_of_nothing(run: Callable[..., Evaluation]) -> None:
    evaluation = run(env__n_tasks=2)
    assert start_warnings(evaluation.rows) == []
    assert planned_repeats([]) is None
    info = eval_info(evaluation.rows, 8, [0.0])
    assert info["overall"]["n_starts"] == info["overall"]["n_episodes"] == 8


def test_what_is_logged_while_a_run_goes_on_allows_for_repeats_too() -> None:
    ended = [
        replace(episode(0, index, Outcome.SUCCESS), world=f"w{index % 2}") for index in range(6)
    ]
    figures = success_metrics(Counts.of([*ended, episode(0, 9, Outcome.ERROR)]))
    assert (figures["episodes"], figures["starts"]) == (7, 2)
    assert figures["success/low95"] == pytest.approx((wilson_interval(2, 2) or (0,))[0])


def test_wandb_is_told_the_interval_that_allows_for_a_rule_which_may_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, told = eight_episodes(), []
    resolved = {**RECORD.resolved, "eval": {"stop_when": "ci_width<0.5"}}
    made = SimpleNamespace(finish=lambda results, failed: None)
    monkeypatch.setattr(tracking, "WandbCallback", lambda *parts: told.append(parts[3]) or made)
    with tracking.wandb_tracking(
        WandbConfig(enable=True), tmp_path, replace(RECORD, resolved=resolved, history=[]), rows
    ):
        figures = success_metrics(told[0])
    interval = figures["success/low95"], figures["success/high95"]
    assert interval == tally(rows, AnytimeInterval(0.5)).interval != tally(rows).interval


def test_different_worlds_with_one_digest_are_warned_of() -> None:
    rows = [episode(0, index, Outcome.SUCCESS) for index in range(6)]
    for row in rows[1:4]:
        row.digest = "same"
    rows.append(replace(episode(1, 0, Outcome.SUCCESS), digest="same"))
    line, assumed = start_warnings(rows)
    assert assumed.startswith("starts assumed")
    assert line.startswith("3 different starts have only 1 digest between them")
    assert "as point-0 episodes 1 and 2" in line
    alike = [replace(row, world="one") for row in rows[1:3]]
    assert "digest" not in "".join(start_warnings(alike)), "one world may well end alike"


def test_the_page_says_what_the_terminal_says_of_worlds(tmp_path: Path) -> None:
    rows = [replace(episode(0, index, Outcome.FAILURE), digest="same") for index in range(3)]
    data = page_data(load_run(write_run(tmp_path, rows)))
    assert data["warnings"] == start_warnings(rows)
    assert len(data["warnings"]) == 2


@pytest.mark.parametrize("width", [None, 0.4])
def test_the_live_line_of_a_run_that_may_stop_has_the_interval_of_its_table(
    width: float | None,
) -> None:
    repeated = [replace(row, world=f"w{row.episode_index % 2}") for row in eight_episodes()]
    rows = [row for row in repeated if row.outcome.counts]
    live = Counts.of(rows, AnytimeInterval(width)).rate_text
    table = tally(rows, AnytimeInterval(width))
    assert live == table.brief
    assert Counts.of(rows).rate_text == tally(rows).brief != live
