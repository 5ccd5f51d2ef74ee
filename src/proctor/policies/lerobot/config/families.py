"""Policy families of LeRobot checkpoints, by the ``type`` in their config.json.

Classes are named by strings, so that a family is imported only when it is used.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from proctor.errors import did_you_mean
from proctor.policies.lerobot.config.config import CheckpointPlugin

FAMILIES = {
    "act": "proctor.policies.act.config:PLUGIN",
    "language_act": "proctor.policies.language_act.config:PLUGIN",
    "diffusion": "proctor.policies.diffusion.config:PLUGIN",
    "multi_task_dit": "proctor.policies.multi_task_dit.config:PLUGIN",
    "smolvla": "proctor.policies.smolvla.config:PLUGIN",
    "gaussian_actor": "proctor.policies.gaussian_actor.config:PLUGIN",
    "tdmpc": "proctor.policies.tdmpc.config:PLUGIN",
    "vqbet": "proctor.policies.vqbet.config:PLUGIN",
    "xvla": "proctor.policies.xvla.config:PLUGIN",
    "pi0": "proctor.policies.pi0.config:PLUGIN",
    "pi05": "proctor.policies.pi0.config:PI05_PLUGIN",
    "pi0_fast": "proctor.policies.pi0_fast.config:PLUGIN",
    "groot": "proctor.policies.groot.config:PLUGIN",
    "groot_n15": "proctor.policies.groot.config:N15_PLUGIN",
}

REWARD_MODELS = {"reward_classifier": "proctor.policies.reward_classifier.config:PLUGIN"}
"""Networks that judge observations instead of acting: trained and saved as policies are."""

SHARED_TYPES = {"groot": "groot_n15"}
"""Types in config.json that another family's files have too; its ``foreign`` reader decides."""

FORMER_NAMES = {"act_words": "language_act"}
"""Former types and their current names: old checkpoints and run folders still load."""

UNIMPLEMENTED_FAMILIES = frozenset(
    {
        "eo1", "evo1", "fastwam", "lingbot_va", "molmoact2", "sac",
        "sarm", "vla_jepa", "wall_x",
    }
)  # fmt: skip
"""LeRobot's families that Proctor does not implement."""


def unknown_family(kind: str) -> str:
    """Return the error text for an unknown ``type``: the known types, and what to do."""
    known = families()
    text = f"unknown type {kind!r} (known: {', '.join(known)})"
    if kind in UNIMPLEMENTED_FAMILIES:
        return f"{text}; {unimplemented_hint(kind)}"
    return text + did_you_mean(kind, known)


def unimplemented_hint(kind: str) -> str:
    """Return how to evaluate a family of LeRobot that Proctor does not implement."""
    return (
        f"{kind} is evaluated through a server of its own: --policy.type=remote "
        f"--policy.url=grpc://HOST:8080 --policy.served=CHECKPOINT --policy.served_type={kind}"
    )


def family(name: str) -> CheckpointPlugin | None:
    """Return the family called ``name``, importing no other; None if unknown."""
    name = FORMER_NAMES.get(name, name)
    built_in = FAMILIES | REWARD_MODELS
    if name in built_in:
        ours: CheckpointPlugin = import_attribute(built_in[name])
        return ours
    found = [entry.load() for entry in entry_points(group="proctor.policies", name=name)]
    return next((plugin for plugin in found if isinstance(plugin, CheckpointPlugin)), None)


def families() -> dict[str, CheckpointPlugin]:
    """Return all families, Proctor's and those of plug-ins."""
    names = {*FAMILIES, *(entry.name for entry in entry_points(group="proctor.policies"))}
    found = {name: family(name) for name in sorted(names)}
    return {name: plugin for name, plugin in found.items() if plugin is not None}


def family_steps() -> dict[str, str]:
    """Return the pipeline steps of all families: LeRobot's names to module:ATTRIBUTE."""
    return {name: place for plugin in families().values() for name, place in plugin.steps.items()}


def optimizer_groups(kind: str) -> Any:
    """Return the function that makes parameter groups for a family's optimiser type; None: none.

    It is called with the optimiser's settings and the network.
    """
    places = (plugin.optimizers.get(kind) for plugin in families().values())
    return next((import_attribute(place) for place in places if place is not None), None)


def import_attribute(place: str) -> Any:
    """Import the attribute named by ``place`` (package.module:ATTRIBUTE)."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
