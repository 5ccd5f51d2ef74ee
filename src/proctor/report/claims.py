"""Published results: the table of claims, and the verdict on one by the interval of a run.

The claims of the package are in ``published_claims.yaml``; a user's own file has the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec

from proctor.errors import UsageError, did_you_mean, strip_control_codes
from proctor.parsing import load_yaml
from proctor.report.summary import Tally
from proctor.stats.differences import combined_interval
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


class Verdict(Enum):
    """What a run says about a claim."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNDECIDED = "undecided"


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

    def __str__(self) -> str:
        low, high = (100 * end for end in self.measured_interval)
        return (
            f"published {100 * self.published:.1f}, measured {100 * self.measured:.1f} "
            f"[{low:.1f}, {high:.1f}]: {self.verdict.value}"
        )

    @property
    def reason(self) -> str:
        """The interval of the difference, and what follows from it."""
        low, high = (100 * end for end in self.interval)
        found = (
            f"measured - published {100 * self.difference:+.1f} [{low:+.1f}, {high:+.1f}] points"
        )
        margin = f"{100 * self.margin:g}"
        return {
            Verdict.DIFFERS: f"{found}: not zero",
            Verdict.AGREES: f"{found}: contains zero, and differences over {margin} are excluded",
            Verdict.UNDECIDED: f"{found}: contains zero, but {margin} points or more are possible; "
            "run more episodes (--eval.n_episodes)",
        }[self.verdict]


def check_claim(claim: Claim, measured: Tally, margin: float) -> ClaimCheck:
    """Compare a measured rate with the published one.

    The interval of the difference combines both intervals by Newcombe's method, so the sampling
    error of the published value counts too if its n is known. If the interval excludes zero, the
    run differs. If it lies within ``margin`` of zero, the run agrees. Otherwise it is undecided.

    Raises:
        UsageError: the run has no success rate.
    """
    rate, interval = measured.rate, measured.interval
    if rate is None or interval is None:
        raise UsageError("the run has no success rate to check the claim by", code="run.empty")
    low, high = combined_interval(claim.rate, claim.interval, rate, interval)
    verdict = Verdict.UNDECIDED
    if low > 0 or high < 0:
        verdict = Verdict.DIFFERS
    elif -margin <= low and high <= margin:
        verdict = Verdict.AGREES
    return ClaimCheck(verdict, claim.rate, rate, interval, rate - claim.rate, (low, high), margin)


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
    }


def read_claims(path: Path | None = None) -> dict[str, Claim]:
    """Read a file of claims by name; the package's own file by default.

    Raises:
        UsageError: it cannot be read, or a claim lacks a field or has a wrong one.
    """
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
    """Return the claim of that name.

    Raises:
        UsageError: there is none, with the nearest name.
    """
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
