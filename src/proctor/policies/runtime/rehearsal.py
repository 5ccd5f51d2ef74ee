"""A checkpoint's steps may not go together: found out with zeros, before an episode begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from proctor.errors import ProctorError, UsageError, one_line
from proctor.features import ACTION
from proctor.policies.fit import offered_key
from proctor.policies.lerobot.config import CheckpointConfig
from proctor.policies.lerobot.feature_json import channels_first
from proctor.policies.lerobot.processors import Pipeline
from proctor.policies.runtime.hearing import Hearing


def rehearse(
    config: CheckpointConfig, preprocessor: Pipeline, postprocessor: Pipeline, hearing: Hearing
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
        if config.is_told and not hearing.of_nothing(1):
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
        raise UsageError(f"{what}: {one_line(str(error), 200)}") from None
