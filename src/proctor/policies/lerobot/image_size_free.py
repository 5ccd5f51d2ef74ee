"""Configs of policies that take pictures of any size, and are trained for any robot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from proctor.features import ACTION, Interface
from proctor.fingerprint import ConfigUse
from proctor.policies.compatibility import with_offered_sizes
from proctor.policies.lerobot.config import ConfigT


def with_sizes_of(
    interface: Interface, config: ConfigT, renames: Mapping[str, str], use: ConfigUse
) -> ConfigT:
    """Return ``config`` for pictures as they come and, to be trained, states and actions too.

    Raises:
        UsageError: it cannot be.
    """
    fitted = with_offered_sizes(config.features, interface, renames, use)
    outputs = {ACTION: fitted.pop(ACTION)}
    made = replace(config, input_features=fitted, output_features=outputs)
    made.validate()
    return made
