"""Which policies LeRobot's checkpoints can hold, by the ``type`` in their config.json.

Names of classes as strings: nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from proctor.policies.lerobot.config import CheckpointPlugin

FAMILIES = {
    "act": "proctor.policies.act.config:PLUGIN",
    "diffusion": "proctor.policies.diffusion.config:PLUGIN",
}


def families() -> dict[str, CheckpointPlugin]:
    """Return the families there are: those of others by their entry points, and ours."""
    return {name: found for name, found in _found() if isinstance(found, CheckpointPlugin)}


def _found() -> Iterator[tuple[str, Any]]:
    for entry in entry_points(group="proctor.policies"):
        yield entry.name, entry.load()
    for name, place in FAMILIES.items():
        module, _, attribute = place.partition(":")
        yield name, getattr(importlib.import_module(module), attribute)
