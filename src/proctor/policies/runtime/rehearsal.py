"""A checkpoint's steps may not go together: found out with zeros, before an episode begins."""

from __future__ import annotations

import torch

from proctor.errors import UsageError, one_line
from proctor.features import ACTION
from proctor.policies.lerobot.config import CheckpointConfig
from proctor.policies.lerobot.feature_json import channels_first
from proctor.policies.lerobot.processors import Pipeline


def rehearse(postprocessor: Pipeline, config: CheckpointConfig) -> None:
    """Send one action through the steps behind the network, on the CPU.

    Raises:
        UsageError: it does not get through.
    """
    inputs, size = config.input_features, config.action_dim
    seen = {key: torch.zeros(1, *channels_first(inputs[key])) for key in postprocessor.needs}
    try:
        postprocessor.on(torch.device("cpu"))({ACTION: torch.zeros(1, 1, size), **seen})
    except (RuntimeError, ValueError, IndexError) as error:
        raise UsageError(
            f"the steps behind the policy ({one_line(postprocessor.name, 60)}) do not take its "
            f"actions of {size} numbers: {one_line(str(error), 200)}"
        ) from None
