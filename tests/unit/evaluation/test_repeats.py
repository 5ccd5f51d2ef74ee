"""Several episodes of one initial state (--eval.repeats), pass^k, success at the end, distances."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.config.sections.evaluation import EvalSettings
from proctor.engine.worker.episode import _best_scores
from proctor.errors import UsageError
from proctor.evaluation.plan import make_plan
from proctor.evaluation.run import Evaluation
from proctor.report.run.page import write_page
from proctor.report.run.run import load_run
from proctor.report.run.summary import at_end_text, eval_info, pass_rates, pass_text, tally
from proctor.settings import check_settings
from proctor.stats.independent_units import independent_units
from proctor.stats.rates import wilson_interval
from proctor.stats.repeats import pass_all
from proctor.types import CLOSEST, SUBGOALS
from tests.refusals import refuses
from tests.run_folders import eight_episodes, write_run


def test_repeats_share_the_world_and_have_indices_of_their_own() -> None:
    plan = make_plan(Fake(FakeConfig()), range(6), 1000, repeats=3)
    assert [spec.index for spec in plan] == list(range(6))
    assert [spec.seed for spec in plan] == [1000] * 3 + [1001] * 3
    assert len(independent_units(plan)) == 2


def test_repeats_multiply_the_episodes_and_one_is_the_default() -> None:
    assert list(EvalSettings(n_episodes=2, repeats=2).indices) == [0, 1, 2, 3]
    assert EvalSettings(repeats=1).repeats is None, "one meaning, one fingerprint"
    with refuses(UsageError, "flag.out-of-range"):
        check_settings(EvalSettings(repeats=0), "eval.")
    with refuses(UsageError, "flag.out-of-range"):
        EvalSettings(n_episodes=2, repeats=2, episodes=[4]).validate()


def test_a_repeated_run_says_how_often_all_attempts_succeed(run: Callable[..., Evaluation]) -> None:
    evaluation = run(policy__type="random", eval__n_episodes=2, eval__repeats=2)
    assert len(evaluation.rows) == 4
    assert len({row.digest for row in evaluation.rows}) == 4, "the policy's noise differs"
    info = json.loads((evaluation.path / "eval_info.json").read_text())
    assert [one["k"] for one in info["proctor"]["pass_hat_k"]] == [2]
    assert info["overall"]["n_starts"] == 2


def test_pass_k_is_the_share_of_sets_of_k_attempts_that_all_succeed() -> None:
    found = pass_all([(3, 4), (4, 4), (0, 4), (1, 1)], 2)
    assert found is not None
    assert found.rate == pytest.approx((3 / 6 + 1 + 0) / 3)
    assert found.interval == wilson_interval(1.5, 3)
    assert (found.starts, found.left_out) == (3, 1)
    assert pass_all([(1, 1)], 2) is None


def test_worlds_that_do_not_repeat_have_no_pass_k() -> None:
    assert pass_rates(eight_episodes()) == []
    assert pass_text([]) is None
    rows = [replace(row, world="same") for row in eight_episodes()[:4]]
    assert pass_text(pass_rates(rows)) is not None


def test_success_that_is_undone_is_shown(tmp_path: Path) -> None:
    rows = eight_episodes()
    assert at_end_text(tally(rows)) is None
    rows[0] = replace(rows[0], success_at_end=False)
    undone = tally(rows)
    assert (undone.successes, undone.at_end) == (4, 3)
    assert at_end_text(undone) is not None
    metrics = eval_info(rows, 8, [0.0])["overall"]
    assert metrics["pc_success_at_end"] == pytest.approx(300 / 7)
    page = write_page(write_run(tmp_path, rows)).read_text()
    assert '"at_end":0.428571' in page
    assert load_run(tmp_path).tally.differs_at_end


def test_a_distance_keeps_its_minimum_and_other_scores_their_maximum() -> None:
    best = _best_scores({CLOSEST: 0.2, SUBGOALS: 0.5}, {CLOSEST: 0.3, SUBGOALS: 0.4})
    assert _best_scores(best, {CLOSEST: 0.1, SUBGOALS: 1.0}) == {CLOSEST: 0.1, SUBGOALS: 1.0}
