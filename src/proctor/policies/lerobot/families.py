"""Which policies LeRobot's checkpoints can hold, by the ``type`` in their config.json.

Names of classes as strings: nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from proctor.errors import did_you_mean
from proctor.policies.lerobot.config import CheckpointPlugin

FAMILIES = {
    "act": "proctor.policies.act.config:PLUGIN",
    "language_act": "proctor.policies.language_act.config:PLUGIN",
    "diffusion": "proctor.policies.diffusion.config:PLUGIN",
    "multi_task_dit": "proctor.policies.multi_task_dit.config:PLUGIN",
    "smolvla": "proctor.policies.smolvla.config:PLUGIN",
    "tdmpc": "proctor.policies.tdmpc.config:PLUGIN",
    "vqbet": "proctor.policies.vqbet.config:PLUGIN",
    "xvla": "proctor.policies.xvla.config:PLUGIN",
    "pi0": "proctor.policies.pi0.config:PLUGIN",
    "pi05": "proctor.policies.pi05.config:PLUGIN",
    "pi0_fast": "proctor.policies.pi0_fast.config:PLUGIN",
}

FORMER_NAMES = {"act_words": "language_act"}
"""Types that were renamed, with their names today: old checkpoints and run folders still load."""

ELSEWHERE = frozenset(
    {
        "eo1", "evo1", "fastwam", "gaussian_actor", "groot", "lingbot_va", "molmoact2", "sac",
        "sarm", "vla_jepa", "wall_x",
    }
)  # fmt: skip
"""Families of LeRobot's that have no network here."""


def unknown_family(kind: str) -> str:
    """Return what to say of a ``type`` that is none of ours: which there are, and what to do."""
    known = families()
    told = f"unknown type {kind!r} (we know {', '.join(known)})"
    if kind in ELSEWHERE:
        return (
            f"{told}; {kind} can be served by its own server, and examined from here: "
            "--policy.type=remote"
        )
    return told + did_you_mean(kind, known)


def family(name: str) -> CheckpointPlugin | None:
    """Return the family called ``name``, importing no other; None where there is none."""
    name = FORMER_NAMES.get(name, name)
    if name in FAMILIES:
        ours: CheckpointPlugin = import_attribute(FAMILIES[name])
        return ours
    found = [entry.load() for entry in entry_points(group="proctor.policies", name=name)]
    return next((plugin for plugin in found if isinstance(plugin, CheckpointPlugin)), None)


def families() -> dict[str, CheckpointPlugin]:
    """Return every family there is, ours and those of others: for files that do not name theirs."""
    names = {*FAMILIES, *(entry.name for entry in entry_points(group="proctor.policies"))}
    found = {name: family(name) for name in sorted(names)}
    return {name: plugin for name, plugin in found.items() if plugin is not None}


def family_steps() -> dict[str, str]:
    """Return where the pipeline steps are that families declare, by LeRobot's name for them."""
    return {name: place for plugin in families().values() for name, place in plugin.steps.items()}


def optimizer_groups(kind: str) -> Any:
    """Return the function that makes parameter groups for a family's optimiser type; None: none.

    It is called with the optimiser's settings and the network.
    """
    places = (plugin.optimizers.get(kind) for plugin in families().values())
    return next((import_attribute(place) for place in places if place is not None), None)


def import_attribute(place: str) -> Any:
    """Return what ``place`` (package.module:ATTRIBUTE) names."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
