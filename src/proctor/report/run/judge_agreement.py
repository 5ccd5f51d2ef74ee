"""How often a judge's verdicts agree with the simulator's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from proctor.report.run.summary import clean_rows
from proctor.runs.journal import EpisodeRecord
from proctor.stats.anytime import rate_interval
from proctor.stats.independent_units import UnitCounts
from proctor.stats.rates import Interval, rate_text


@dataclass(frozen=True)
class JudgeAgreement:
    """Counts of judged episodes."""

    judged: int
    successes: int
    """Episodes that the judge calls a success."""
    compared: int
    """Judged episodes for which the simulator has a verdict too."""
    agreed: int
    false_successes: int
    """Successes of the judge that are failures of the simulator."""
    missed_successes: int
    judged_units: UnitCounts
    """Independent units of the judged episodes."""
    units: UnitCounts
    """Independent units of the compared episodes."""

    @property
    def rate(self) -> float | None:
        """The rate of agreement; None if no episode can be compared."""
        return self.agreed / self.compared if self.compared else None

    @property
    def interval(self) -> Interval | None:
        """The 95% interval of the agreement, corrected for shared starts."""
        return rate_interval(self.units, None)

    def __str__(self) -> str:
        interval = rate_interval(self.judged_units, None)
        rate = rate_text(self.successes, self.judged, self.judged_units, interval)
        said = f"judge: success {rate}"
        if not self.compared:
            return said
        agreement = rate_text(self.agreed, self.compared, self.units, self.interval)
        return (
            f"{said}; agrees with the simulator in {agreement} ({self.false_successes} false, "
            f"{self.missed_successes} missed)"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the values of ``eval_info.json``; rates in per cent."""
        interval = self.interval
        return {
            "n_judged": self.judged,
            "pc_success": 100 * self.successes / self.judged,
            "n_compared": self.compared,
            "pc_agreement": None if self.rate is None else 100 * self.rate,
            "ci95": None if interval is None else [100 * end for end in interval],
            "n_false_successes": self.false_successes,
            "n_missed_successes": self.missed_successes,
        }


def judge_agreement(rows: Iterable[EpisodeRecord]) -> JudgeAgreement | None:
    """Compare the verdicts of judge and simulator; None if no episode was judged."""
    judged = [row for row in clean_rows(rows) if row.judge_success is not None]
    if not judged:
        return None
    both = [row for row in judged if row.success_once is not None]
    agreed = sum(row.judge_success == row.success_once for row in both)
    false = sum(bool(row.judge_success) and not row.success_once for row in both)
    return JudgeAgreement(
        judged=len(judged),
        successes=sum(bool(row.judge_success) for row in judged),
        compared=len(both),
        agreed=agreed,
        false_successes=false,
        missed_successes=len(both) - agreed - false,
        judged_units=UnitCounts((row, bool(row.judge_success)) for row in judged),
        units=UnitCounts((row, row.judge_success == row.success_once) for row in both),
    )
