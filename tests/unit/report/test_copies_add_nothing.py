"""Every consumer of episodes counts independent units: copies of five episodes tell what five tell.

Each consumer gets five episodes, and then four copies of each under other seeds. A count of
episodes by seed or by key would give another answer, which the last test shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proctor.callbacks.wandb import success_metrics
from proctor.report.claims.card import CardTally
from proctor.report.claims.claims import Claim, check_claim
from proctor.report.compare.comparison import Criteria, compare_all
from proctor.report.compare.planning import run_numbers
from proctor.report.robustness.drops import make_robustness
from proctor.report.robustness.sensitivity import make_sensitivity
from proctor.report.run.curve_points import curve_points
from proctor.report.run.judge_agreement import judge_agreement
from proctor.report.run.page_data import page_data
from proctor.report.run.run import Run, load_run
from proctor.report.run.summary import eval_info, pass_rates, tally
from proctor.runs.journal import EpisodeRecord
from proctor.runs.records import PlannedTask
from proctor.stats.anytime import AnytimeInterval
from proctor.stats.counts import Counts
from proctor.stats.stopping import CIWidth, EpisodeOutcome, PairedTest
from proctor.types import Outcome, Perturbation, Start
from tests.run_folders import RECORD, episode, write_run

STARTS = 15
COPIES = 4
CAMERA = Perturbation("camera", 1, "point", 0)
Rows = Sequence[EpisodeRecord]


def start(number: int) -> Start:
    return Start(("x",), (float(number),), 1e-3, f"start {number}")


def episodes(copies: int, *, distinct: bool = False, lost: int = 6) -> list[EpisodeRecord]:
    """Return clean episodes: the first ``lost`` starts fail. ``distinct``: no two start alike."""
    rows = []
    for index in range(STARTS * copies):
        number = index % STARTS
        ended = Outcome.FAILURE if number < lost else Outcome.SUCCESS
        row = replace(episode(0, index, ended), start=start(index if distinct else number))
        rows.append(replace(row, judge_success=number % 3 > 0, judge_probability=0.5))
    return rows


def perturbed(clean: Rows) -> list[EpisodeRecord]:
    """Return a perturbed variant of every episode, which fails at the first ten starts."""
    variants = []
    for row in clean:
        fails = row.episode_index % STARTS < 10
        ended = Outcome.FAILURE if fails else Outcome.SUCCESS
        variant = episode(0, row.episode_index, ended, suite="point@camera-1")
        variants.append(replace(variant, clean_task=CAMERA.clean_key, start=row.start))
    return variants


def a_run(rows: Rows, name: str = "run") -> Run:
    return Run(Path(name), len(rows), list(rows), record=RECORD)


def robustness(rows: Rows) -> Any:
    tasks = [
        PlannedTask("point", 0, "point-0", "do it", 50, len(rows)),
        PlannedTask("point@camera-1", 0, "point-0", "do it", 50, len(rows), CAMERA),
    ]
    found = make_robustness(tasks, [*rows, *perturbed(rows)])
    assert found is not None
    return found


def sensitivity(rows: Rows) -> list[float]:
    found = make_sensitivity(robustness(rows))
    assert found is not None
    return [*found.cells[0].interval, found.cells[0].p_value]


def compared(rows: Rows) -> list[float]:
    """Return the overall p-value, the gate's p-value and the interval against a better policy."""
    better = episodes(len(rows) // STARTS, distinct=len({row.start for row in rows}) > STARTS)
    better = [replace(row, outcome=Outcome.SUCCESS) for row in better]
    (found,) = compare_all([a_run(better, "a"), a_run(rows, "b")], Criteria(margin=0.05))
    assert found.p_value is not None
    assert found.interval is not None
    return [found.p_value, found.p_worse, *found.interval]


def outcomes(rows: Rows) -> list[EpisodeOutcome]:
    return [EpisodeOutcome(row.key, row.started, row.outcome) for row in rows]


def width_rule(rows: Rows) -> list[float]:
    rule = CIWidth(0.9)
    for one in outcomes(rows):
        rule.on_round_end([one])
    return [float(str(rule.decision).split()[1])]


def bets(rows: Rows) -> list[float]:
    test = PairedTest(outcomes([replace(row, outcome=Outcome.SUCCESS) for row in rows]), "A", 1e-9)
    for one in outcomes(rows):
        test.on_round_end([one])
    return [test.wins_a, test.wins_b]


def claimed(rows: Rows) -> list[float]:
    claim = Claim(policy="p", benchmark="fake", published=50.0, episodes=10, source="us", n=100)
    return list(check_claim(claim, tally(rows), 0.1).interval)


CONSUMERS: dict[str, Callable[[Rows], Any]] = {
    "tally": lambda rows: tally(rows).interval,
    "anytime interval": lambda rows: tally(rows, AnytimeInterval()).interval,
    "progress": lambda rows: Counts.of(rows).interval,
    "W&B": lambda rows: success_metrics(Counts.of(rows))["success/low95"],
    "Python": lambda rows: a_run(rows).tally.interval,
    "eval_info.json": lambda rows: eval_info(rows, 1, [0.0])["overall"]["pc_success_interval95"],
    "page": lambda rows: page_data(a_run(rows))["overall"]["interval"],
    "card": lambda rows: CardTally.of(tally(rows)).effective_n,
    "claim": claimed,
    "judge": lambda rows: getattr(judge_agreement(rows), "interval", None),
    "curve": lambda rows: curve_points([[a_run(rows)]])[0][0]["interval"],
    "plan": lambda rows: run_numbers([a_run(rows)]).starts,
    "compare and gate": compared,
    "stop rule": width_rule,
    "--against": bets,
    "drop": lambda rows: robustness(rows).cells[0].interval,
    "p of a drop": lambda rows: robustness(rows).cells[0].p_value,
    "sensitivity": sensitivity,
    "with perturbed episodes": lambda rows: tally_of_run([*rows, *perturbed(rows)]),
}


def tally_of_run(rows: Rows) -> Any:
    return a_run(rows).tally.interval


@pytest.mark.parametrize("name", CONSUMERS)
def test_copies_add_nothing(name: str) -> None:
    told = CONSUMERS[name]
    once = told(episodes(1))
    assert told(episodes(COPIES)) == pytest.approx(once, abs=1e-6)
    assert told(episodes(COPIES, distinct=True)) != pytest.approx(once, abs=1e-6), "naive count"


def test_copies_are_attempts_of_pass_k() -> None:
    (*_, found) = pass_rates(episodes(COPIES))
    assert (found.k, found.starts, found.rate) == (COPIES, STARTS, 9 / STARTS)
    assert pass_rates(episodes(COPIES, distinct=True)) == []


def test_the_rate_of_a_run_is_about_its_clean_episodes(tmp_path: Path) -> None:
    rows = [*episodes(1), *perturbed(episodes(1))]
    run = load_run(write_run(tmp_path / "run", rows))
    assert (run.tally.successes, run.tally.episodes) == (9, STARTS)
    assert run.headline == "success of the clean episodes"
    page, info = page_data(run), eval_info(rows, len(rows), [0.0])
    assert (page["overall"]["k"], page["headline"]) == (9, run.headline)
    assert info["overall"]["n_episodes"] == STARTS
    assert info["proctor"]["perturbed_episodes"] == STARTS
    only = load_run(write_run(tmp_path / "only", perturbed(episodes(1))))
    assert (only.tally.successes, only.headline) == (5, "success, all perturbed")
