"""How a policy that is served is found; nothing that talks to anybody is imported before."""

from __future__ import annotations

from proctor.features import Interface
from proctor.policies.base import Policy, PolicyPlugin
from proctor.policies.remote.config import RemoteConfig, check_flags


def make(config: RemoteConfig, interface: Interface) -> Policy:
    """Ask the servers what they are, and check that they fit ``interface``.

    Raises:
        UsageError: nobody answers, or the policy is for something else.
    """
    check_flags(config)
    from proctor.policies.remote.policy import RemotePolicy

    return RemotePolicy(config, interface)


PLUGIN = PolicyPlugin(
    config=RemoteConfig,
    make=make,
    summary="a policy that is served: openpi, GR00T, vla-eval, LeRobot; --policy.url=ws://...",
    check_config=check_flags,
)
