"""Coverage of rates; false alarms and power of comparisons, by simulation, against 821b1c95.

    python -m measurements statistics                 # a few minutes on two cores
    python -m measurements statistics designs gate    # only these tables
    python -m measurements statistics --tiny

Every table is a function in ``TABLES``; it prints Markdown. Seeds are fixed, so the results do not
depend on the machine. "Before" is what commit 821b1c95 computed, "now" calls ``proctor.stats``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from measurements.command import make_parser
from measurements.rate_intervals import rates
from proctor.stats.anytime import anytime_interval
from proctor.stats.differences import (
    Independent,
    Paired,
    compatible_intervals,
    difference_interval,
    effective_pairs,
    p_value,
    p_worse,
)
from proctor.stats.rates import Interval, holm, wilson_interval
from proctor.stats.stopping import e_value

ALPHA = 0.05
Pairs = list[tuple[bool, bool]]
"""The success of A and of B in the pairs of one start; the first is the clean one."""


# --- What commit 821b1c95 computed ---


@lru_cache(maxsize=100_000)
def interval_before(counts: Paired | Independent) -> Interval:
    """Return Newcombe's interval (1998, method 10; paired: with the correlation of outcomes)."""
    if isinstance(counts, Independent):
        a, n_a, b, n_b, phi = counts.a, counts.n_a, counts.b, counts.n_b, 0.0
    else:
        a, b = round(counts.both + counts.only_a), round(counts.both + counts.only_b)
        n_a = n_b = round(counts.n)
        margins = a * (n_a - a) * b * (n_a - b)
        excess = counts.both * counts.neither - counts.only_a * counts.only_b
        excess = max(excess - n_a / 2, 0.0) if excess > 0 else excess
        phi = excess / math.sqrt(margins) if margins else 0.0
    of_a, of_b = wilson_interval(a, n_a), wilson_interval(b, n_b)
    assert of_a is not None
    assert of_b is not None

    def length(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x - 2 * phi * x * y + y * y))

    p, q = a / n_a, b / n_b
    return q - p - length(q - of_b[0], of_a[1] - p), q - p + length(of_b[1] - q, p - of_a[0])


def gate_before(counts: Paired, margin: float) -> float:
    """Return McNemar's one-sided p-value with n M extra wins of B."""
    from scipy.special import bdtr

    allowed = math.ceil(counts.n * margin - 1e-9)
    return float(bdtr(counts.only_b + allowed, counts.only_a + counts.only_b + allowed, 0.5))


interval_now = lru_cache(maxsize=100_000)(difference_interval)
p_of = lru_cache(maxsize=100_000)(p_value)


# --- Designs ---


@dataclass(frozen=True)
class Design:
    """How episodes share starts. Policies differ by a gap on top of the rate of a start."""

    name: str
    starts: int
    most: int = 1
    """Episodes of a start: always as many, or from 1 to this number."""
    copies: float = 0.0
    """Probability that an episode of a start ends like the first one of the same policy."""
    equal_sizes: bool = True
    rates: tuple[float, ...] = (0.5,)
    perturbed: bool = False
    """Whether all but the first episode of a start are perturbed."""


TASKS = (0.02, 0.3, 0.5, 0.7, 0.98)
DESIGNS = (
    Design("clean, 20 starts", 20),
    Design("clean, 50 starts, five tasks", 50, rates=TASKS),
    Design("clean, 200 starts, five tasks", 200, rates=TASKS),
    Design("repeated: 50 starts, 3 episodes each, copies", 50, 3, 1.0),
    Design("repeated: 50 starts, 3 episodes each, independent", 50, 3, 0.0),
    Design("clustered: 50 starts, 1 to 10 episodes, five tasks", 50, 10, 0.5, False, TASKS),
    Design("clustered: 12 starts, 1 to 10 episodes", 12, 10, 0.5, equal_sizes=False),
    Design("perturbed: 50 starts, 5 variants each", 50, 6, 0.8, perturbed=True),
)


def simulated(design: Design, gap: float, repeats: int) -> Iterator[list[Pairs]]:
    """Yield the pairs of two policies by start."""
    rng = np.random.default_rng(7)
    for _ in range(repeats):
        rate = rng.choice(design.rates, design.starts)
        sides = []
        for level in (rate, np.clip(rate + gap, 0, 1)):
            draws = rng.random((design.starts, design.most))
            copied = rng.random(draws.shape) < design.copies
            draws = np.where(copied, draws[:, :1], draws)
            sides.append((draws < level[:, None]).tolist())
        sizes = np.full(design.starts, design.most)
        if not design.equal_sizes:
            sizes = rng.integers(1, design.most + 1, design.starts)
        yield [list(zip(a[:n], b[:n], strict=True)) for a, b, n in zip(*sides, sizes, strict=True)]


def pairs_before(design: Design, starts: list[Pairs]) -> Paired:
    """Count the first pair of each start, and every perturbed pair as if it were a start."""
    return effective_pairs(
        [[pair] for pairs in starts for pair in (pairs if design.perturbed else pairs[:1])]
    )


def pairs_now(design: Design, starts: list[Pairs]) -> Paired:
    """Count all pairs, every start alike; of perturbed starts the clean pair."""
    return effective_pairs([pairs[:1] if design.perturbed else pairs for pairs in starts])


def true_gap(design: Design, gap: float) -> float:
    """Return the mean difference over all starts."""
    return float(np.mean([min(1.0, rate + gap) - rate for rate in design.rates]))


@dataclass
class Tally:
    """Counts of simulated comparisons."""

    n: int = 0
    rejected: int = 0
    covered: int = 0
    contradicted: int = 0
    width: float = 0.0

    def add(self, p: float, interval: Interval | None, true: float) -> None:
        """Count a comparison."""
        assert interval is not None
        low, high = interval
        rejected = p <= ALPHA
        self.n += 1
        self.rejected += rejected
        self.covered += low <= true <= high
        self.contradicted += rejected != (low > 0 or high < 0)
        self.width += high - low

    def share(self, field: str) -> str:
        """Return a count in per cent."""
        return f"{100 * getattr(self, field) / self.n:.1f}"


def row(*cells: str) -> None:
    """Print a row of a Markdown table."""
    print(f"| {' | '.join(cells)} |", flush=True)


def head(*cells: str) -> None:
    """Print the head of a Markdown table."""
    row(*cells)
    row(*["---"] * len(cells))


def both(before: Tally, now: Tally, field: str) -> str:
    """Return a share before and now."""
    return f"{before.share(field)} / {now.share(field)}"


def designs(repeats: int) -> None:
    """Pairs of two policies, by design. Per cent, before / now."""
    columns = ("false alarms", "covered, equal", "covered, +15", "power, +15", "contradictions")
    head("design", *columns, "width in points")
    for design in DESIGNS:
        found = []
        for gap in (0.0, 0.15):
            before, now = Tally(), Tally()
            for starts in simulated(design, gap, repeats):
                true = true_gap(design, gap)
                old, new = pairs_before(design, starts), pairs_now(design, starts)
                before.add(p_of(old), interval_before(old), true)
                now.add(p_of(new), interval_now(new), true)
            found.append((before, now))
        equal, better = found
        contradicted = [a.contradicted + b.contradicted for a, b in zip(equal, better, strict=True)]
        row(
            design.name,
            both(*equal, "rejected"),
            both(*equal, "covered"),
            both(*better, "covered"),
            both(*better, "rejected"),
            " / ".join(f"{50 * one / repeats:.1f}" for one in contradicted),
            " / ".join(f"{100 * one.width / repeats:.1f}" for one in equal),
        )


def samples(repeats: int) -> None:
    """Independent samples of as many episodes each (--unpaired). Per cent, before / now."""
    head("episodes each", "rates", "different", "covered", "contradictions", "width in points")
    for n in (10, 20, 50, 200):
        for a, b in ((0.5, 0.5), (0.9, 0.9), (0.5, 0.7), (0.8, 0.95)):
            rng, before, now = np.random.default_rng(n), Tally(), Tally()
            for of_a, of_b in zip(
                rng.binomial(n, a, repeats), rng.binomial(n, b, repeats), strict=True
            ):
                counts = Independent(int(of_a), n, int(of_b), n)
                before.add(p_of(counts), interval_before(counts), b - a)
                now.add(p_of(counts), interval_now(counts), b - a)
            shares = [both(before, now, one) for one in ("rejected", "covered", "contradicted")]
            widths = " / ".join(f"{100 * one.width / repeats:.1f}" for one in (before, now))
            row(str(n), f"{100 * a:g}, {100 * b:g}", *shares, widths)


def several(repeats: int) -> None:
    """Several runs against one, 50 pairs each: Holm's verdicts and their intervals. Per cent."""
    head("runs", "better by 20 points", "an equal run called", "all covered", "contradictions")
    for k, better in ((3, 0), (3, 1), (3, 3), (10, 0), (10, 3)):
        rng, gaps = np.random.default_rng(k + better), [0.2] * better + [0.0] * (k - better)
        true = [0.18] * better + [0.0] * (k - better)  # 0.18: the mean of min(0.2, 1 - hard)
        alarms = covered = contradicted = contradicted_before = 0
        for _ in range(repeats):
            hard = rng.random(50)
            reference = rng.random(50) < hard
            runs = [rng.random(50) < np.minimum(1, hard + gap) for gap in gaps]
            counts = [effective_pairs([[pair] for pair in paired(reference, one)]) for one in runs]
            p_holm = holm([p_of(one) for one in counts])
            intervals = known(compatible_intervals(counts, p_holm, ALPHA))
            calls = [p <= ALPHA for p in p_holm]
            alarms += any(calls[better:])
            covered += all(covers(one, t) for one, t in zip(intervals, true, strict=True))
            contradicted += disagree(calls, intervals)
            contradicted_before += disagree(calls, [interval_before(one) for one in counts])
        counted = (alarms, covered, contradicted_before, contradicted)
        called, together, old, new = (f"{100 * one / repeats:.1f}" for one in counted)
        row(str(k), str(better), called, together, f"{old} / {new}")


def paired(a: Any, b: Any) -> Pairs:
    """Return the pairs of two runs."""
    return list(zip(a.tolist(), b.tolist(), strict=True))


def known(intervals: Sequence[Interval | None]) -> list[Interval]:
    """Return intervals that all exist."""
    return [one for one in intervals if one is not None]


def disagree(calls: Sequence[bool], intervals: Sequence[Interval]) -> bool:
    """Tell whether an interval and its verdict contradict each other."""
    return any(
        call != (low > 0 or high < 0) for call, (low, high) in zip(calls, intervals, strict=True)
    )


MIXES = {
    "40 alike": ((40, 0.25, 0.25),),
    "20 that cannot differ, 20 coin flips": ((20, 0.0, 0.0), (20, 0.5, 0.5)),
    "5 that A wins, 5 that B wins, 30 uncertain": ((5, 1.0, 0.0), (5, 0.0, 1.0), (30, 0.3, 0.3)),
}
"""Groups of pairs: their number, the chances that only A and only B solves one."""


def gate(repeats: int) -> None:
    """Alarms of --fail-if-worse=M over 40 pairs. Per cent, before / now."""
    head("pairs", "M", "worse by M: false alarms", "worse by M + 15 points: alarms")
    for name, groups in MIXES.items():
        for margin in (0.0, 0.02, 0.1):
            cells = []
            for loss in (margin, margin + 0.15):
                rng, before, now = np.random.default_rng(3), 0, 0
                free = sum(n for n, a, b in groups if 0 < a < 1)
                for _ in range(repeats):
                    only_a = only_b = 0
                    for n, a, b in groups:
                        shift = 40 * loss / free / 2 if 0 < a < 1 else 0.0
                        up, down = max(0.0, a + shift), max(0.0, b - shift)
                        won = rng.multinomial(n, (up, down, max(0.0, 1 - up - down)))
                        only_a, only_b = only_a + int(won[0]), only_b + int(won[1])
                    counts = Paired(40 - only_a - only_b, only_a, only_b, 0)
                    before += gate_before(counts, margin) <= ALPHA
                    now += p_worse(counts, margin) <= ALPHA
                cells.append(f"{100 * before / repeats:.1f} / {100 * now / repeats:.1f}")
            row(name, f"{100 * margin:g}", *cells)


def looks(repeats: int) -> None:
    """Runs whose results decided their size. Per cent of runs."""
    head("design", "fixed-size method", "anytime-valid method")
    for rate in (0.5, 0.9):
        rng, fixed, anytime = np.random.default_rng(9), 0, 0
        for won in rng.random((repeats, 40)) < rate:
            n = 20 if won[:20].mean() >= rate else 40  # extended if it looks bad
            k = int(won[:n].sum())
            fixed += covers(wilson_interval(k, n), rate)
            anytime += covers(anytime_interval(k, n, None), rate)
        row(
            f"extended from 20 to 40 if below {100 * rate:g}%: interval misses",
            *(f"{100 - 100 * one / repeats:.1f}" for one in (fixed, anytime)),
        )
    for rate in (0.5, 0.9):
        rng, fixed, anytime = np.random.default_rng(10), 0, 0
        for won in rng.random((max(1, repeats // 4), 400)) < rate:
            k, n = stopped_at(won, 0.2)
            fixed += covers(wilson_interval(k, n), rate)
            anytime += covers(anytime_interval(k, n, 0.2), rate)
        row(
            f"stopped by ci_width<0.2, rate {100 * rate:g}%: interval misses",
            *(f"{100 - 100 * one / max(1, repeats // 4):.1f}" for one in (fixed, anytime)),
        )
    for rate, every, words in (
        (0.5, 1, "stopped by --against within 300 pairs, both 50%"),
        (0.9, 1, "stopped by --against within 300 pairs, both 90%"),
        (0.5, 60, "extended by 60 pairs while undecided, to 300, both 50%"),
    ):
        rng, fixed, bets = np.random.default_rng(11), 0, 0
        for _ in range(max(1, repeats // 4)):
            a, b = rng.random((2, 300)) < rate
            wins, losses = (np.cumsum(one)[every - 1 :: every] for one in (b & ~a, a & ~b))
            score = list(dict.fromkeys(zip(wins.tolist(), losses.tolist(), strict=True)))
            fixed += any(p_of(Paired(0, m, k, 0)) <= ALPHA for k, m in score if k + m)
            bets += any(e_value(max(k, m), min(k, m)) >= 2 / ALPHA for k, m in score)
        row(
            f"{words}: one called better",
            *(f"{100 * one / max(1, repeats // 4):.1f}" for one in (fixed, bets)),
        )


def covers(interval: Interval | None, true: float) -> bool:
    """Tell whether an interval has the true value."""
    return interval is not None and interval[0] <= true <= interval[1]


def stopped_at(won: Any, width: float) -> tuple[int, int]:
    """Return successes and episodes when the anytime-valid interval is narrow enough."""
    k = 0
    for n, one in enumerate(won.tolist(), start=1):
        k += one
        interval = anytime_of(k, n, width)
        if interval is not None and interval[1] - interval[0] < width:
            return k, n
    return k, len(won)


anytime_of = lru_cache(maxsize=200_000)(anytime_interval)

TABLES: dict[str, Callable[[int], None]] = {
    "rates": rates,
    "designs": designs,
    "samples": samples,
    "several": several,
    "gate": gate,
    "looks": looks,
}
"""The tables, by name: a function that prints one of so many simulated comparisons a cell."""


def main(words: Sequence[str]) -> None:
    """Print the tables."""
    parser = make_parser("statistics", __doc__, list(TABLES))
    parser.add_argument("--repeats", type=int, default=4000, help="comparisons in a cell")
    given = parser.parse_args(words)
    repeats = 20 if given.tiny else given.repeats
    print(f"{repeats} simulated comparisons in a cell, alpha {ALPHA:g}, 95% intervals")
    for name in given.parts or TABLES:
        print(f"\n{TABLES[name].__doc__}\n")
        TABLES[name](repeats)
