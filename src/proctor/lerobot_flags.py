"""Flags that only LeRobot has: accepted where their value matches what Proctor does anyway.

Those of commands are data, ``lerobot_flags.toml``; a benchmark declares its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from proctor.errors import UsageError

_LEFT_ALONE = ("none", "null")


@dataclass(frozen=True)
class LerobotFlag:
    """A flag of LeRobot: the values that are accepted, and the reason."""

    values: tuple[Any, ...] | None
    """LeRobot's default first. None: every value is accepted, and none has an effect."""
    reason: str
    """Why the flag has no effect, and what to use instead."""


def lerobot_flags(*groups: str) -> dict[str, LerobotFlag]:
    """Return the flags of groups of ``lerobot_flags.toml`` by dotted name."""
    found = {}
    for group in groups:
        for reason, flags in _tables()[group].items():
            for flag in flags.split():
                name, is_limited, values = flag.partition("=")
                accepted = tuple(filter(None, values.split("|"))) if is_limited else None
                found[name] = LerobotFlag(accepted, reason)
    return found


def absent_benchmarks() -> Mapping[str, str]:
    """Return the benchmarks of LeRobot that Proctor lacks, with what to use instead."""
    return _tables()["absent_benchmarks"]


@lru_cache(maxsize=None)
def _tables() -> Mapping[str, Mapping[str, str]]:
    import tomllib

    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    tables: dict[str, dict[str, str]] = tomllib.loads(text)
    return tables


def refuse_unsupported(name: str, value: Any, foreign: Mapping[str, LerobotFlag]) -> None:
    """Refuse a value that is not accepted."""
    known, typed = foreign[name], str(value).lower()
    if known.values is None:
        return
    accepted = {str(one).lower().replace(" ", "") for one in known.values}
    if ("none" if typed == "null" else typed.replace(" ", "")) not in accepted:
        raise UsageError(f"--{name}={typed}: {known.reason}", code="flag.unsupported")


def split_lerobot_flags(
    values: Mapping[str, Any], foreign: Mapping[str, LerobotFlag]
) -> tuple[dict[str, Any], list[str]]:
    """Return the values without ``foreign`` flags, and one note per reason on those.

    A null value gets no note: LeRobot's files hold every flag.
    """
    kept: dict[str, Any] = {}
    idle: dict[str, list[str]] = {}
    for name, value in values.items():
        if name not in foreign:
            kept[name] = value
        elif str(value).lower() not in _LEFT_ALONE:
            refuse_unsupported(name, value, foreign)
            idle.setdefault(foreign[name].reason, []).append(f"--{name}")
    return kept, [unused_note(names, reason) for reason, names in idle.items()]


def unused_note(names: Sequence[str], reason: str) -> str:
    """Return the note that explains why flags have no effect."""
    return f"{', '.join(names)} change{'s' * (len(names) == 1)} nothing here: {reason}"
