"""Check the claim of a result card against a run. Pure functions of a card and a loaded run.

A run of the same protocol and seed plays the card's episodes again, so their outcomes are paired.
If the seeds differ (``--accept=seed``), the two are independent samples of the same tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from proctor.errors import UsageError
from proctor.fingerprint import changed_fields, describe_changes, unshared_sections
from proctor.report.claims.card import Card, tally_text
from proctor.report.claims.card_file import card_interval
from proctor.report.compare.warnings import run_warnings
from proctor.report.run.run import Run
from proctor.report.run.summary import by_task, clean_rows, is_anytime
from proctor.stats.differences import Paired, combined_interval, difference_interval
from proctor.stats.equivalence import DEFAULT_MARGIN, Verdict, episodes_to_decide, verdict_of
from proctor.stats.independent_units import UnitIndex
from proctor.stats.rates import Interval
from proctor.stats.task_rates import these_tasks_interval
from proctor.types import Outcome

_IGNORED = ("digest", "format")
"""Fields that say how a protocol was recorded."""
_OTHER_WORLDS = ("seed", "benchmark.")
"""Fields after whose change equal episode indices stand for different starts."""


@dataclass(frozen=True)
class CardCheck:
    """Whether a run agrees with a card."""

    card: Path
    run: Path
    claimed: str
    """The card's rate as text."""
    found: str
    """The run's rate as text."""
    episodes: int
    """Number of compared episodes of the run."""
    only_card: int | None
    """Episodes that only the card's run solved; None if the episodes are not paired."""
    only_run: int | None
    difference: float
    """Rate of the run minus rate of the card, over the compared episodes."""
    interval: Interval
    margin: float
    verdict: Verdict
    more_episodes: int | None
    """About how many more episodes would decide; None if decided, or if no number of them does."""
    reason: str
    """What the verdict follows from."""
    notes: list[str]
    warnings: list[str]


def check_card(
    card: Card,
    path: Path,
    run: Run,
    *,
    accept: Sequence[str] = (),
    alpha: float = 0.05,
    margin: float = DEFAULT_MARGIN,
) -> CardCheck:
    """Compare the run's success rate with the card's claim.

    The verdict follows from the interval of the difference (``verdict_of``). A run that repeats
    every episode of the card with the same outcome agrees, however few these are.

    Args:
        card: a card that ``read_card`` accepted.
        path: its file, for messages.
        run: a run of the card's protocol.
        accept: names of protocol fields or sections that may differ.
        alpha: the interval of the difference covers 1 - alpha.
        margin: largest difference of the rates that still agrees.
    """
    run.require_rate()
    if card.overall.rate is None:
        raise UsageError(f"{path} claims no success rate to check", code="card.without-rate")
    changed = _accepted_changes(card, path, run, accept)
    _require_tasks(card, path, run)
    paired = not any(name.startswith(_OTHER_WORLDS) for name in changed)
    if not paired:
        _require_equal_shares(card, path, run)
    found = _paired(card, path, run, alpha) if paired else _independent(card, run, alpha)
    decided = _decide(card, run, found, alpha, margin)
    return CardCheck(
        card=path,
        run=run.path,
        claimed=tally_text(card.overall, card_interval(card)),
        found=run.tally.brief,
        episodes=found.episodes,
        only_card=found.only_card,
        only_run=found.only_run,
        difference=found.difference,
        interval=found.interval,
        margin=margin,
        verdict=decided.verdict,
        more_episodes=decided.more_episodes,
        reason=decided.reason,
        notes=[*_notes(found), *_contamination(card, run)],
        warnings=_warnings(card, path, run, changed, found),
    )


class _Difference(NamedTuple):
    difference: float
    interval: Interval
    episodes: int
    only_card: int | None = None
    only_run: int | None = None
    pairs: Paired | None = None
    repeats_all: bool = False
    """Whether the run has every episode of the card with the same outcome."""


class _Decision(NamedTuple):
    verdict: Verdict
    reason: str
    more_episodes: int | None = None


def _contamination(card: Card, run: Run) -> list[str]:
    """Return which starts were in the training data: the card's, and the run's."""
    known = run.contamination
    told = {"the card": card.contamination, "the run": None if known is None else known.text}
    return [f"{whose}: {text}" for whose, text in told.items() if text is not None]


def _decide(card: Card, run: Run, found: _Difference, alpha: float, margin: float) -> _Decision:
    """Return the verdict, why, and how many more episodes would decide."""
    points = f"{100 * margin:g} points"
    if found.repeats_all:
        return _Decision(Verdict.AGREES, "it repeats every episode of the card, outcome by outcome")
    verdict = verdict_of(found.interval, margin)
    if verdict is Verdict.CONTRADICTS:
        return _Decision(verdict, "the interval of the difference excludes 0")
    if verdict is Verdict.AGREES:
        return _Decision(verdict, f"a difference over {points} is excluded")
    possible = f"a difference over {points} is possible"
    if found.pairs is not None:
        pairs, pairs_n = found.pairs, found.episodes
        enough = episodes_to_decide(
            lambda factor: difference_interval(_times(pairs, factor), alpha), margin, pairs_n
        )
        if enough is not None and enough <= card.overall.worlds:
            more = enough - pairs_n
            return _Decision(
                verdict, f"{possible}; about {more:,} more of its episodes would decide", more
            )
    enough = episodes_to_decide(
        lambda factor: _independent(card, run, alpha, factor).interval,
        margin,
        run.tally.episodes,
    )
    if enough is None:
        return _Decision(
            verdict,
            f"{possible}; no number of episodes would decide, since the card has too few "
            f"({card.overall.episodes})",
        )
    if found.pairs is None:
        more = enough - run.tally.episodes
        return _Decision(verdict, f"{possible}; about {more:,} more episodes would decide", more)
    return _Decision(
        verdict,
        f"{possible}; about {enough:,} episodes of another seed would decide (--accept=seed)",
        enough,
    )


def _times(pairs: Paired, factor: float) -> Paired:
    """Return so many times as many pairs with the same shares."""
    counts = (pairs.both, pairs.only_a, pairs.only_b, pairs.neither)
    return Paired(*(factor * count for count in counts))


def _accepted_changes(
    card: Card, path: Path, run: Run, accept: Sequence[str]
) -> dict[str, tuple[Any, Any]]:
    """Return the differences between the protocols, which are all accepted."""
    protocols = card.protocol, run.record.protocol
    changed = {
        name: both for name, both in changed_fields(*protocols).items() if name not in _IGNORED
    }
    for section in unshared_sections(*protocols):
        of_card, of_run = ("recorded" if one.get(section) else None for one in protocols)
        changed[section] = (of_card, of_run)
    refused = {
        name: both
        for name, both in changed.items()
        if not any(name == prefix or name.startswith(f"{prefix}.") for prefix in accept)
    }
    if refused:
        sections = ",".join(dict.fromkeys(name.partition(".")[0] for name in refused))
        raise UsageError(
            f"{run.path} has another protocol than {path}, so it does not check the card "
            f"({describe_changes(refused)}); repeat the run with the card's command, or accept "
            f"these differences with --accept={sections}",
            code="card.protocol-differs",
        )
    return changed


def _require_tasks(card: Card, path: Path, run: Run) -> None:
    """Refuse a run without one of the card's tasks: the card's rate is of all of them."""
    in_run = {(task.suite, task.task_id): task for task in run.per_task}
    for task in card.tasks:
        found = in_run.get((task.suite, task.task_id))
        if found is None or found.task != task.name or not found.tally.episodes:
            raise UsageError(
                f"{run.path} has no finished episode of {task.suite}/{task.task_id} {task.name}, "
                f"which is on {path}; repeat the run with the card's command",
                code="card.tasks-differ",
            )


def _paired(card: Card, path: Path, run: Run, alpha: float) -> _Difference:
    """Compare the episodes that are in both, each start once."""
    claimed, units, index = card.outcomes, set[int](), UnitIndex()
    unequal = {key for key, outcome in claimed.items() if outcome.counts}
    wins: Counter[tuple[bool, bool]] = Counter()
    for row in clean_rows(run.rows):
        before = claimed.get(row.key)
        if before is None or not before.counts or not row.outcome.counts:
            continue
        if (before is Outcome.SUCCESS) == (row.outcome is Outcome.SUCCESS):
            unequal.discard(row.key)
        unit = index.unit(index.add(row.started))
        if unit not in units:
            units.add(unit)
            wins[before is Outcome.SUCCESS, row.outcome is Outcome.SUCCESS] += 1
    counts = Paired(wins[True, True], wins[True, False], wins[False, True], wins[False, False])
    interval = difference_interval(counts, alpha)
    if counts.difference is None or interval is None:
        raise UsageError(
            f"{run.path} and {path} have no episode that both completed: n/a",
            code="run.no-common-episode",
        )
    n, only_card, only_run = (round(one) for one in (counts.n, counts.only_a, counts.only_b))
    return _Difference(
        counts.difference, interval, n, only_card, only_run, pairs=counts, repeats_all=not unequal
    )


def _require_equal_shares(card: Card, path: Path, run: Run) -> None:
    """Refuse to compare rates of samples that have unequal shares of a task."""
    of_card = {
        (task.suite, task.task_id): task.tally.episodes + task.tally.errors
        for task in card.clean_tasks
    }
    of_run = {task: len(rows) for task, rows in by_task(clean_rows(run.rows)).items()}
    n_card, n_run = sum(of_card.values()), sum(of_run.values())
    for task in of_card | of_run:
        if of_card.get(task, 0) * n_run != of_run.get(task, 0) * n_card:
            raise UsageError(
                f"{task[0]}/{task[1]} has {of_card.get(task, 0)} of {n_card} episodes on {path} "
                f"and {of_run.get(task, 0)} of {n_run} in {run.path}, so their rates cannot be "
                "compared; run the card's tasks, as many episodes of each",
                code="card.tasks-differ",
            )


def _independent(card: Card, run: Run, alpha: float, factor: float = 1) -> _Difference:
    """Compare the rates of independent samples; ``factor`` multiplies the run's episodes."""
    claim, found = card.overall, run.tally
    of_a = these_tasks_interval(claim.counts, card.task_counts, 1 - alpha)
    of_b = these_tasks_interval(found.units.total, found.units.tasks, 1 - alpha, factor)
    assert claim.rate is not None
    assert found.rate is not None
    assert of_a is not None
    assert of_b is not None
    interval = combined_interval(claim.rate, of_a, found.rate, of_b)
    return _Difference(found.rate - claim.rate, interval, found.episodes)


def _notes(found: _Difference) -> list[str]:
    if found.only_card is None or found.only_run is None:
        return [
            "the seeds or the benchmark differ, so the episodes are compared as independent samples"
        ]
    if not found.only_card and not found.only_run:
        return [f"all {found.episodes} common episodes have the outcome that is on the card"]
    return [
        f"of {found.episodes} common episodes, {found.only_card} were solved on the card only and "
        f"{found.only_run} in the run only"
    ]


def _warnings(
    card: Card,
    path: Path,
    run: Run,
    changed: Mapping[str, tuple[Any, Any]],
    found: _Difference,
) -> list[str]:
    lines = [f"accepted: {describe_changes({name: both})}" for name, both in changed.items()]
    lines += run_warnings(run)
    if card.started is not None and card.started in run.record.sessions[:1]:
        lines.append(f"{run.path} is the run that {path} was written from: it confirms nothing")
    if card.stopped is not None:
        lines.append(
            f"the run of {path} stopped itself early: the interval of the difference does not "
            "allow for that"
        )
    elif is_anytime(card.interval):
        lines.append(
            f"{path}: {card.history}; the interval of the difference does not allow for that"
        )
    exact = card.bit_reproducible and run.record.bit_reproducible and not changed
    if exact and (found.only_card or found.only_run):
        lines.append(
            "both runs are bit-reproducible and have the same fingerprint, yet episodes ended "
            "differently: the machine, or something that the protocol does not record, differs"
        )
    return lines
