"""The protocols of two runs side by side: what may differ, is said, or rules pairs out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proctor.errors import UsageError
from proctor.fingerprint import (
    PROTOCOL_FORMAT,
    changed_fields,
    describe_changes,
    field_label,
    short_value,
    unshared_sections,
)

_POLICY = ("policy.", "eval.latency_steps")
"""What says how actions come about; the rest of a protocol says what they are played in."""
_WORLD = (
    "benchmark.type",
    "benchmark.code.",
    "benchmark.files.",
    "benchmark.seed_rule",
    "benchmark.init_state_rule",
    "benchmark.config.id",
    "benchmark.config.revision",
    "benchmark.config.kwargs",
)
"""Where one of these differs, a seed names two different worlds: their episodes are no pair."""


def changed_protocol(a: dict[str, Any], b: dict[str, Any], *, seeds: bool = True) -> list[str]:
    """Name every field of the two protocols that differs, except what defines the policy."""
    unsaid = {"digest", "format"} | (set() if seeds else {"seed"})  # no digest is looked at
    changed = {name: both for name, both in changed_fields(a, b).items() if name not in unsaid}
    lines = [f"protocols differ: {line}" for line in _lines(changed, policy=False)]
    if a.get("format") != b.get("format"):
        lines.append(
            "one run is of an older Proctor, which wrote down less: what only the other says of "
            "benchmark and policy is not compared"
        )
    if unshared_sections(a, b):
        lines.append(
            "one run is of an older Proctor, which did not hash the benchmark's packages: whether "
            "their files differ is not known"
        )
    return lines


def changed_policy(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Name every field in which the policies of two runs differ."""
    return _lines(changed_fields(a, b), policy=True)


def _lines(changed: Mapping[str, tuple[Any, Any]], *, policy: bool) -> list[str]:
    return [
        f"{field_label(name)} is {short_value(of_a)} in A, {short_value(of_b)} in B"
        for name, (of_a, of_b) in changed.items()
        if name.startswith(_POLICY) == policy
    ]


def require_same_worlds(a: dict[str, Any], b: dict[str, Any], what: str, advice: str) -> None:
    """Refuse to pair the episodes of two runs whose seeds do not name the same worlds.

    Of older runs, what they do not say is not held against them.

    Raises:
        UsageError: naming the fields that differ.
    """
    whole = a.get("format") == b.get("format") == PROTOCOL_FORMAT
    worlds = {
        name: both
        for name, both in changed_fields(a, b).items()
        if name.startswith(_WORLD) and (whole or None not in both)
    }
    if worlds:
        raise UsageError(
            f"{what} start from different worlds, so their episodes are no pairs "
            f"({describe_changes(worlds)}); {advice}",
            code="run.different-worlds",
        )
