"""Differences between the protocols of two runs, and which of them rule out pairing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proctor.errors import UsageError
from proctor.fingerprint import (
    JUDGE,
    PROTOCOL_FORMAT,
    changed_fields,
    describe_changes,
    field_label,
    short_value,
    unshared_sections,
)

_POLICY = ("policy.", "eval.latency_steps")
"""Prefixes of the fields that define the policy; the other fields define the environment."""
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
"""Fields that define worlds: if one differs, equal seeds stand for different worlds."""


def changed_protocol(a: dict[str, Any], b: dict[str, Any], *, seeds: bool = True) -> list[str]:
    """Return a line per differing field, except the fields of the policy.

    ``seeds``: include the seed.
    """
    ignored = {"digest", "format"} | (set() if seeds else {"seed"})  # of the same content
    changed = {
        name: both
        for name, both in changed_fields(a, b).items()
        if name not in ignored and not name.startswith(f"{JUDGE}.")
    }
    lines = [f"protocols differ: {line}" for line in _lines(changed, policy=False)]
    if a.get("format") != b.get("format"):
        lines.append(
            "one run is of an older Proctor, which recorded less: fields of benchmark and policy "
            "that only the other run has are not compared"
        )
    if unshared_sections(a, b):
        lines.append(
            "one run is of an older Proctor, which did not hash the benchmark's packages: whether "
            "their files differ is not known"
        )
    return lines


def changed_policy(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Return a line per field in which the policies differ."""
    return _lines(changed_fields(a, b), policy=True)


def _lines(changed: Mapping[str, tuple[Any, Any]], *, policy: bool) -> list[str]:
    return [
        f"{field_label(name)} is {short_value(of_a)} in A, {short_value(of_b)} in B"
        for name, (of_a, of_b) in changed.items()
        if name.startswith(_POLICY) == policy
    ]


def require_same_worlds(a: dict[str, Any], b: dict[str, Any], what: str, advice: str) -> None:
    """Refuse to pair two runs in which equal seeds stand for different worlds.

    Fields that an older run did not record are ignored.
    """
    whole = a.get("format") == b.get("format") == PROTOCOL_FORMAT
    worlds = {
        name: both
        for name, both in changed_fields(a, b).items()
        if name.startswith(_WORLD) and (whole or None not in both)
    }
    if worlds:
        raise UsageError(
            f"{what} start from different worlds, so their episodes cannot be paired "
            f"({describe_changes(worlds)}); {advice}",
            code="run.different-worlds",
        )
