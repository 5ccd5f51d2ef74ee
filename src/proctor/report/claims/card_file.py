"""Read a result card. A card comes from strangers: its size, types and numbers are checked."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from proctor.errors import UsageError, strip_control_codes
from proctor.report.claims.card import CARD_FORMAT, Card, CardTally
from proctor.report.run.summary import POOLED, STRATIFIED, is_anytime
from proctor.runs.folder import fingerprint_of
from proctor.stats.independent_units import RateCounts
from proctor.stats.rates import Interval
from proctor.stats.task_rates import suite_interval, these_tasks_interval
from proctor.system.files import read_regular_file
from proctor.types import MAX_EPISODES, Outcome

_MAX_BYTES = 8 * 2**20
_MAX_DEPTH = 20
_TOLERANCE = 1e-9


def read_card(path: Path) -> Card:
    """Read a card and check that its rates, counts and fingerprint follow from each other."""
    if path.suffix == ".md":
        raise UsageError(
            f"{path} is the text of a card; give the JSON file that was written with it, "
            f"{path.with_suffix('.json').name}",
            code="card.not-a-card",
        )
    try:
        values = json.loads(read_regular_file(path, _MAX_BYTES), parse_constant=_refuse_constant)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", code="card.unreadable") from None
    except (ValueError, RecursionError):
        _refuse(path, "it is not JSON")
    if not isinstance(values, dict) or values.get("kind") != "proctor-card":
        _refuse(path, "it is no card of `proctor report RUN --card`")
    written = values.get("format")
    if isinstance(written, int) and written > CARD_FORMAT:
        raise UsageError(
            f"{path} is a card of format {written}, this Proctor reads up to {CARD_FORMAT}; "
            "run: pip install --upgrade proctor",
            code="card.too-new",
        )
    if _depth(values) > _MAX_DEPTH:
        _refuse(path, "its values are nested too deep")
    try:
        card = msgspec.convert(values, type=Card)
    except (ValueError, RecursionError) as error:
        _refuse(path, str(error))
    _check_numbers(path, card)
    return card


def card_interval(card: Card) -> Interval | None:
    """Return the interval of a card's rate, from its counts where they determine it."""
    return _interval(card.overall, card.interval, card.task_counts)


def _interval(added: CardTally, kind: str, tasks: Sequence[RateCounts]) -> Interval | None:
    if is_anytime(kind):
        return added.interval
    if added.rate is None:
        return None
    return these_tasks_interval(added.counts, tasks if kind == STRATIFIED else [])


def _check_numbers(path: Path, card: Card) -> None:
    if fingerprint_of(card.protocol) != card.fingerprint:
        _refuse(path, "its fingerprint is not that of its protocol")
    if card.interval not in (POOLED, STRATIFIED) and not is_anytime(card.interval):
        _refuse(path, f"it has intervals of the unknown kind {card.interval!r}")
    if len({(task.suite, task.task_id) for task in card.tasks}) != len(card.tasks):
        _refuse(path, "it has a task twice")
    letters = [letters for task in card.tasks for _, letters in task.outcomes]
    if sum(map(len, letters)) > MAX_EPISODES:
        _refuse(path, "it has more episodes than a run can have")
    outcomes = card.outcomes_of(card.tasks)
    if len(outcomes) != sum(map(len, letters)):
        _refuse(path, "it has an episode twice")
    ended: dict[tuple[str, int], list[Outcome]] = {}
    for (suite, task_id, _), outcome in outcomes.items():
        ended.setdefault((suite, task_id), []).append(outcome)
    for task in card.tasks:
        of_task = ended.get((task.suite, task.task_id), [])
        found = _interval(task.tally, card.interval, [])
        _check_tally(path, task.tally, of_task, found, f"the task {task.name}")
    _check_tally(path, card.overall, card.outcomes.values(), card_interval(card), "all episodes")
    if card.overall.suite_interval is not None:
        found = None
        if not is_anytime(card.interval) and card.overall.rate is not None:
            found = suite_interval(card.overall.counts, card.task_counts)
        if not _same_interval(card.overall.suite_interval, found):
            _refuse(path, "the interval of tasks like these is not that of its counts")


def _check_tally(
    path: Path,
    added: CardTally,
    outcomes: Iterable[Outcome],
    interval: Interval | None,
    what: str,
) -> None:
    """Refuse counts, a rate or an interval that do not follow from the outcomes."""
    n = Counter(outcomes)
    done = sum(n.values()) - n[Outcome.ERROR]
    counts = (n[Outcome.SUCCESS], done, n[Outcome.DIVERGED], n[Outcome.ERROR])
    if counts != (added.successes, added.episodes, added.diverged, added.errors):
        _refuse(path, f"the counts of {what} are not those of its outcomes")
    judged = not n[Outcome.ENDED]
    rate = added.successes / done if done and judged else None
    if not _equal(added.rate, rate):
        _refuse(path, f"the rate of {what} is not {added.successes} of {added.episodes}")
    if (
        added.worlds > done
        or added.effective_n > added.worlds + _TOLERANCE
        or (done and added.effective_n < 1 - _TOLERANCE)
    ):
        _refuse(path, f"{what} cannot have {added.worlds} starts")
    if not _same_interval(added.interval, interval):
        _refuse(path, f"the interval of {what} is not that of its counts")
    if rate is not None and not (
        added.interval is not None and added.interval[0] <= rate <= added.interval[1]
    ):
        _refuse(path, f"the interval of {what} does not contain its rate")


def _same_interval(one: Interval | None, other: Interval | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(map(_equal, one, other))


def _equal(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def _depth(values: Any) -> int:
    """Return how deep lists and objects are nested, without recursion."""
    depth, level = 0, [values]
    while level:
        depth += 1
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
    return depth


def _refuse(path: Path, reason: str) -> NoReturn:
    raise UsageError(strip_control_codes(f"{path}: {reason}"), code="card.not-a-card")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
