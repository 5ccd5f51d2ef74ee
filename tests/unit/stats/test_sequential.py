"""Early stopping: checking after every round stays valid, and a stopped run is complete."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest
from scipy import integrate

from proctor.callbacks.early_stopping import EarlyStopping
from proctor.engine.scheduler import Scheduler, SchedulerLimits
from proctor.errors import UsageError
from proctor.evaluation.run import Evaluation
from proctor.report.run.page_data import page_data
from proctor.report.run.run import load_run
from proctor.report.run.summary import ANYTIME
from proctor.runs.folder import RunFolder
from proctor.runs.journal import JOURNAL_FILE, read_journal
from proctor.stats.anytime import AnytimeInterval, anytime_interval, monitored_rates
from proctor.stats.rates import wilson_interval
from proctor.stats.stopping import (
    CIWidth,
    EpisodeOutcome,
    PairedTest,
    StopRule,
    e_value,
    parse_stop_rule,
)
from proctor.types import EpisodeKey, EpisodeResult, EpisodeSpec, EpisodeStart, Outcome, Task
from tests.conftest import digests
from tests.refusals import refuses

ALPHA = 0.05
WON, LOST = Outcome.SUCCESS, Outcome.FAILURE


def outcome(won: bool) -> Outcome:
    return WON if won else LOST


def plan(n_tasks: int, n_episodes: int) -> list[EpisodeSpec]:
    tasks = [Task("suite", i, f"task-{i}", "do it", 10, 10) for i in range(n_tasks)]
    return [EpisodeSpec(task, index, index) for task in tasks for index in range(n_episodes)]


def heard(outcomes: Mapping[EpisodeKey, Outcome], n_starts: int = 10**6) -> list[EpisodeOutcome]:
    """Report outcomes; episodes whose indices differ by ``n_starts`` share a start."""
    return [
        EpisodeOutcome((suite, task, i), started(suite, task, i % n_starts), ended)
        for (suite, task, i), ended in outcomes.items()
    ]


def started(suite: str, task: int, start: int) -> EpisodeStart:
    return EpisodeStart((suite, task), False, str(start), start, None, None)


def verdict(test: PairedTest, rounds: Iterator[Sequence[EpisodeOutcome]]) -> str:
    """Check after every round and stop at the first decision."""
    for episodes in rounds:
        test.on_round_end(episodes)
        if test.decision is not None:
            return test.decision.split()[0]
    return "undecided"


def simulated(rng: np.random.Generator, rates: Sequence[tuple[float, float]], n_rounds: int) -> str:
    """Compare two policies with these success rates (A, B) in each task."""
    draws = rng.random((n_rounds, len(rates), 2)) < np.array(rates)
    keys = [[("suite", t, i) for t in range(len(rates))] for i in range(n_rounds)]
    reference = {
        key: outcome(won)
        for of_round, of_a in zip(keys, draws[:, :, 0], strict=True)
        for key, won in zip(of_round, of_a, strict=True)
    }
    rounds = (
        heard({key: outcome(won) for key, won in zip(of_round, of_b, strict=True)})
        for of_round, of_b in zip(keys, draws[:, :, 1], strict=True)
    )
    return verdict(PairedTest(heard(reference), "A", ALPHA), rounds)


@pytest.mark.parametrize("comparisons", [500, pytest.param(2000, marks=pytest.mark.slow)])
def test_looking_after_every_pair_raises_at_most_alpha_false_alarms(comparisons: int) -> None:
    rng = np.random.default_rng(1)
    verdicts = Counter(simulated(rng, [(0.5, 0.5)], 150) for _ in range(comparisons))
    assert verdicts["better"] + verdicts["worse"] <= ALPHA * comparisons
    assert verdicts["better"] > 0, "a test that never decides would pass, too"
    assert verdicts["worse"] > 0


def test_tasks_that_differ_but_not_on_average_raise_no_more_false_alarms() -> None:
    rng = np.random.default_rng(2)
    rates = [(0.2, 0.7), (0.9, 0.4), (0.6, 0.6)]
    verdicts = Counter(simulated(rng, rates, 40) for _ in range(500))
    assert verdicts["better"] + verdicts["worse"] <= ALPHA * 500


@pytest.mark.parametrize(("rates", "word"), [((0.5, 0.75), "better"), ((0.75, 0.5), "worse")])
def test_a_difference_is_found_and_mostly_long_before_the_budget(
    rates: tuple[float, float], word: str
) -> None:
    rng = np.random.default_rng(3)
    verdicts = Counter(simulated(rng, [rates], 200) for _ in range(100))
    assert verdicts[word] > 0.9 * 100


def result(spec: EpisodeSpec, ended: Outcome) -> EpisodeResult:
    return EpisodeResult(spec, ended)


def test_counting_episodes_as_they_end_would_favour_successes_and_rounds_do_not() -> None:
    """Two equal policies, 32 episodes at once; a success ends the episode, a failure runs on."""
    rng = np.random.default_rng(4)
    specs, naive, fair = plan(1, 32), 0, 0
    for _ in range(300):
        reference = [
            EpisodeOutcome(spec.key, spec.started, outcome(rng.random() < 0.5)) for spec in specs
        ]
        results = [result(spec, outcome(rng.random() < 0.5)) for spec in specs]
        as_they_end = sorted(results, key=lambda one: (one.outcome is LOST, rng.random()))
        rounds = ([EpisodeOutcome(one.key, one.started, one.outcome)] for one in as_they_end)
        naive += verdict(PairedTest(reference, "A", ALPHA), rounds) in ("better", "worse")
        early_stopping = EarlyStopping(specs, [PairedTest(reference, "A", ALPHA)])
        for one in as_they_end:
            early_stopping.on_episode_end(one)
        fair += str(early_stopping.decision).startswith(("better", "worse"))
    assert naive > 0.2 * 300
    assert fair <= ALPHA * 300


@pytest.mark.parametrize(
    ("wins", "losses"), [(0, 0), (5, 0), (0, 5), (12, 7), (40, 80), (300, 200)]
)
def test_the_evidence_is_the_mean_capital_over_all_stakes(wins: int, losses: int) -> None:
    expected, _ = integrate.quad(lambda s: (1 + s) ** wins * (1 - s) ** losses, 0, 1, limit=200)
    assert e_value(wins, losses) == pytest.approx(expected, rel=1e-7)


def test_the_evidence_is_a_fair_game() -> None:
    for wins, losses in [(0, 0), (3, 1), (2, 9)]:
        mean = (e_value(wins + 1, losses) + e_value(wins, losses + 1)) / 2
        assert mean == pytest.approx(e_value(wins, losses))


def test_overwhelming_evidence_does_not_overflow() -> None:
    assert e_value(5000, 0) > 1e300
    assert e_value(0, 5000) < 1e-3


def test_pairs_with_an_error_say_nothing_and_all_pairs_used_up_is_undecided() -> None:
    keys: list[EpisodeKey] = [("suite", 0, i) for i in range(3)]
    test = PairedTest(heard({keys[0]: WON, keys[1]: Outcome.ERROR, keys[2]: WON}), "A", ALPHA)
    test.on_round_end(heard({keys[0]: Outcome.ERROR, keys[1]: LOST}))
    assert test.decision is None
    test.on_round_end(heard({keys[2]: WON, ("suite", 0, 3): LOST}))
    assert test.decision == "undecided against A at alpha 0.05 after 1 pair, 0 won to 0 lost"


def test_an_episode_that_diverged_is_lost_to_one_that_succeeded() -> None:
    keys: list[EpisodeKey] = [("suite", 0, i) for i in range(3)]
    broke = Outcome.DIVERGED
    test = PairedTest(heard({keys[0]: WON, keys[1]: broke, keys[2]: LOST}), "A", ALPHA)
    test.on_round_end(heard({keys[0]: broke, keys[1]: WON, keys[2]: broke}))
    assert (test.wins_a, test.wins_b) == (1, 1)
    assert test.decision == "undecided against A at alpha 0.05 after 3 pairs, 1 won to 1 lost"


class Rounds:
    """A stop rule that records its rounds and decides after ``enough`` of them."""

    def __init__(self, enough: int) -> None:
        self.heard: list[dict[EpisodeKey, Outcome]] = []
        self._enough = enough

    def on_round_end(self, episodes: Sequence[EpisodeOutcome]) -> None:
        self.heard.append({one.key: one.outcome for one in episodes})

    @property
    def decision(self) -> str | None:
        return "enough" if len(self.heard) >= self._enough else None


def test_rules_hear_whole_rounds_in_order_and_nothing_after_their_decision() -> None:
    specs, rule = plan(2, 4), Rounds(enough=2)
    early_stopping = EarlyStopping(specs, [rule])
    first, second = specs[:4], specs[4:]
    for spec in [*first, second[1]]:
        early_stopping.on_episode_end(result(spec, WON))
    assert rule.heard == []
    assert not early_stopping.decided
    early_stopping.on_episode_end(result(second[0], LOST))
    assert [set(heard) for heard in rule.heard] == [
        {("suite", 0, 0), ("suite", 1, 0)},
        {("suite", 0, 1), ("suite", 1, 1)},
    ]
    assert rule.heard[0] == {("suite", 0, 0): WON, ("suite", 1, 0): LOST}
    assert early_stopping.decision == "enough"
    early_stopping.on_episode_end(result(second[2], LOST))
    assert len(rule.heard) == 2


def feed(rule: StopRule, rounds: range, *tasks: Outcome, n_starts: int = 10**6) -> None:
    for index in rounds:
        outcomes = {("suite", t, index): ended for t, ended in enumerate(tasks)}
        rule.on_round_end(heard(outcomes, n_starts))


def test_ci_width_stops_when_the_interval_of_all_episodes_is_narrow() -> None:
    rule = CIWidth(0.05)
    feed(rule, range(71), WON, WON)
    assert rule.decision is None
    feed(rule, range(71, 72), WON, WON)
    assert rule.decision == "ci_width 0.0365 < 0.05 after 144 episodes"


def test_task_ci_width_waits_for_the_task_that_is_least_known() -> None:
    rule = CIWidth(0.2, per_task=True)
    feed(rule, range(20), WON, Outcome.ERROR)
    assert rule.decision is None
    feed(rule, range(20, 40), LOST, WON)
    assert rule.decision is None, "the first task is at one half now"
    feed(rule, range(40, 180), WON, WON)
    assert rule.decision is not None


def test_a_world_played_again_makes_no_interval_narrower() -> None:
    rule = CIWidth(0.2)
    feed(rule, range(1000), WON, n_starts=10)
    assert rule.decision is None
    feed(rule, range(1000, 1030), WON)
    assert rule.decision is not None


def coverage_at_the_stop(rates: Sequence[float], width: float) -> float:
    """Return the exact coverage of the interval of a stopped run: the mean of the tasks' rates.

    Enumerates (episodes, successes) with non-negligible probability; where the run stops, checks
    whether the interval covers the mean. A round has one episode of every task.
    """
    mean, n_tasks = float(np.mean(rates)), len(rates)
    of_round = np.array([1.0])
    for rate in rates:
        of_round = np.convolve(of_round, [1 - rate, rate])
    alive, n, covered, lost = np.array([1.0]), 0, 0.0, 0.0
    while alive.sum() > 1e-7:
        alive, n = np.convolve(alive, of_round), n + n_tasks
        for k in np.flatnonzero(alive):
            if alive[k] < 1e-12:
                lost += alive[k]
                alive[k] = 0.0
                continue
            low, high = interval(int(k), n, width)
            if high - low < width:
                covered += alive[k] * (low <= mean <= high)
                alive[k] = 0.0
    assert lost < 1e-4
    return float(covered)


@cache
def interval(successes: int, n: int, width: float) -> tuple[float, float]:
    ends = anytime_interval(successes, n, width)
    assert ends is not None
    return ends


@pytest.mark.parametrize("width", [0.4, 0.3, 0.2])
@pytest.mark.parametrize(
    "rates",
    [(0.02,), (0.1,), (0.3,), (0.5,), (0.93,), (0.1, 0.9), (0.5, 0.5, 0.95), (1.0, 0.8, 0.0, 0.4)],
)
def test_an_interval_reached_by_ci_width_covers_in_95_percent_of_runs_by_exact_calculation(
    rates: tuple[float, ...], width: float
) -> None:
    assert coverage_at_the_stop(rates, width) >= 0.95


def test_wilsons_interval_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "interval", lambda k, n, width: wilson_interval(k, n))
    assert coverage_at_the_stop((0.3,), 0.3) < 0.93


@pytest.mark.parametrize("width", [0.05, 0.3, None])
def test_what_an_anytime_interval_leaves_out_lies_below_and_above_it_and_never_inside(
    width: float | None,
) -> None:
    for k, n in [(0, 30), (1, 30), (15, 30), (29, 30), (30, 30), (180, 200)]:
        ends, turned = anytime_interval(k, n, width), anytime_interval(n - k, n, width)
        assert ends is not None
        assert turned is not None
        assert 0 <= ends[0] <= k / n <= ends[1] <= 1
        assert turned == pytest.approx((1 - ends[1], 1 - ends[0]))
    assert anytime_interval(0, 0, width) is None


def test_an_interval_for_any_moment_covers_at_every_look_in_95_percent_of_runs() -> None:
    rng = np.random.default_rng(8)
    for rate in (0.05, 0.5):
        missed = 0
        for _ in range(300):
            wins = np.cumsum(rng.random(150) < rate)
            looks = (robbins(int(k), n) for n, k in enumerate(wins, start=1))
            missed += any(not low <= rate <= high for low, high in looks)
        assert missed <= ALPHA * 300


@cache
def robbins(successes: int, n: int) -> tuple[float, float]:
    ends = anytime_interval(successes, n, None)
    assert ends is not None
    return ends


def test_what_watched_a_run_is_read_from_its_settings() -> None:
    assert monitored_rates({"eval": {"stop_when": "never"}, "against": None}).overall is None
    assert monitored_rates({}).overall is None
    one = monitored_rates({"eval": {"stop_when": " ci_width < 0.1"}})
    assert (one.overall and one.overall.width, one.task and one.task.width) == (0.1, None)
    each = monitored_rates({"eval": {"stop_when": "task_ci_width<0.2"}, "against": "there"})
    assert (each.overall and each.overall.width, each.task and each.task.width) == (None, 0.2)
    assert monitored_rates({"eval": {"stop_when": "never"}, "against": "there"}).overall is not None
    for text in ("ci_width<-1", "ci_width<nan", "soon", ["x"], 7):  # a run.json by somebody else
        assert monitored_rates({"eval": {"stop_when": text}}).overall == AnytimeInterval()


@pytest.mark.parametrize("text", ["ci_width<0.05", " ci_width < 5e-2 ", "task_ci_width<0.2"])
def test_stop_rules_are_read_from_text(text: str) -> None:
    assert isinstance(parse_stop_rule(text), CIWidth)


def test_never_is_no_rule() -> None:
    assert parse_stop_rule("never") is None


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        ("soon", "flag.invalid-value", "ci_width<0.05"),
        ("ci_width>0.05", "flag.invalid-value", "ci_width<0.05"),
        ("ci_widht<0.05", "flag.invalid-value", "did you mean 'ci_width'?"),
        ("reward<3", "flag.invalid-value", "ci_width<0.05"),
        ("ci_width<5", "flag.out-of-range", "ci_width<0.05"),
        ("ci_width<0.0.5", "flag.out-of-range", "0.0.5"),
    ],
)
def test_an_unknown_stop_rule_is_one_line_with_examples(text: str, code: str, named: str) -> None:
    with refuses(UsageError, code) as refused:
        parse_stop_rule(text)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_interleaved_tasks_stay_within_three_episodes_of_each_other(workers: int) -> None:
    scheduler = Scheduler(plan(3, 9), SchedulerLimits(max_batch=1, interleave=True))
    started = Counter({0: 0, 1: 0, 2: 0})
    has_open: dict[int, int] = {}
    opened = 0
    for turn in range(27):
        worker = turn % workers
        spec = scheduler.assign(worker)
        assert spec is not None
        scheduler.finish(worker)
        opened += has_open.get(worker) != spec.task.task_id
        has_open[worker] = spec.task.task_id
        started[spec.task.task_id] += 1
        assert max(started.values()) - min(started.values()) <= 3
    assert opened <= 15, "a simulator that is open is used again"


def test_a_worker_per_task_keeps_its_simulator_while_interleaving() -> None:
    scheduler = Scheduler(plan(2, 3), SchedulerLimits(max_batch=2, interleave=True))
    kept: dict[int, set[int]] = {0: set(), 1: set()}
    for _ in range(3):
        for worker in kept:
            spec = scheduler.assign(worker)
            assert spec is not None
            kept[worker].add(spec.task.task_id)
        for worker in kept:
            scheduler.finish(worker)
    assert kept == {0: {0}, 1: {1}}


def test_a_stop_completes_the_rounds_that_have_begun_and_no_other() -> None:
    scheduler = Scheduler(plan(2, 3), SchedulerLimits(max_batch=1))
    scheduler.assign(0)
    scheduler.finish_rounds()
    other = scheduler.assign(1)
    assert other is not None
    assert other.index == 0
    assert scheduler.assign(2) is None
    _, again = scheduler.fail(0)
    assert again, "an episode in flight that breaks is tried again"
    assert scheduler.assign(0) is not None
    scheduler.finish(0)
    scheduler.finish(1)
    assert scheduler.done


STOPPING = {"policy__type": "expert", "env__n_tasks": 3, "eval__n_episodes": 60}


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_stopped_run_is_balanced_says_why_and_can_be_completed(
    run: Callable[..., Evaluation], batch_size: int
) -> None:
    stopped = run(**STOPPING, eval__stop_when="ci_width<0.1", eval__batch_size=batch_size)
    assert stopped.stopped == "ci_width 0.0895 < 0.1 after 69 episodes"  # 23 rounds of 3
    assert 69 <= len(stopped.rows) < 180
    assert not stopped.complete
    per_task = Counter(row.task for row in stopped.rows)
    assert len(per_task) == 3
    assert len(set(per_task.values())) == 1, "as many episodes of every task"
    info = json.loads((stopped.path / "eval_info.json").read_text())
    assert info["proctor"]["stopped"] == stopped.stopped
    assert info["proctor"]["complete"] is False
    assert info["proctor"]["interval"].startswith("anytime-valid")
    assert info["overall"]["pc_success_wilson95"] is None
    low, high = info["overall"]["pc_success_interval95"]
    assert high - low < 10
    assert f"[{low:.1f}, {high:.1f}]" in str(stopped.tally)
    page = page_data(load_run(stopped.path))
    assert page["stopped"] == stopped.stopped
    assert page["overall"]["interval"] == pytest.approx([low / 100, high / 100], abs=1e-6)

    words = {"output_dir": str(stopped.path), "resume": True, **STOPPING}
    again = run(**words, eval__stop_when="ci_width<0.1")
    assert digests(again) == digests(stopped), "nothing was left to decide"
    completed = run(**words)
    assert completed.complete
    assert completed.stopped is None
    assert page_data(load_run(stopped.path))["interval"] == ANYTIME, "the rule decided"
    assert digests(completed) == digests(run(**STOPPING))


def test_a_resume_completes_the_rounds_that_earlier_sessions_began_and_no_other(
    run: Callable[..., Evaluation],
) -> None:
    """The run was killed in a round, so that round has only its quick episodes."""
    rule = {**STOPPING, "eval__stop_when": "ci_width<0.2", "eval__batch_size": 4}
    whole = run(**STOPPING, eval__batch_size=1)
    stopped = run(**rule)
    decided = stopped.rows[-1].episode_index
    journal, begun = stopped.path / JOURNAL_FILE, decided + 2
    lines = {row.key: msgspec.json.encode(row) + b"\n" for row in whole.rows}
    kept = [line for (_, _, index), line in lines.items() if index <= decided]
    journal.write_bytes(b"".join([*kept, lines["point", 1, begun]]))
    again = run(**rule, output_dir=str(stopped.path), resume=True)
    assert {row.key for row in again.rows} == {key for key in lines if key[2] <= begun}
    assert digests(again) == {key: digests(whole)[key] for key in digests(again)}
    assert again.stopped == stopped.stopped


def test_a_stop_in_a_resumed_session_completes_what_others_began() -> None:
    specs = [spec for spec in plan(2, 6) if spec.key != ("suite", 0, 3)]
    left = [spec for spec in specs if spec.index > 1]  # an earlier session left one of round 3
    scheduler = Scheduler(left, SchedulerLimits(max_batch=1, interleave=True, last_begun=3))
    assert scheduler.assign(0) is not None
    scheduler.finish_rounds()
    scheduler.finish(0)
    rest = []
    while (spec := scheduler.assign(0)) is not None:
        rest.append(spec.key)
        scheduler.finish(0)
    assert scheduler.done
    assert sorted(rest) == [("suite", 1, 2), ("suite", 1, 3)]


def test_no_round_begins_before_those_of_earlier_sessions_have_ended() -> None:
    left = [spec for spec in plan(2, 4) if spec.index > 0 or spec.task.task_id == 1]
    scheduler = Scheduler(left, SchedulerLimits(max_batch=2, interleave=True, last_begun=0))
    first = scheduler.assign(0)
    assert first is not None
    assert first.key == ("suite", 1, 0)
    assert scheduler.assign(1) is None, "what the first will say may be enough"
    scheduler.finish(0)
    assert scheduler.assign(1) is not None


def test_no_finished_episode_is_lost_when_a_run_stops(run: Callable[..., Evaluation]) -> None:
    stopped = run(**STOPPING, eval__stop_when="ci_width<0.2", eval__batch_size=3)
    journal = read_journal(stopped.path)
    assert journal.damaged == []
    assert {row.key for row in journal.rows} == {row.key for row in stopped.rows}
    started = {(row.task_id, row.episode_index) for row in stopped.rows}
    for task, index in started:
        assert index == 0 or (task, index - 1) in started, "episodes in flight are finished"


def test_a_run_against_another_stops_when_it_is_shown_to_be_better(
    run: Callable[..., Evaluation],
) -> None:
    load = {
        "env__n_tasks": 2,
        "eval__n_episodes": 40,
        "eval__use_async_envs": False,
        "eval__batch_size": 1,
    }
    reference = run(**load, policy__type="zero")
    better = run(**load, policy__type="expert", against=str(reference.path))
    assert str(better.stopped).startswith(
        f"better than {reference.path} at alpha 0.05 after 8 pairs"
    )
    assert len(better.rows) < 20
    worse = run(**load, policy__type="zero", against=str(better.path))
    assert str(worse.stopped).startswith(f"worse than {better.path}")


def test_a_policy_against_itself_uses_up_the_pairs_and_is_undecided(
    run: Callable[..., Evaluation],
) -> None:
    reference = run(eval__n_episodes=5)
    # Many: on a busy machine one worker may be far ahead when the other ends the last pair.
    again = run(eval__n_episodes=40, against=str(reference.path))
    assert str(again.stopped).startswith("undecided against")
    assert len(again.rows) < 40, "episodes that have no partner are not run"


def test_worlds_that_repeat_raise_no_more_false_alarms() -> None:
    """Two equal deterministic policies on ten worlds: a hundred rounds repeat ten."""
    rng, alarms, naive = np.random.default_rng(9), 0, 0
    for _ in range(300):
        won = rng.random((10, 2)) < 0.5
        of_a, of_b = (
            {("suite", 0, i): outcome(won[i % 10, side]) for i in range(100)} for side in (0, 1)
        )
        for n_starts in (10, 100):
            test = PairedTest(heard(of_a, n_starts), "A", ALPHA)
            said = verdict(test, ([one] for one in heard(of_b, n_starts)))
            if n_starts == 10:
                alarms += said in ("better", "worse")
            else:
                naive += said in ("better", "worse")
    assert alarms <= ALPHA * 300
    assert naive > 0.2 * 300, "counted as if each were new"


def test_when_no_new_world_is_left_to_bet_on_it_is_undecided() -> None:
    outcomes = {("suite", 0, i): WON for i in range(6)}
    test = PairedTest(heard(outcomes, 3), "A", ALPHA)
    for one in heard(outcomes, 3)[:3]:
        assert test.decision is None
        test.on_round_end([one])
    assert str(test.decision).endswith("after 3 pairs, 0 won to 0 lost")


def test_only_rounds_that_the_reference_holds_of_every_task_are_bet_on(
    run: Callable[..., Evaluation],
) -> None:
    """An unfinished reference ran its tasks one after the other: 40 of the first, 2 of the next."""
    load = {
        "env__n_tasks": 2,
        "eval__n_episodes": 40,
        "eval__batch_size": 1,
        "eval__use_async_envs": False,
    }
    reference = run(**load, policy__type="zero")
    journal = reference.path / JOURNAL_FILE
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:42]))
    against = run(**load, policy__type="expert", against=str(reference.path))
    assert "undecided" in str(against.stopped)
    assert "after 4 pairs, 4 won to 0 lost" in str(against.stopped)

    journal.write_bytes(b"".join(lines[:40]))
    with pytest.raises(UsageError) as refusal:
        run(**load, policy__type="expert", against=str(reference.path))
    assert "episode 0 of all 2" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (reference.path.parent / "run2").exists()


def test_past_a_gap_an_interrupted_reference_holds_quick_episodes_only(
    run: Callable[..., Evaluation],
) -> None:
    load = {"eval__n_episodes": 40, "eval__batch_size": 1, "eval__use_async_envs": False}
    reference = run(**load, policy__type="zero")
    journal = reference.path / JOURNAL_FILE
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:3] + lines[4:]))
    against = run(**load, policy__type="expert", against=str(reference.path))
    assert "after 3 pairs" in str(against.stopped)


def test_a_run_that_goes_on_without_its_rule_has_not_stopped(
    run: Callable[..., Evaluation],
) -> None:
    stopped = run(**STOPPING, eval__stop_when="ci_width<0.3")
    assert page_data(load_run(stopped.path))["stopped"] == stopped.stopped
    folder = RunFolder(stopped.path)
    record = folder.read()
    assert record is not None
    settings = {**record.resolved["eval"], "stop_when": "never"}
    folder.write(replace(record, resolved={**record.resolved, "eval": settings}))  # it begins
    assert page_data(load_run(stopped.path))["stopped"] is None


def test_a_run_interrupted_amid_its_rounds_says_so(run: Callable[..., Evaluation]) -> None:
    stopped = run(**STOPPING, eval__stop_when="ci_width<0.3")
    assert page_data(load_run(stopped.path))["warnings"] == []
    journal = stopped.path / JOURNAL_FILE
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]))
    (warning,) = page_data(load_run(stopped.path))["warnings"]
    assert warning.startswith("1 episode missing")


def test_a_reference_without_the_planned_episodes_is_refused_before_anything_starts(
    run: Callable[..., Evaluation],
) -> None:
    reference = run()
    with pytest.raises(UsageError) as refusal:
        run(against=str(reference.path), seed=5000)
    assert f"--against: {reference.path}" in str(refusal.value)
    assert not (reference.path.parent / "run1").exists()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"eval__scheduler": "lockstep"}, "lockstep"),
        ({"env__max_parallel_tasks": 1}, "--env.max_parallel_tasks=1"),
        ({"alpha": 0.7}, "--alpha must be from 1e-09 to below 0.5, got 0.7"),
        ({"alpha": 1e-17}, "--alpha must be from 1e-09 to below 0.5, got 1e-17"),
    ],
)
def test_what_cannot_be_stopped_fairly_is_refused(
    run: Callable[..., Evaluation], flags: dict[str, object], named: str
) -> None:
    with pytest.raises(UsageError) as refused:
        run(eval__stop_when="ci_width<0.1", **flags)
    assert named in str(refused.value)


def test_a_run_without_a_stop_rule_keeps_no_episode_in_mind() -> None:
    specs = plan(1, 10_000)
    tracemalloc.start()
    try:
        early_stopping = EarlyStopping(specs, [])
        for spec in specs:
            early_stopping.add(EpisodeOutcome(spec.key, spec.started, WON))
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not early_stopping.decided
    assert kept_bytes < 10_000
