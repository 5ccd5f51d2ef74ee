"""Configs of policies that accept images of any size and can be trained for any robot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from proctor.features import ACTION, Interface
from proctor.fingerprint import ConfigUse
from proctor.policies.compatibility import adopt_feature_sizes
from proctor.policies.lerobot.config import ConfigT


def with_interface_sizes(
    interface: Interface, config: ConfigT, renames: Mapping[str, str], use: ConfigUse
) -> ConfigT:
    """Return ``config`` with the interface's image sizes; for training also state and action."""
    fitted = adopt_feature_sizes(config.features, interface, renames, use)
    outputs = {ACTION: fitted.pop(ACTION)}
    made = replace(config, input_features=fitted, output_features=outputs)
    made.validate()
    return made


class ImageSizeFreeMixin:
    """Part of a ``CheckpointConfig`` whose policy accepts images of any size."""

    def for_interface(
        self, interface: Interface, renames: Mapping[str, str], use: ConfigUse
    ) -> Self:
        """Accept images of any size, and in training states and actions of any length too."""
        config: Any = self
        fitted: Self = with_interface_sizes(interface, config, renames, use)
        return fitted
