"""Flags of LeRobot's that are no flags here: taken where they ask for what is done anyway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proctor.errors import UsageError

_LEFT_ALONE = ("none", "null")


@dataclass(frozen=True)
class LerobotFlag:
    """A flag of LeRobot's: the values that ask for nothing we do not do, and why no other."""

    values: tuple[Any, ...] | None
    """LeRobot's default first; None: whatever it is, it changes nothing."""
    reason: str
    """Why it changes nothing, and what to use where it is to change something."""


def refuse_unsupported(name: str, value: Any, foreign: Mapping[str, LerobotFlag]) -> None:
    """Refuse a value that asks for what we do not do.

    Raises:
        UsageError: with the reason.
    """
    known, typed = foreign[name], str(value).lower()
    if known.values is None:
        return
    if not any(typed == str(v).lower() or (v is None and typed == "null") for v in known.values):
        raise UsageError(f"--{name}={typed}: {known.reason}", code="flag.unsupported")


def split_lerobot_flags(
    values: Mapping[str, Any], foreign: Mapping[str, LerobotFlag]
) -> tuple[dict[str, Any], list[str]]:
    """Return what is not ``foreign``, and for what is a note for every reason.

    What is null was left alone, and is not worth a word.

    Raises:
        UsageError: one asks for what we do not do, with the reason.
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
    """Return the line that says why flags change nothing."""
    return f"{', '.join(names)} change{'s' * (len(names) == 1)} nothing here: {reason}"
