"""Published results: the table of claims, and the verdict on one by the interval of a run.

The claims of the package are in ``published_claims.yaml``; a user's own file has the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from proctor.errors import UsageError, did_you_mean, strip_control_codes
from proctor.number_text import interval_text, percent_text, points_text
from proctor.parsing import load_yaml
from proctor.report.run.summary import Tally
from proctor.stats.differences import combined_interval
from proctor.stats.equivalence import Verdict, episodes_to_decide, verdict_of
from proctor.stats.rates import Interval, wilson_interval
from proctor.system.files import read_regular_file
from proctor.types import MAX_EPISODES

PUBLISHED_FILE = Path(__file__).with_name("published_claims.yaml")
CLAIM_FILE = "claim.json"
"""The claim and the verdict, in the run folder."""
_MAX_BYTES = 2**20

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
_Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_EPISODES)]
_Scalar = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A published success rate, and the evaluation that it is of."""

    benchmark: _Text
    """The value of --env.type."""
    episodes: _Count
    """Episodes of each task (--eval.n_episodes)."""
    published: _Percent
    """The published success rate in percent."""
    source: _Text
    """Where it was published, and in which year."""
    checkpoint: _Text | None = None
    """The value of --policy.path: a Hub id or a folder."""
    policy: _Text | None = None
    """The value of --policy.type, for a policy without a checkpoint."""
    task: _Text | None = None
    """The value of --env.task."""
    n: _Count | None = None
    """Episodes behind the published value. None: not published."""
    flags: dict[_Text, _Scalar] = field(default_factory=dict)
    """Further flags of `proctor eval`."""
    url: _Text | None = None
    note: _Text | None = None
    run_by_us: _Text | None = None
    """Where Proctor's own measurement of the claim is. None: not run by us."""

    def settings(self) -> dict[str, Any]:
        """Return the flags of the evaluation, by dotted name."""
        found: dict[str, Any] = {} if self.checkpoint is None else {"policy.path": self.checkpoint}
        found |= {} if self.policy is None else {"policy.type": self.policy}
        found |= {"env.type": self.benchmark}
        found |= {} if self.task is None else {"env.task": self.task}
        flags = {name: _flag_text(value) for name, value in self.flags.items()}
        return found | {"eval.n_episodes": str(self.episodes)} | flags

    @property
    def rate(self) -> float:
        """The published success rate, 0 to 1."""
        return self.published / 100

    @property
    def interval(self) -> Interval:
        """The 95% interval of the published rate; without width if its n is unknown."""
        if self.n is None:
            return self.rate, self.rate
        return wilson_interval(round(self.rate * self.n), self.n) or (self.rate, self.rate)


def _flag_text(value: _Scalar) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)


@dataclass(frozen=True)
class ClaimCheck:
    """A claim, the rate that a run measured, and the verdict."""

    verdict: Verdict
    published: float
    measured: float
    measured_interval: Interval
    difference: float
    """The measured rate minus the published one."""
    interval: Interval
    """95% interval of the difference."""
    margin: float
    more_episodes: int | None = None
    """About how many more episodes would decide; None if decided, or if no number of them does."""

    def __str__(self) -> str:
        return (
            f"published {percent_text(self.published)}, measured {percent_text(self.measured)} "
            f"{interval_text(self.measured_interval)}: {self.verdict.value}"
        )

    @property
    def reason(self) -> str:
        """The interval of the difference, and what follows from it."""
        found = f"measured - published {points_text(self.difference, self.interval)} points"
        margin = f"{100 * self.margin:g}"
        if self.verdict is Verdict.CONTRADICTS:
            return f"{found}: a difference"
        if self.verdict is Verdict.AGREES:
            return f"{found}: no difference over {margin} points"
        open_question = f"{found}: more than {margin} points are possible"
        if self.more_episodes is None:
            return f"{open_question}; no number of episodes would decide"
        return f"{open_question}; about {self.more_episodes:,} more episodes would decide"


def check_claim(claim: Claim, measured: Tally, margin: float) -> ClaimCheck:
    """Compare a measured rate with the published one.

    The interval of the difference combines both intervals by Newcombe's method, so the sampling
    error of the published value counts too if its n is known. The verdict follows from it
    (``verdict_of``).
    """
    rate, interval = measured.rate, measured.interval
    if rate is None or interval is None:
        raise UsageError("the run has no success rate to check the claim by", code="run.empty")

    def difference_after(factor: float) -> Interval | None:
        later = measured.interval_after(factor)
        return later and combined_interval(claim.rate, claim.interval, rate, later)

    difference = combined_interval(claim.rate, claim.interval, rate, interval)
    verdict, more = verdict_of(difference, margin), None
    if verdict is Verdict.UNDECIDED:
        enough = episodes_to_decide(difference_after, margin, measured.episodes)
        more = None if enough is None else enough - measured.episodes
    return ClaimCheck(
        verdict, claim.rate, rate, interval, rate - claim.rate, difference, margin, more
    )


def check_json(name: str, claim: Claim, check: ClaimCheck) -> dict[str, Any]:
    """Return the content of ``claim.json``."""
    return {
        "name": name,
        "claim": asdict(claim),
        "verdict": check.verdict.value,
        "measured": check.measured,
        "measured_interval": check.measured_interval,
        "difference": check.difference,
        "difference_interval": check.interval,
        "margin": check.margin,
        "more_episodes": check.more_episodes,
    }


def read_claims(path: Path | None = None) -> dict[str, Claim]:
    """Read a file of claims by name; the package's own file by default."""
    path = path or PUBLISHED_FILE
    try:
        content = load_yaml(read_regular_file(path, _MAX_BYTES))
    except OSError as bad:
        raise UsageError(f"--claims={path}: {bad.strerror}", code="claims.unreadable") from None
    except ValueError as bad:
        raise _invalid(path, f"not valid YAML or JSON: {bad}") from None
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise _invalid(path, "expected a mapping of names to claims")
    return {name: _claim(path, name, values) for name, values in content.items()}


def find_claim(claims: Mapping[str, Claim], name: str) -> Claim:
    """Return the claim of that name."""
    if name not in claims:
        raise UsageError(
            f"no published result is called {name!r}{did_you_mean(name, claims)} "
            "(proctor reproduce --list shows all)",
            code="claims.unknown",
        )
    return claims[name]


def _claim(path: Path, name: str, values: Any) -> Claim:
    known = set(Claim.__dataclass_fields__)
    if isinstance(values, Mapping):
        for given in values:
            if given not in known:
                near = did_you_mean(str(given), known)
                raise _invalid(path, f"{name}: unknown field {given!r}{near}")
    try:
        claim = msgspec.convert(values, type=Claim)
    except (ValueError, RecursionError) as bad:
        raise _invalid(path, f"{name}: {bad}") from None
    if (claim.checkpoint is None) == (claim.policy is None):
        raise _invalid(path, f"{name}: give either a checkpoint or a policy")
    return claim


def _invalid(path: Path, reason: str) -> UsageError:
    return UsageError(strip_control_codes(f"--claims={path}: {reason}"), code="claims.invalid")
