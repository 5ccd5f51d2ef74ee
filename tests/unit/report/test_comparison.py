"""Comparing runs: pairing, warnings and the rate of false alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.errors import UsageError
from proctor.report.compare.comparison import Comparison, Criteria, compare_all
from proctor.report.compare.pairing import planned_partners
from proctor.report.compare.table import comparison_lines
from proctor.report.run.history import history_of
from proctor.report.run.run import Run
from proctor.runs.journal import EpisodeRecord, make_record
from proctor.runs.records import SessionPlan
from proctor.stats.anytime import anytime_interval
from proctor.stats.differences import Paired, difference_interval, p_value
from proctor.stats.rates import wilson_interval
from proctor.types import EpisodeResult, EpisodeSpec, Outcome, Task
from tests.refusals import refuses
from tests.run_folders import RECORD

ALPHA = 0.05
UNPAIRED = Criteria(paired=False)
LETTERS = {
    "s": Outcome.SUCCESS,
    "f": Outcome.FAILURE,
    "d": Outcome.DIVERGED,
    "e": Outcome.ERROR,
}


def rows(task: str, outcomes: str, seed: int = 1000, suite: str = "suite") -> list[EpisodeRecord]:
    """Return episodes of a task; each letter is the first letter of an outcome."""
    of_task = Task(suite, sum(map(ord, task)), task, "do it", 10, 10)
    return [
        make_record(EpisodeResult(EpisodeSpec(of_task, i, seed + i), LETTERS[letter]))
        for i, letter in enumerate(outcomes)
    ]


def a_run(name: str, *tasks: Sequence[EpisodeRecord], **protocol: Any) -> Run:
    content = {"benchmark": {"type": "fake", "horizon": 50}, "policy": {"type": name}, "seed": 1000}
    record = replace(RECORD, resolved={}, protocol={**content, **protocol}, planned_episodes=None)
    episodes = [row for task in tasks for row in task]
    return Run(Path(name), len(episodes), episodes, record=record, history=history_of(record))


def compare(a: Run, b: Run, criteria: Criteria) -> Comparison:
    (comparison,) = compare_all([a, b], criteria)
    return comparison


@pytest.mark.parametrize("paired", [True, False])
def test_a_run_whose_results_decided_its_size_has_its_own_interval_in_a_comparison(
    paired: bool,
) -> None:
    fixed, other = a_run("a", rows("push", "sfsfsfsfsf")), rows("push", "ssssssssff")
    plans = [SessionPlan(float(n), n, n + 5, 1, "never", None) for n in (0, 5)]
    record = replace(fixed.record, sessions=[0.0, 5.0], history=plans)
    extended = Run(Path("b"), 10, other, record=record, history=history_of(record))
    criteria = Criteria(alpha=0.1, paired=paired)
    comparison = compare(fixed, extended, criteria)
    for change in (comparison.overall, *comparison.tasks):
        assert change.interval_a == wilson_interval(5, 10, 0.9)
        assert change.interval_b == anytime_interval(8, 10, None, 0.9)


def test_episodes_are_paired_by_task_name_seed_and_init_state() -> None:
    a = a_run("a", rows("push", "ssff"), rows("reach", "sf"))
    b = a_run("b", rows("push", "sfsf", suite="other"), rows("pull", "ss"))
    comparison = compare(a, b, Criteria())
    (push,) = comparison.tasks
    assert (push.name, push.n_a, push.successes_a, push.successes_b) == ("push", 4, 2, 2)
    assert (push.only_a, push.only_b) == (1, 1)
    assert (comparison.left_out_a, comparison.left_out_b) == (2, 2)


def test_two_suites_with_a_task_of_one_name_are_not_mixed_up() -> None:
    a = a_run("a", rows("push", "ssss", suite="kitchen"), rows("push", "ffff", suite="garden"))
    b = a_run("b", rows("push", "ffff", suite="garden"), rows("push", "ssss", suite="kitchen"))
    for criteria in (Criteria(), UNPAIRED):
        comparison = compare(a, b, criteria)
        names = {task.name: (task.successes_a, task.successes_b) for task in comparison.tasks}
        assert len(names) == 2
        assert {name.partition("/")[0]: won for name, won in names.items()} == {
            "kitchen": (4, 4),
            "garden": (0, 0),
        }


def test_a_start_weighs_once_however_often_it_was_played() -> None:
    """With four init states, LIBERO's episodes 0, 4 and 8 start alike. Under ten starts: copies."""
    runs = []
    for name, outcomes in (("a", "sfssssffssff"), ("b", "ssffffssffss")):
        episodes = rows("push", outcomes)
        for i, row in enumerate(episodes):
            row.world = f"init {i % 4}"
        runs.append(a_run(name, episodes))
    paired = compare(runs[0], runs[1], Criteria())
    assert (paired.overall.n_a, paired.overall.starts) == (12, 4)
    assert (paired.overall.only_a, paired.overall.only_b) == (6, 5)
    assert (paired.repeated_a, paired.repeated_b, paired.left_out_a) == (0, 0, 0)
    assert paired.overall.difference == pytest.approx(-1 / 12)
    by_start = Paired(both=1 / 3, only_a=2, only_b=5 / 3, neither=0)
    assert paired.p_value == pytest.approx(p_value(by_start))
    assert paired.interval == pytest.approx(difference_interval(by_start))
    of_a = comparison_lines(paired)[0]
    assert of_a.startswith("A 58.3% [")
    assert "n=12 (4 starts)" in of_a
    apart = compare(runs[0], runs[1], UNPAIRED)
    assert (apart.overall.n_a, apart.overall.n_b, apart.overall.starts) == (4, 4, 4)
    assert (apart.repeated_a, apart.repeated_b) == (8, 8)
    assert "leaves out 8 of 12 episodes of a and 8 of 12 of b" in apart.warnings[-1]


def test_starts_weigh_alike_whatever_the_number_of_their_episodes() -> None:
    """Two starts, one of them played five times: B wins there and loses the other."""
    runs = []
    for name, outcomes in (("a", "fffffs"), ("b", "sssssf")):
        episodes = rows("push", outcomes)
        for i, row in enumerate(episodes):
            row.world = "often" if i < 5 else "once"
        runs.append(a_run(name, episodes))
    overall = compare(runs[0], runs[1], Criteria()).overall
    assert (overall.rate_a, overall.rate_b, overall.difference) == (0.5, 0.5, 0)
    assert (overall.successes_a, overall.successes_b, overall.n_a) == (1, 5, 6)


def test_a_world_whose_first_pair_errored_is_compared_by_the_next() -> None:
    episodes = [rows("push", "es"), rows("push", "sf")]
    for row in (*episodes[0], *episodes[1]):
        row.world = "init 0"
    overall = compare(a_run("a", episodes[0]), a_run("b", episodes[1]), Criteria()).overall
    assert (overall.n_a, overall.only_a) == (1, 1)


def test_worlds_that_repeat_raise_no_more_false_alarms() -> None:
    """Deterministic policies on ten worlds of each task, five episodes each."""
    rng, alarms, gate = np.random.default_rng(10), 0, 0
    for _ in range(200):
        runs = []
        for name in ("a", "b"):
            episodes = []
            for task in range(2):
                won = "".join("s" if one else "f" for one in rng.random(10) < 0.6)
                episodes += rows(f"task-{task}", won * 5)
            for row in episodes:
                row.world = f"init {row.episode_index % 10}"
            runs.append(a_run(name, episodes))
        comparison = compare(runs[0], runs[1], Criteria(alpha=ALPHA))
        assert comparison.overall.p_value is not None
        alarms += comparison.overall.p_value <= ALPHA
        gate += comparison.is_worse
    assert alarms <= ALPHA * 200
    assert gate <= ALPHA * 200
    assert alarms > 0, "a test that never decides would pass, too"


def test_worlds_that_overlap_but_are_not_the_same_are_warned_of() -> None:
    a, b = a_run("a", rows("push", "s" * 50)), a_run("b", rows("push", "s" * 50, seed=1001))
    share = "the runs share 49 of 50 starts in A and 50 in B"
    assert compare(a, b, Criteria()).warnings == [f"{share}: only those are compared"]
    assert compare(a, b, UNPAIRED).warnings[0].startswith(f"{share}: they are no separate samples")
    shorter = a_run("c", rows("push", "s" * 30))
    assert compare(a, shorter, Criteria()).warnings == []


def test_runs_whose_seeds_overlap_are_compared_where_they_do() -> None:
    a, b = a_run("a", rows("push", "ffff")), a_run("b", rows("push", "ssss", seed=1002))
    comparison = compare(a, b, Criteria())
    assert comparison.overall.n_a == 2
    assert (comparison.left_out_a, comparison.left_out_b) == (2, 2)


def test_another_init_state_is_another_episode() -> None:
    b = rows("push", "ss")
    for row in b:
        row.init_state = 7
    with refuses(UsageError, "run.no-common-episode"):
        compare(a_run("a", rows("push", "ss")), a_run("b", b), Criteria())


def test_without_a_common_episode_or_task_the_comparison_is_refused() -> None:
    a, b = a_run("a", rows("push", "ss")), a_run("b", rows("push", "ss", seed=5000))
    with refuses(UsageError, "run.no-common-episode") as refused:
        compare(a, b, Criteria())
    assert "--unpaired" in str(refused.value)
    assert compare(a, b, UNPAIRED).overall.n_a == 2
    with refuses(UsageError, "run.no-common-task"):
        compare(a, a_run("b", rows("pull", "ss")), UNPAIRED)
    with refuses(UsageError, "run.no-common-episode"):
        compare(a, a_run("b", rows("push", "ee")), Criteria())


@pytest.mark.parametrize("criteria", [Criteria(), UNPAIRED])
def test_a_policy_that_breaks_the_simulator_has_failed_there(criteria: Criteria) -> None:
    a, b = a_run("a", rows("push", "ssfs")), a_run("b", rows("push", "sddd"))
    comparison = compare(a, b, criteria)
    (push,) = comparison.tasks
    assert push.n_b == 4
    assert (push.successes_a, push.successes_b) == (3, 1)
    assert (push.diverged_a, push.diverged_b, push.errors_b) == (0, 3, 0)
    assert "diverged, counted as failed: 0 in A, 3 in B" in comparison_lines(
        compare(a, b, criteria)
    )


def test_errors_stand_apart_and_are_no_failures() -> None:
    a, b = a_run("a", rows("push", "sses")), a_run("b", rows("push", "sesf"))
    overall = compare(a, b, Criteria()).overall
    assert (overall.n_a, overall.successes_a, overall.successes_b) == (2, 2, 1)
    assert (overall.errors_a, overall.errors_b) == (1, 1)
    assert overall.difference == -0.5


def test_a_task_of_errors_only_is_not_measured_and_costs_the_others_nothing() -> None:
    a = a_run("a", rows("push", "f" * 12), rows("pull", "eee"))
    b = a_run("b", rows("push", "s" * 12), rows("pull", "sss"))
    tasks = {task.name: task for task in compare(a, b, Criteria()).tasks}
    assert tasks["pull"].difference is None
    assert tasks["pull"].p_value is None
    assert tasks["pull"].p_holm is None
    assert tasks["push"].p_holm == tasks["push"].p_value == 2 * 0.5**12


def test_tasks_that_changed_significantly_are_flagged_and_the_others_are_not() -> None:
    a = a_run("a", rows("better", "f" * 20), rows("worse", "s" * 20), rows("same", "sf" * 10))
    b = a_run("b", rows("better", "s" * 20), rows("worse", "f" * 20), rows("same", "sfsf" * 5))
    comparison = compare(a, b, Criteria())
    assert [task.name for task in comparison.changed(1)] == ["better"]
    assert [task.name for task in comparison.changed(-1)] == ["worse"]
    assert comparison.overall.difference == 0
    assert comparison.macro is not None
    assert comparison.macro.rate == 0
    assert comparison.macro.stderr == pytest.approx(1 / 3**0.5)


def test_a_p_value_that_is_small_for_one_task_is_not_for_the_smallest_of_many() -> None:
    others = [rows(f"task-{i}", "sf" * 6) for i in range(20)]
    a, b = a_run("a", rows("odd", "f" * 8), *others), a_run("b", rows("odd", "s" * 8), *others)
    comparison = compare(a, b, Criteria())
    odd = next(task for task in comparison.tasks if task.name == "odd")
    assert odd.p_value == pytest.approx(0.0078125)
    assert odd.p_holm == pytest.approx(21 * 0.0078125)
    assert comparison.changed(1) == []


def test_separate_samples_take_as_many_episodes_of_a_task_from_either_run() -> None:
    """Otherwise the run with more episodes of the easy task would look better."""
    a = a_run("a", rows("easy", "s" * 30), rows("hard", "f" * 10))
    b = a_run("b", rows("easy", "s" * 10, seed=1), rows("hard", "f" * 30, seed=1))
    comparison = compare(a, b, UNPAIRED)
    assert comparison.overall.difference == 0
    assert (comparison.overall.n_a, comparison.overall.n_b) == (20, 20)
    assert (comparison.left_out_a, comparison.left_out_b) == (20, 20)


def test_what_differs_besides_the_policy_is_named() -> None:
    a = a_run("a", rows("push", "ss"), versions={"mujoco": "3.3.0"})
    b = a_run("b", rows("push", "ss"), versions={"mujoco": "3.4.0"}, seed=1)
    paired, unpaired = compare(a, b, Criteria()), compare(a, b, UNPAIRED)
    version = (
        "protocols differ: the version of mujoco: versions.mujoco is '3.3.0' in A, '3.4.0' in B"
    )
    assert paired.warnings == [
        "protocols differ: the first seed (--seed): seed is 1000 in A, 1 in B",
        version,
    ]
    shared = "the runs share 2 of 2 starts in A and 2 in B: they are no separate samples"
    assert unpaired.warnings == [f"{shared}: p is too large", version]
    assert (
        compare(
            a, a_run("c", rows("push", "ss"), versions={"mujoco": "3.3.0"}), Criteria()
        ).warnings
        == []
    )


def test_damaged_lines_and_early_stops_are_named() -> None:
    whole = a_run("a", rows("push", "ss"))
    hurt = replace(whole, path=Path("b"), damaged=[3, 9], stopped="ci_width 0.04 < 0.05")
    warnings = compare(whole, hurt, Criteria()).warnings
    assert warnings[0] == "b: skipped unreadable lines of episodes.jsonl: 3, 9"
    assert warnings[1].startswith("b stopped itself early (ci_width 0.04 < 0.05): p-values")


def test_an_unfinished_run_is_warned_of_and_a_run_that_is_a_prefix_is_not() -> None:
    """Thirty of fifty episodes are those that ended first; thirty of thirty are complete."""
    a, short = a_run("a", rows("push", "sf" * 25)), a_run("b", rows("push", "s" * 30))
    killed = replace(short, record=replace(short.record, planned_episodes=50))
    whole = replace(short, record=replace(short.record, planned_episodes=30))
    (warning,) = compare(a, killed, Criteria()).warnings
    assert warning.startswith("b is unfinished (30 of 50 episodes)")
    assert compare(killed, a, UNPAIRED).warnings[0] == warning
    (warning,) = compare(a, replace(killed, running=True), Criteria()).warnings
    assert "b is still running (30 of 50 episodes)" in warning
    comparison = compare(a, whole, Criteria())
    assert comparison.warnings == []
    assert (comparison.overall.n_a, comparison.overall.successes_a) == (30, 15)
    assert "episodes without a partner: 20 in A, 0 in B" in comparison_lines(comparison)


def test_a_run_is_not_compared_with_itself_and_copied_episodes_are_no_evidence(
    tmp_path: Path,
) -> None:
    played = [
        replace(row, start_time=7.5 + i, end_time=9.5 + i)
        for i, row in enumerate(rows("push", "sfss"))
    ]
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    a, other = a_run("a", played), a_run("b", rows("push", "sfss"))
    a, again = replace(a, path=tmp_path / "a"), replace(a, path=tmp_path / "link")
    for runs in ([a, a], [a, other, other], [a, other, again]):
        with refuses(UsageError, "run.duplicate"):
            compare_all(runs, Criteria())
    later = [replace(row, start_time=80.0, end_time=90.0 + i) for i, row in enumerate(played)]
    assert compare(a, a_run("b", later), Criteria()).warnings == []
    (warning,) = compare(a, a_run("b", [*played[:2], *later[2:]]), Criteria()).warnings
    assert warning.startswith("2 of 4 episodes of B are copies of A's")


def test_episodes_of_one_seed_whose_runs_name_other_worlds_are_no_pair() -> None:
    a, b = rows("push", "ssss"), rows("push", "ffff")
    for i, row in enumerate(a):
        row.world = f"goal {i}"
    for row, world in zip(b, ("goal 0", "goal 9", "seed 1002", "goal 9"), strict=True):
        row.world = world
    comparison = compare(a_run("a", a), a_run("b", b), Criteria())
    assert comparison.overall.n_a == 2, "the third is of a journal that says nothing of worlds"
    assert (
        "2 episodes of the same task, seed and init state are left out" in comparison.warnings[-1]
    )
    assert (comparison.left_out_a, comparison.left_out_b) == (2, 2)
    task = Task("suite", b[0].task_id, "push", "do it", 10, 10)
    plan = [EpisodeSpec(task, row.episode_index, row.seed, world=row.world) for row in b]
    bet_on = planned_partners(plan, a_run("a", a))
    assert sorted(index for _, _, index in bet_on) == [0, 2], "--against bets on pairs only, too"


def test_a_run_of_an_older_format_is_said_to_tell_less() -> None:
    a, b = a_run("a", rows("push", "ss")), a_run("b", rows("push", "ss"), format=2)
    (warning,) = compare(a, b, Criteria()).warnings
    assert warning.startswith("one run is of an older Proctor")


def test_a_difference_in_latency_is_said_and_so_are_policies_that_are_alike() -> None:
    a, late = a_run("a", rows("push", "ss")), a_run("b", rows("push", "ss"))
    protocol = {**a.record.protocol, "eval": {"latency_steps": 4}}
    late = replace(late, record=replace(a.record, protocol=protocol))
    same = replace(late, record=a.record)
    assert "--eval.latency_steps is not set in A, 4 in B" in comparison_lines(
        compare(a, late, Criteria())
    )
    alike = "the policies of A and B are defined alike"
    assert alike in comparison_lines(compare(a, same, Criteria()))
    assert alike not in comparison_lines(compare(a, late, Criteria()))


def test_one_of_many_runs_must_differ_by_more() -> None:
    """Six pairs that only B solves: p=0.031 alone, and by chance in one of four runs more often."""
    a, b = a_run("a", rows("push", "f" * 6 + "s" * 20)), a_run("b", rows("push", "s" * 26))
    same = [a_run(f"same-{i}", a.rows) for i in range(3)]
    alone, among = compare(a, b, Criteria()), compare_all([a, b, *same], Criteria())[0]
    assert alone.overall.p_value == among.overall.p_value == pytest.approx(2 / 2**6)
    assert alone.differs
    assert alone.changed(1)
    assert among.overall.p_holm == pytest.approx(4 * 2 / 2**6)
    assert not among.differs
    assert not among.changed(1)
    assert alone.detectable is not None
    assert among.detectable is not None
    assert among.detectable > alone.detectable
    assert "points, p=0.125 (Holm over 4 runs; p=0.031 alone)" in comparison_lines(among)[2]


@pytest.mark.parametrize(
    ("comparisons", "n"), [(100, 10), pytest.param(1000, 25, marks=pytest.mark.slow)]
)
def test_five_equal_runs_are_called_different_in_at_most_alpha_of_comparisons(
    comparisons: int, n: int
) -> None:
    rng = np.random.default_rng(12)
    overall = tasks = gate = uncorrected = 0
    for _ in range(comparisons):
        runs = [a_run(f"run-{i}", drawn(rng, [0.5, 0.7], n, 1000)) for i in range(5)]
        found = compare_all(runs, Criteria(alpha=ALPHA))
        overall += any(one.differs for one in found)
        tasks += any(one.changed(1) or one.changed(-1) for one in found)
        gate += any(one.is_worse for one in found)
        uncorrected += any((one.overall.p_value or 0) <= ALPHA for one in found)
    assert max(overall, tasks, gate) <= ALPHA * comparisons
    assert uncorrected > ALPHA * comparisons, "the test can tell a correction from none"


def test_a_run_of_several_differs_exactly_if_its_interval_excludes_0() -> None:
    """Alone, run 2 differs; corrected for four runs it does not, and its interval is wider."""
    a = a_run("a", rows("push", "s" * 6 + "f" * 14))
    outcomes = ("s" * 20, "s" * 12 + "f" * 8, "s" * 7 + "f" * 13, "f" * 20)
    found = compare_all([a, *(a_run(f"run-{o}", rows("push", o)) for o in outcomes)], Criteria())
    alone = compare(a, a_run("b", rows("push", outcomes[1])), Criteria())
    assert alone.verdict == "better"
    assert [one.verdict for one in found] == ["better", "undecided", "undecided", "undecided"]
    for one in (*found, alone):
        low, high = one.interval or (0, 0)
        assert one.differs == (low > 0 or high < 0)
        assert one.differs == (one.p_value is not None and one.p_value <= ALPHA)
    assert (found[1].interval or (0, 0))[0] < (alone.interval or (0, 0))[0]


def test_the_gate_is_corrected_for_the_number_of_runs() -> None:
    a = a_run("a", rows("push", "s" * 50))
    b = a_run("b", rows("push", "f" * 5 + "s" * 45))
    same = [a_run(f"same-{i}", a.rows) for i in range(4)]
    assert compare(a, b, Criteria()).is_worse
    among = compare_all([a, b, *same], Criteria())
    assert 0.05 / 5 < among[0].p_worse <= 0.05
    assert among[0].p_worse_holm == pytest.approx(5 * among[0].p_worse)
    assert not any(one.is_worse for one in among)


def drawn(
    rng: np.random.Generator, rates: Sequence[float], n: int, seed: int
) -> list[EpisodeRecord]:
    of_all = []
    for i, rate in enumerate(rates):
        outcomes = "".join("s" if won else "f" for won in rng.random(n) < rate)
        of_all += rows(f"task-{i}", outcomes, seed)
    return of_all


@pytest.mark.parametrize(
    ("paired", "comparisons"),
    [
        (True, 200),
        pytest.param(True, 500, marks=pytest.mark.slow),
        pytest.param(False, 500, marks=pytest.mark.slow),
    ],
)
def test_a_policy_against_itself_raises_at_most_alpha_false_alarms(
    paired: bool, comparisons: int
) -> None:
    """Paired: the same seeds, other policy noise. Not paired: other seeds."""
    rng = np.random.default_rng(6)
    rates = [0.15, 0.5, 0.7, 0.95]
    overall = tasks = gate = 0
    for _ in range(comparisons):
        a = a_run("a", drawn(rng, rates, 25, 1000))
        b = a_run("b", drawn(rng, rates, 25, 1000 if paired else 9000))
        comparison = compare(a, b, Criteria(alpha=ALPHA, paired=paired))
        assert comparison.overall.p_value is not None
        overall += comparison.overall.p_value <= ALPHA
        tasks += bool(comparison.changed(1) or comparison.changed(-1))
        gate += comparison.is_worse
    assert max(overall, tasks, gate) <= ALPHA * comparisons
    assert overall > 0, "a test that never decides would pass, too"


def test_a_policy_that_became_worse_is_caught_by_the_gate() -> None:
    rng = np.random.default_rng(7)
    caught = 0
    for _ in range(50):
        a = a_run("a", drawn(rng, [0.8, 0.9], 60, 1000))
        b = a_run("b", drawn(rng, [0.6, 0.7], 60, 1000))
        caught += compare(a, b, Criteria(margin=0.02)).is_worse
    assert caught >= 45
