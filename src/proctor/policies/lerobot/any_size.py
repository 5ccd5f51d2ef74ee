"""Configs of policies that take pictures of any size, and are trained for any robot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from proctor.definition import Use
from proctor.features import ACTION, Interface
from proctor.policies.fit import adjusted
from proctor.policies.lerobot.config import ConfigT


def in_sizes_of(
    interface: Interface, config: ConfigT, renames: Mapping[str, str], use: Use
) -> ConfigT:
    """Return ``config`` for pictures as they come and, to be trained, states and actions too.

    Raises:
        UsageError: it cannot be.
    """
    fitted = adjusted(config.features, interface, renames, use)
    outputs = {ACTION: fitted.pop(ACTION)}
    made = replace(config, input_features=fitted, output_features=outputs)
    made.validate()
    return made
