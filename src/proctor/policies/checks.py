"""Checks the spec and methods of a plug-in's policy before anything starts.

``proctor.testing`` checks the policy's behaviour.
"""

from __future__ import annotations

from typing import Any

from proctor.policies.base import Policy, PolicySpec
from proctor.system.user_code import check_contract, check_protocol_is_json, plugin_error


def check_policy(policy: Policy) -> None:
    """Refuse a policy with an invalid spec or methods of wrong signatures."""
    own = type(policy).__name__
    check_contract(policy, Policy)
    spec: Any = policy.spec
    if not isinstance(spec, PolicySpec):
        raise plugin_error(policy, f"{own}.spec is a {type(spec).__name__}, not a PolicySpec")
    if not _is_count(spec.n_obs_steps):
        raise plugin_error(
            policy, f"{own}.spec: n_obs_steps must be at least 1, not {spec.n_obs_steps}"
        )
    if spec.n_action_steps is not None and not _is_count(spec.n_action_steps):
        said = f"n_action_steps must be at least 1, or None, not {spec.n_action_steps}"
        raise plugin_error(policy, f"{own}.spec: {said}")
    if isinstance(spec.inputs, str):
        said = f"inputs must be a tuple of keys: ({spec.inputs!r},)"
        raise plugin_error(policy, f"{own}.spec: {said}")
    if not isinstance(spec.name, str):
        raise plugin_error(policy, f"{own}.spec: name must be a text, not {spec.name!r:.60}")
    keys: Any = spec.inputs
    if keys is not None and not (
        isinstance(keys, tuple | list) and all(isinstance(key, str) for key in keys)
    ):
        raise plugin_error(policy, f"{own}.spec: inputs must be a tuple of keys, not {keys!r:.60}")
    check_protocol_is_json(policy.protocol)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
