"""Bounds of flags that are numbers."""

from __future__ import annotations

from proctor.errors import UsageError


def at_least(name: str, value: int, least: int) -> None:
    """Refuse a flag whose value is too small.

    Raises:
        UsageError: naming the flag.
    """
    if value < least:
        raise UsageError(
            f"--{name} must be at least {least}, got {value}", code="flag.out-of-range"
        )


def between(name: str, value: int, least: int, most: int) -> None:
    """Refuse a flag whose value is below ``least`` or above ``most``.

    Raises:
        UsageError: naming the flag.
    """
    at_least(name, value, least)
    if value > most:
        raise UsageError(f"--{name} must be at most {most}, got {value}", code="flag.out-of-range")
