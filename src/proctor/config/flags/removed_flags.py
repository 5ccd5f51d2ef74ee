"""Flags that earlier versions had: ignored in files that those versions wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REMOVED_FLAGS = frozenset({"eval.draw_slots"})
"""Dotted names. None of them changed an episode, so a run goes on without them."""


def without_removed_flags(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a run folder or config file, flat or nested, less the removed flags."""
    kept = {name: value for name, value in settings.items() if name not in REMOVED_FLAGS}
    for flag in REMOVED_FLAGS:
        section, _, name = flag.partition(".")
        if isinstance(nested := kept.get(section), Mapping):
            kept[section] = {key: value for key, value in nested.items() if key != name}
    return kept
