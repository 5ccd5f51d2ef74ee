"""Summarise episodes per task, per group and overall. Pure functions of journal records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any

from proctor.number_text import interval_text, percent_text
from proctor.runs.journal import EpisodeRecord
from proctor.stats.anytime import NOT_MONITORED, AnytimeInterval, MonitoredRates, rate_interval
from proctor.stats.independent_units import UnitCounts, independent_units
from proctor.stats.rates import (
    AverageRate,
    Interval,
    error_bounds,
    macro_average,
    micro_average,
    rate_text,
)
from proctor.stats.repeats import PassAll, pass_all
from proctor.stats.task_rates import is_stratified, suite_interval
from proctor.types import MAX_REWARD, Outcome, Score, keeps_minimum

POOLED = "Wilson"
STRATIFIED = "Wilson, stratified by task"
ANYTIME = "anytime-valid: it holds although results may have decided the number of episodes"


def is_anytime(kind: str) -> bool:
    """Tell whether a kind of interval, of this version or an older one, is anytime-valid."""
    return kind.startswith("anytime-valid")


@dataclass(frozen=True)
class Tally:
    """Totals of a set of episodes. Errored episodes do not count in the rate."""

    episodes: int
    successes: int
    diverged: int
    """Failed episodes in which the simulation diverged."""
    errors: int
    avg_sum_reward: float | None
    avg_max_reward: float | None
    steps: int
    mean_steps: float | None
    """Mean length of the completed episodes."""
    mean_steps_to_success: float | None
    """Mean over the successes only."""
    scores: Mapping[str, float | None]
    """Mean of each score of the benchmark, by name."""
    units: UnitCounts
    """Independent units of the completed episodes."""
    anytime: AnytimeInterval | None = None
    """Set if a stop rule monitors the rate."""
    units_at_end: UnitCounts | None = None
    """The same units, by success at the last step; None if it is not known."""
    judged: bool = True
    """Whether the environment defines success; otherwise there are rewards only."""

    @property
    def rate(self) -> float | None:
        """The success rate; None without completed episodes or without a definition of success."""
        return self.successes / self.episodes if self.episodes and self.judged else None

    @property
    def interval(self) -> Interval | None:
        """The rate's 95% interval; None without a rate."""
        if not self.judged:
            return None
        return self.interval_after(1)

    def interval_after(self, factor: float) -> Interval | None:
        """Return the interval of so many times as many episodes with the same rates."""
        return rate_interval(self.units, self.anytime, factor)

    @property
    def suite_interval(self) -> Interval | None:
        """The 95% interval of the mean rate over tasks like these.

        None with fewer than three tasks, and if a stop rule monitors the rate.
        """
        if not self.judged or self.anytime is not None:
            return None
        return suite_interval(self.units.total, self.units.tasks)

    @property
    def interval_kind(self) -> str:
        """Which 95% interval the rate has."""
        if self.anytime is not None:
            return ANYTIME
        return STRATIFIED if is_stratified(self.units.tasks) else POOLED

    @property
    def at_end(self) -> int | None:
        """Episodes that were solved at their last step; None if it is not known."""
        return None if self.units_at_end is None else round(self.units_at_end.total.successes)

    @property
    def rate_at_end(self) -> float | None:
        """The rate of episodes that were solved at their last step; None if it is not known."""
        if self.at_end is None or not self.episodes or not self.judged:
            return None
        return self.at_end / self.episodes

    @property
    def interval_at_end(self) -> Interval | None:
        """The 95% interval of the rate at the end, corrected for shared starts."""
        if self.units_at_end is None or self.rate_at_end is None:
            return None
        return rate_interval(self.units_at_end, None)

    @property
    def differs_at_end(self) -> bool:
        """Whether an episode was solved and then undone."""
        return self.at_end is not None and self.judged and self.at_end != self.successes

    @property
    def bounds(self) -> Interval | None:
        """The rate if all errored episodes had failed, or all succeeded; None without errors."""
        return error_bounds(self.successes, self.episodes, self.errors) if self.judged else None

    def __str__(self) -> str:
        if not self.judged and self.avg_sum_reward is not None:
            return f"{self.brief}, mean reward {self.avg_sum_reward:.1f}"
        if self.bounds is None or self.rate is None:
            return self.brief
        low, high = map(percent_text, self.bounds)
        they = "it" if self.errors == 1 else "they"
        return f"{self.brief} ({low} to {high} if {they} had counted)"

    @property
    def brief(self) -> str:
        """The rate, its interval and the counts as text, without the bounds: for a table row."""
        diverged = f", {self.diverged} diverged" if self.diverged else ""
        text = f"not judged n={self.episodes}"
        if self.judged:
            text = rate_text(self.successes, self.episodes, self.units, self.interval)
        return text + diverged + self.errors_text

    @property
    def errors_text(self) -> str:
        """``, 2 errors``; empty without errors."""
        return f", {self.errors} error{'s' * (self.errors != 1)}" if self.errors else ""


def tally(rows: Iterable[EpisodeRecord], anytime: AnytimeInterval | None = None) -> Tally:
    """Summarise episodes; ``anytime`` is set if a stop rule monitors their rate."""
    rows = sorted(rows, key=lambda row: row.key)
    done = [row for row in rows if row.outcome.counts]
    solved = [row for row in done if row.outcome is Outcome.SUCCESS]
    units = UnitCounts((row, row.outcome is Outcome.SUCCESS) for row in done)
    return Tally(
        episodes=len(done),
        successes=len(solved),
        diverged=sum(row.outcome is Outcome.DIVERGED for row in done),
        errors=len(rows) - len(done),
        avg_sum_reward=_mean(row.sum_reward for row in done),
        avg_max_reward=_mean(row.max_reward for row in done),
        steps=sum(row.steps or 0 for row in done),
        mean_steps=_mean(row.steps for row in done),
        mean_steps_to_success=_mean(map(_steps_to_success, solved)),
        scores=_mean_scores(done),
        units=units,
        anytime=anytime,
        units_at_end=_units_at_end(done, units),
        judged=all(row.outcome is not Outcome.ENDED for row in done),
    )


def _units_at_end(done: Sequence[EpisodeRecord], units: UnitCounts) -> UnitCounts | None:
    """Return the units by success at the last step: ``units`` if no episode ended otherwise."""
    if any(row.success_at_end is None for row in done):
        return None
    if all(row.success_at_end is (row.outcome is Outcome.SUCCESS) for row in done):
        return units
    return UnitCounts((row, bool(row.success_at_end)) for row in done)


def clean_rows(rows: Iterable[EpisodeRecord]) -> list[EpisodeRecord]:
    """Return the episodes that a run's rate is about: the clean ones.

    If every episode is perturbed, it is about all of them.
    """
    rows = list(rows)
    return [row for row in rows if row.clean_task is None] or rows


def headline_of(rows: Iterable[EpisodeRecord]) -> str:
    """Return the name of a run's rate: it says if perturbed episodes are left out, or all."""
    kinds = {row.clean_task is not None for row in rows}
    if True not in kinds:
        return "success"
    return "success of the clean episodes" if False in kinds else "success, all perturbed"


def all_name(rows: Iterable[EpisodeRecord]) -> str:
    """Return the name of the row of totals in a table."""
    return "clean" if headline_of(rows) == "success of the clean episodes" else "all"


def score_column(name: str) -> str:
    """Return the name of a score's column: the best value over an episode's steps."""
    return f"{'min' if keeps_minimum(name) else 'max'}_{name}"


_MAX_K = 8


def pass_rates(rows: Iterable[EpisodeRecord]) -> list[PassAll]:
    """Return pass^k for every k from 2 to the episodes of a start; empty if no start repeats."""
    done = [row for row in clean_rows(rows) if row.outcome.counts]
    if any(row.outcome is Outcome.ENDED for row in done):
        return []
    counts = [
        (sum(row.outcome is Outcome.SUCCESS for row in unit), len(unit))
        for unit in independent_units(done)
    ]
    most = min(_MAX_K, max((n for _, n in counts), default=0))
    return [found for k in range(2, most + 1) if (found := pass_all(counts, k)) is not None]


def pass_text(found: Sequence[PassAll]) -> str | None:
    """Return pass^k as a line for a terminal; None if no start repeats."""
    if not found:
        return None
    parts = []
    for one in found:
        left = f", {one.left_out} left out" if one.left_out else ""
        parts.append(
            f"pass^{one.k} {percent_text(one.rate)} {interval_text(one.interval)} "
            f"({one.starts} start{'s' * (one.starts != 1)}{left})"
        )
    return "; ".join(parts)


def suite_text(added: Tally) -> str | None:
    """Return the interval of the mean over tasks like these as a line; None without one."""
    if added.suite_interval is None:
        return None
    return f"mean over tasks like these: {interval_text(added.suite_interval)}"


def at_end_text(added: Tally) -> str | None:
    """Return the rate at the end as a line; None if it is the success rate."""
    if not added.differs_at_end or added.at_end is None:
        return None
    rate = rate_text(added.at_end, added.episodes, added.units, added.interval_at_end)
    return f"solved at the end of the episode: {rate}"


def number_heads(scores: Sequence[Score]) -> list[str]:
    """Return the headers of a table's columns besides the success rate."""
    return ["reward", *(score.label for score in scores), "episode steps", "steps to success"]


def number_cells(added: Tally, scores: Sequence[Score]) -> list[str]:
    """Return the cells of the columns of ``number_heads``."""
    return [
        _shown(added.avg_sum_reward, 1),
        *(_shown(added.scores.get(score.name), 3) for score in scores),
        _shown(added.mean_steps, 0),
        _shown(added.mean_steps_to_success, 0),
    ]


def _shown(value: float | None, digits: int) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def by_task(rows: Iterable[EpisodeRecord]) -> dict[tuple[str, int], list[EpisodeRecord]]:
    """Group episodes by task, in the order of first appearance."""
    return _grouped(rows, lambda row: (row.suite, row.task_id))


def by_group(rows: Iterable[EpisodeRecord]) -> dict[str, list[EpisodeRecord]]:
    """Group episodes by suite."""
    return _grouped(rows, lambda row: row.suite)


def eval_info(
    rows: Sequence[EpisodeRecord],
    planned: int,
    sessions: Sequence[float],
    stopped: str | None = None,
    monitored: MonitoredRates = NOT_MONITORED,
    videos: Collection[str] = (),
) -> dict[str, Any]:
    """Return the content of ``eval_info.json``: LeRobot's schema and a section "proctor".

    Args:
        rows: the finished episodes.
        planned: number of planned episodes.
        sessions: start time of each session.
        stopped: why a stop rule ended the run early.
        monitored: which rates a stop rule monitors.
        videos: the existing videos. Their paths are relative to the run folder, so that they stay
            valid if the folder moves; LeRobot's are relative to the working directory.
    """
    metrics = partial(_metrics, videos=videos)
    rows = sorted(rows, key=lambda row: row.key)
    eval_s = working_seconds(rows, sessions)
    added = tally(clean_rows(rows), monitored.overall)
    overall = metrics(clean_rows(rows), added)
    overall |= {"eval_s": eval_s, "eval_ep_s": eval_s / len(rows) if rows else None}
    return {
        "per_task": [
            {
                "task_group": suite,
                "task_id": task_id,
                "metrics": _of_episodes(episodes)
                | metrics(episodes, tally(episodes, monitored.task)),
            }
            for (suite, task_id), episodes in by_task(rows).items()
        ],
        "per_group": {
            suite: metrics(episodes, tally(episodes, monitored.group))
            for suite, episodes in by_group(rows).items()
        },
        "overall": overall,
        "proctor": {
            **_proctor_section(rows, planned),
            "stopped": stopped,
            "interval": added.interval_kind,
        },
    }


def working_seconds(rows: Sequence[EpisodeRecord], sessions: Sequence[float]) -> float:
    """Return the total time of all sessions, each from its start to its last episode's end."""
    total = 0.0
    for start, end in zip(sessions, [*sessions[1:], float("inf")], strict=True):
        ends = [row.end_time for row in rows if start <= row.end_time < end]
        total += max(ends) - start if ends else 0.0
    return total


def _of_episodes(rows: list[EpisodeRecord]) -> dict[str, Any]:
    done = [row for row in rows if row.outcome.counts]
    return {
        "task": rows[0].task,
        "sum_rewards": [row.sum_reward for row in done],
        "max_rewards": [row.max_reward for row in done],
        "successes": [row.success_once for row in done],
        "seeds": [row.seed for row in done],
    }


def _metrics(rows: list[EpisodeRecord], added: Tally, videos: Collection[str]) -> dict[str, Any]:
    interval = None if added.interval is None else [100 * end for end in added.interval]
    return {
        "avg_sum_reward": added.avg_sum_reward,
        "avg_max_reward": added.avg_max_reward,
        **{
            f"avg_{score_column(name)}": value
            for name, value in added.scores.items()
            if name != MAX_REWARD
        },
        "mean_episode_steps": added.mean_steps,
        "mean_steps_to_success": added.mean_steps_to_success,
        "pc_success": None if added.rate is None else 100 * added.rate,
        "pc_success_at_end": None if added.rate_at_end is None else 100 * added.rate_at_end,
        "pc_success_at_end_interval95": None
        if added.interval_at_end is None
        else [100 * end for end in added.interval_at_end],
        "n_episodes": added.episodes,
        "n_diverged": added.diverged,
        "n_starts": added.units.distinct,
        "n_errors": added.errors,
        "pc_success_interval95": interval,
        "pc_success_wilson95": interval if added.anytime is None else None,
        "pc_success_suite_interval95": None
        if added.suite_interval is None
        else [100 * end for end in added.suite_interval],
        "pc_success_bounds": None if added.bounds is None else [100 * end for end in added.bounds],
        "video_paths": [row.video for row in rows if row.video in videos],
    }


def _proctor_section(rows: list[EpisodeRecord], planned: int) -> dict[str, Any]:
    done = [row for row in rows if row.outcome.counts]
    perturbed = sum(row.clean_task is not None for row in rows)
    tallies = [tally(episodes) for episodes in by_task(clean_rows(done)).values()]
    counts = [(added.successes, added.episodes) for added in tallies if added.judged]
    return {
        "planned_episodes": planned,
        "perturbed_episodes": perturbed,
        "complete": len(rows) == planned,
        "micro": _clustered(micro_average(counts)),
        "macro": _clustered(macro_average(counts)),
        "pass_hat_k": [
            {
                "k": one.k,
                "pc": 100 * one.rate,
                "interval95": [100 * end for end in one.interval],
                "n_starts": one.starts,
                "n_left_out": one.left_out,
            }
            for one in pass_rates(rows)
        ],
        "steps": sum(row.steps or 0 for row in done),
        "renders": sum(row.renders or 0 for row in done),
        "retried_episodes": sum(row.attempts > 1 for row in rows),
        "episodes_out_of_action_range": sum(bool(row.clipped_steps) for row in done),
        "open_s": sum(row.open_s or 0 for row in done),
        "sim_s": sum(row.sim_s or 0 for row in done),
        "render_s": sum(row.render_s or 0 for row in done),
        "wait_s": sum(row.wait_s or 0 for row in done),
    }


def _clustered(average: AverageRate | None) -> dict[str, float | None] | None:
    return None if average is None else asdict(average)


def _steps_to_success(row: EpisodeRecord) -> int | None:
    """Return the steps to success; for an older journal, the steps of the episode."""
    return row.steps if row.steps_to_success is None else row.steps_to_success


def _mean_scores(rows: Sequence[EpisodeRecord]) -> dict[str, float | None]:
    """Return the mean maximum reward, and the mean of each score in the journal."""
    names = sorted({name for row in rows for name in row.scores or ()})
    means = {name: _mean((row.scores or {}).get(name) for row in rows) for name in names}
    return {MAX_REWARD: _mean(row.max_reward for row in rows), **means}


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None


def _grouped(rows: Iterable[EpisodeRecord], key: Any) -> dict[Any, list[EpisodeRecord]]:
    groups: dict[Any, list[EpisodeRecord]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
