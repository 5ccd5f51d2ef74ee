"""How a run came to its number of episodes: fixed in advance, or decided after a look at results.

A run that is looked at and then extended, or stopped and then continued, has as many episodes as
its results suggested. Then an interval for a fixed number of episodes misses the rate too often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from proctor.errors import strip_control_codes
from proctor.runs.folder import RunRecord
from proctor.runs.records import SessionPlan
from proctor.stats.anytime import (
    NOT_MONITORED,
    AnytimeInterval,
    MonitoredRates,
    monitored_rates,
)

UNKNOWN = "history unknown: an older version did not record the sessions of the run"
_ANY_SIZE = MonitoredRates(AnytimeInterval(), AnytimeInterval(), AnytimeInterval())


@dataclass(frozen=True)
class History:
    """The sessions of a run, and what follows from them for its intervals."""

    sessions: Sequence[SessionPlan] = ()
    """The sessions whose plan is recorded."""
    known: bool = False
    """Whether these are all sessions; an older version did not record them."""
    rules_now: MonitoredRates = NOT_MONITORED
    """Which rates a stop rule of the newest session monitors."""
    keeps_successes: bool = False
    """Whether the run is a recording, which ends after so many successes."""

    @cached_property
    def monitored(self) -> MonitoredRates:
        """Which rates need an anytime-valid interval.

        Its bet counts on a width only if that was chosen before the first result.
        """
        if self.keeps_successes:
            return _ANY_SIZE
        plans = self._plans
        if not plans:
            return self.rules_now
        first = _rules(plans[0])
        if first != NOT_MONITORED and not plans[0].finished:
            return first
        ruled = any(_rules(plan) != NOT_MONITORED for plan in plans)
        return _ANY_SIZE if ruled or len(plans) > 1 else NOT_MONITORED

    @property
    def looked(self) -> bool:
        """Whether the plan was changed after episodes had ended."""
        return len(self._plans) > 1

    @property
    def fixed(self) -> bool | None:
        """Whether the number of episodes was fixed before the run; None: unknown."""
        if self.monitored != NOT_MONITORED:
            return False
        return True if self.known else None

    @cached_property
    def _plans(self) -> list[SessionPlan]:
        """The plans that differ from the one before; those that ended no episode do not count."""
        plans = [one for one, later in pairwise(self.sessions) if later.finished > one.finished]
        plans += self.sessions[-1:]
        same = [i for i, (one, later) in enumerate(pairwise(plans), 1) if one.same_plan(later)]
        return [plan for number, plan in enumerate(plans) if number not in same]

    @property
    def text(self) -> str:
        """Say in one line how the run came to its number of episodes."""
        if self.keeps_successes:
            return "episodes ran until enough demonstrations were kept"
        if self.fixed:
            return "the number of episodes was fixed before the run"
        if self.looked:
            parts = "; ".join(_described(plan) for plan in self._plans)
            told = f"the number of episodes was decided after results were seen: {parts}"
        elif self.sessions and self.fixed is False:
            told = f"a stop rule decided the number of episodes: {_described(self._plans[0])}"
        else:
            return UNKNOWN
        return told if self.known else f"{told}; the sessions before are unknown"

    def to_json(self) -> dict[str, Any]:
        """Return the values for ``eval_info.json`` and the card."""
        sessions = [asdict(session) for session in self.sessions]
        return {"fixed": self.fixed, "text": self.text, "sessions": sessions}


def history_of(record: RunRecord) -> History:
    """Return the history of the run with this record."""
    sessions = record.history
    recorded = record.resolved.get("record")
    return History(
        sessions=tuple(sessions),
        known=bool(sessions) and len(sessions) == len(record.sessions),
        rules_now=monitored_rates(record.resolved),
        keeps_successes=isinstance(recorded, dict) and recorded.get("keep") != "all",
    )


def _rules(plan: SessionPlan) -> MonitoredRates:
    return monitored_rates(plan.rules)


def _described(plan: SessionPlan) -> str:
    """Return ``after 10 episodes, 20 planned``, with the stop rules and what they decided."""
    text = f"{plan.planned} planned"
    if plan.finished:
        text = f"after {plan.finished} episode{'s' * (plan.finished != 1)}, {text}"
    if plan.rule_flags:
        text += f" with {' '.join(plan.rule_flags)}"
    if plan.stopped is not None:
        text += f", stopped ({plan.stopped})"
    if plan.against is not None:  # a card is published: without the user's folders
        text = text.replace(plan.against, Path(plan.against).name)
    return strip_control_codes(text)
