"""New policies with random weights, for ``--policy.type`` of any family."""

from __future__ import annotations

from proctor.features import Interface
from proctor.policies.base import Policy
from proctor.policies.lerobot.config.config import CheckpointConfig


def make_fresh(config: CheckpointConfig, interface: Interface) -> Policy:
    """Make a policy of the config's family with random weights, for the interface's inputs."""
    from proctor.policies.lerobot.checkpoint.checkpoint import fresh_policy
    from proctor.policies.lerobot.config.families import family

    plugin = family(config.type)
    assert plugin is not None, f"{config.type} is registered"
    return fresh_policy(plugin, config, interface)
