"""Plug-in of remote policies; it imports no network library before a policy is made."""

from __future__ import annotations

from proctor.features import Interface
from proctor.policies.base import Policy, PolicyPlugin
from proctor.policies.remote.config import RemoteConfig, check_flags


def make(config: RemoteConfig, interface: Interface) -> Policy:
    """Connect to the servers and check that their policy fits ``interface``."""
    check_flags(config)
    from proctor.policies.remote.policy import RemotePolicy

    return RemotePolicy(config, interface)


PLUGIN = PolicyPlugin(
    config=RemoteConfig,
    make=make,
    summary="policy on a server: openpi, GR00T, vla-eval, LeRobot; --policy.url=ws://...",
    check_config=check_flags,
)
