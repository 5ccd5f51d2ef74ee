"""``proctor plan``: how many episodes a question needs, and how long they take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from proctor.config.flags.command import CommandConfig, run_command
from proctor.errors import UsageError, strip_control_codes
from proctor.settings import setting

if TYPE_CHECKING:
    from proctor.report.compare.planning import RunNumbers

_AGREEMENTS = (0.7, 0.8, 0.9, 0.95)
"""Shares of equal outcomes that are shown if none is given."""
_MOST_TASKS = 100_000


@dataclass(kw_only=True)
class PlanCommand(CommandConfig):
    """Print how many episodes a question needs.

    With --difference: the episodes after which `proctor compare` finds a difference of success
    rates with probability --power, for other seeds and for the same seeds (paired episodes). With
    --width: the episodes after which the interval of one success rate is that narrow.

    The probabilities are exact, for the tests that `proctor compare` uses: McNemar's for paired
    episodes, Fisher's for independent ones.
    """

    difference: float | None = setting(
        None,
        "difference of two success rates that is to be found (0.05: 5 points) (default: that "
        "of --run=A,B)",
    )
    width: float | None = setting(
        None,
        "width of the interval of one success rate (0.1: from 5 points below to 5 points "
        "above) (default: no interval is planned)",
    )
    rate: float | None = setting(
        None,
        "expected success rate; of A, where two are compared (default: that of --run, else "
        "0.5, which needs the most episodes)",
    )
    agreement: float | None = setting(
        None,
        "share of paired episodes in which both policies succeed or both fail (default: that "
        "of --run=A,B, else several are shown)",
    )
    alpha: float = setting(0.05, "significance level of the test; the interval covers 1 - alpha")
    power: float = setting(0.8, "probability that the difference is found")
    tasks: int | None = setting(
        None,
        "number of tasks: episodes are rounded up to as many of each task (default: that of "
        "--run, else 1)",
    )
    run_folders: str | None = setting(
        None,
        "finished run to take success rate, tasks and speed from; two runs A,B of the same "
        "seeds give their agreement too (default: no run)",
        flag="run",
        placeholder="RUN[,RUN]",
    )

    def validate(self) -> None:
        """Refuse numbers out of range, and a missing or a double question."""
        from proctor.stats.rates import LEAST_ALPHA
        from proctor.stats.sample_size import LEAST_DIFFERENCE, LEAST_WIDTH

        _check("alpha", self.alpha, LEAST_ALPHA, 0.5)
        _check("power", self.power, 0.05, 0.9999)
        _check("difference", self.difference, LEAST_DIFFERENCE, 1.0)
        _check("width", self.width, LEAST_WIDTH, 1.0)
        _check("rate", self.rate, 0.0, 1.0)
        _check("agreement", self.agreement, 0.0, 1.0)
        _check("tasks", self.tasks, 1, _MOST_TASKS)
        folders = self._folders
        if len(folders) > 2:
            raise UsageError(
                f"--run takes one run or two, got {len(folders)}", code="flag.invalid-value"
            )
        if self.width is not None:
            for name in ("difference", "agreement"):
                if getattr(self, name) is not None:
                    raise UsageError(
                        f"--{name} is about two policies and --width about one; leave one out",
                        code="flag.conflict",
                    )
        elif self.difference is None and len(folders) < 2:
            raise UsageError(
                "--difference=0.05 (two policies) or --width=0.1 (one success rate) is needed: "
                "what is to be found out?",
                code="flag.missing",
            )

    @property
    def _folders(self) -> list[Path]:
        from proctor.config.flags.parsing import path_of

        named = [] if self.run_folders is None else self.run_folders.split(",")
        return [path_of(name.strip(), "--run") for name in named]

    def run(self) -> int:
        """Print the plan and return the exit code."""
        from proctor.report.compare.planning import run_numbers
        from proctor.report.run.run import load_run

        folders = self._folders
        known = run_numbers([load_run(folder) for folder in folders]) if folders else None
        lines = self._one_rate(known) if self.width is not None else self._two_rates(known)
        for line in lines:
            print(strip_control_codes(line))
        return 0

    def _one_rate(self, known: RunNumbers | None) -> Iterator[str]:
        from proctor.stats.sample_size import episodes_for_width

        assert self.width is not None
        rate = self._rate(known)
        confidence = 1 - self.alpha
        n = episodes_for_width(self.width, rate, confidence)
        yield (
            f"for an interval {_points(self.width)} points wide ({100 * confidence:g}%) at a "
            f"success rate of {_percent(rate)}:"
        )
        yield f"  {self._amount(n, known)}"
        if rate != 0.5:
            most = episodes_for_width(self.width, 0.5, confidence)
            yield f"  {self._amount(most, known)}, if the rate may be any"
        yield from self._measured(known)

    def _two_rates(self, known: RunNumbers | None) -> Iterator[str]:
        from proctor.stats.sample_size import (
            episodes_for_difference,
            harder_rate,
            pairs_for_difference,
        )

        rate, difference = self._rate(known), self._difference(known)
        other = harder_rate(rate, difference)
        if known is not None and known.difference is not None and rate == known.rate:
            measured = rate + math.copysign(difference, known.difference)
            other = measured if 0 <= measured <= 1 else other
        if not 0 <= other <= 1:
            raise UsageError(
                f"no success rate is {_points(difference)} points away from {_percent(rate)}; "
                "choose another --rate or --difference",
                code="flag.out-of-range",
            )
        shares = self._agreements(rate, other, known)
        yield (
            f"to find a difference of {_points(difference)} points, {_percent(rate)} against "
            f"{_percent(other)} (alpha {self.alpha:g}, power {self.power:g}), for each policy:"
        )
        n = episodes_for_difference(rate, other, self.alpha, self.power)
        yield f"  {self._amount(n, known)}, if the seeds differ (compare --unpaired)"
        for share in shares:
            n = pairs_for_difference(difference, share, self.alpha, self.power)
            of_runs = known is not None and share == known.agreement
            source = f", as in {known.pairs:,} pairs of these runs" if known and of_runs else ""
            yield (
                f"  {self._amount(n, known)}, if the seeds are the same and {_percent(share)} of "
                f"the pairs end alike{source}"
            )
        yield from self._measured(known)

    def _rate(self, known: RunNumbers | None) -> float:
        if self.rate is not None:
            return self.rate
        return 0.5 if known is None else known.rate

    def _difference(self, known: RunNumbers | None) -> float:
        from proctor.stats.sample_size import LEAST_DIFFERENCE

        if self.difference is not None:
            return self.difference
        assert known is not None
        assert known.difference is not None
        if abs(known.difference) < LEAST_DIFFERENCE:
            raise UsageError(
                f"the success rates of the two runs differ by {_points(abs(known.difference))} "
                "points; name the difference that is to be found with --difference",
                code="flag.missing",
            )
        return abs(known.difference)

    def _agreements(self, rate: float, other: float, known: RunNumbers | None) -> list[float]:
        """Return the shares of equal outcomes to plan with; those that are possible."""
        from proctor.stats.sample_size import possible_agreement

        least, most = possible_agreement(rate, other)
        given = self.agreement
        if given is None and known is not None:
            given = known.agreement
        if given is None:
            return [share for share in _AGREEMENTS if least <= share <= most + 1e-9]
        if not least - 1e-9 <= given <= most + 1e-9:
            raise UsageError(
                f"success rates of {_percent(rate)} and {_percent(other)} agree in "
                f"{_percent(least)} to {_percent(most)} of the pairs, not in {_percent(given)}",
                code="flag.out-of-range",
            )
        return [given]

    def _amount(self, n: int, known: RunNumbers | None) -> str:
        """Return a number of episodes as text, by task and with the time that they take."""
        from proctor.callbacks.progress import duration_text

        tasks = self.tasks or (1 if known is None else known.tasks)
        each = math.ceil(n / tasks)
        text = f"{each * tasks:,} episode{'s' * (each * tasks != 1)}"
        if tasks > 1:
            text += f" ({each:,} of each of {tasks:,} tasks)"
        if known is not None and known.starts_per_s is not None:
            text += f" in {duration_text(each * tasks / known.starts_per_s)}"
        return text

    def _measured(self, known: RunNumbers | None) -> Iterator[str]:
        if known is not None and known.starts_per_s is not None:
            yield (
                f"times: {known.starts_per_s:.2g} starts/s, as in the run of "
                f"{known.starts:,} starts ({self._folders[0]})"
            )


def _check(name: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise UsageError(
            f"--{name} must be from {least:g} to {most:g}, got {value:g}", code="flag.out-of-range"
        )


def _points(value: float) -> str:
    return f"{100 * value:.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_command(PlanCommand, "proctor plan", words)
