"""Policies of ``--policy.type`` with a base model in NVIDIA's layout. No torch here."""

from __future__ import annotations

from dataclasses import fields

from proctor.features import Interface
from proctor.policies.base import Policy
from proctor.policies.lerobot.config import CheckpointConfig
from proctor.policies.lerobot.fresh import make_fresh


def make(config: CheckpointConfig, interface: Interface) -> Policy:
    """Make a policy from the base model that a flag names, else with random weights."""
    usual = type(config)()
    given = {
        f.name: getattr(config, f.name)
        for f in fields(config)
        if getattr(config, f.name) != getattr(usual, f.name)
    }
    path = given.pop("base_model_path", None)
    if path is None or config.input_features:
        return make_fresh(config, interface)
    from proctor.policies.lerobot.checkpoint import load_policy

    return load_policy(path, None, given, interface)
