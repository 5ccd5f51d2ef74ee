"""A checkpoint's steps may not go together: found out with zeros, before an episode begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from proctor.errors import ProctorError, UsageError, strip_control_codes
from proctor.features import ACTION
from proctor.policies.compatibility import offered_key
from proctor.policies.lerobot.config import CheckpointConfig
from proctor.policies.lerobot.feature_json import channels_first
from proctor.policies.lerobot.processors import Pipeline
from proctor.policies.runtime.instruction_encoder import InstructionEncoder


def dry_run_steps(
    config: CheckpointConfig,
    preprocessor: Pipeline,
    postprocessor: Pipeline,
    instruction_encoder: InstructionEncoder,
) -> None:
    """Send shapes of observations, words and an action through a policy's steps.

    Raises:
        UsageError: they do not get through.
    """
    inputs, size = config.input_features, config.action_dim
    shapes = {key: (1, *channels_first(feature)) for key, feature in inputs.items()}
    with _saying("the steps before the policy do not take what it looks at"):
        renames, nowhere = preprocessor.rename_map, torch.device("meta")
        seen = {offered_key(k, renames): torch.zeros(s, device="meta") for k, s in shapes.items()}
        preprocessor.on(nowhere)(seen)
    with _saying("the steps before the policy make no words for it"):
        if config.language_conditioned and not instruction_encoder.of_nothing(1):
            raise UsageError(f"{config.type} is told its task, and no step of it makes tokens")
    with _saying(f"the steps behind the policy do not take its actions of {size} numbers"):
        beside = {key: torch.zeros(shapes[key]) for key in postprocessor.needs}
        postprocessor.on(torch.device("cpu"))({ACTION: torch.zeros(1, 1, size), **beside})


@contextmanager
def _saying(what: str) -> Iterator[None]:
    try:
        yield
    except ProctorError:
        raise
    except (RuntimeError, ValueError, IndexError, KeyError) as error:
        raise UsageError(f"{what}: {strip_control_codes(str(error), 200)}") from None
