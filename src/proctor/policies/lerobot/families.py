"""Which policies LeRobot's checkpoints can hold, by the ``type`` in their config.json.

Names of classes as strings: nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from proctor.policies.lerobot.config import CheckpointPlugin

FAMILIES = {
    "act": "proctor.policies.act.config:PLUGIN",
    "act_words": "proctor.policies.act_words.config:PLUGIN",
    "diffusion": "proctor.policies.diffusion.config:PLUGIN",
}


def family(name: str) -> CheckpointPlugin | None:
    """Return the family called ``name``, importing no other; None where there is none."""
    found = [named(FAMILIES[name])] if name in FAMILIES else []
    found += [entry.load() for entry in entry_points(group="proctor.policies", name=name)]
    return next((plugin for plugin in found if isinstance(plugin, CheckpointPlugin)), None)


def families() -> dict[str, CheckpointPlugin]:
    """Return every family there is, ours and those of others: for files that do not name theirs."""
    names = {*FAMILIES, *(entry.name for entry in entry_points(group="proctor.policies"))}
    found = {name: family(name) for name in sorted(names)}
    return {name: plugin for name, plugin in found.items() if plugin is not None}


def named(place: str) -> Any:
    """Return what ``place`` (package.module:ATTRIBUTE) names."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
