"""Dry run of a checkpoint's pipelines with zeros, to find steps that do not fit together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from proctor.errors import ProctorError, UsageError, strip_control_codes
from proctor.features import ACTION
from proctor.policies.compatibility import source_key
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
    """Run the pre- and postprocessor on observations, an instruction and an action of zeros."""
    inputs, size = config.input_features, config.action_dim
    shapes = {key: (1, *channels_first(feature)) for key, feature in inputs.items()}
    with _saying("the preprocessor cannot process the policy's inputs"):
        # Not on torch's meta device: its arithmetic loads torch's compiler, which takes seconds.
        renames, cpu = preprocessor.rename_map, torch.device("cpu")
        seen = {source_key(key, renames): torch.zeros(shape) for key, shape in shapes.items()}
        preprocessor.on(cpu)(seen)
    with _saying("the preprocessor cannot encode an instruction"):
        if config.language_conditioned and not instruction_encoder.blank_inputs(1):
            raise UsageError(
                f"{config.type} needs an instruction, but no preprocessor step makes tokens",
                code="checkpoint.missing-tokenizer",
            )
    with _saying(f"the postprocessor cannot process actions of size {size}"):
        beside = {key: torch.zeros(shapes[key]) for key in postprocessor.needs}
        postprocessor.on(cpu)({ACTION: torch.zeros(1, 1, size), **beside})


@contextmanager
def _saying(what: str) -> Iterator[None]:
    try:
        yield
    except ProctorError:
        raise
    except (RuntimeError, ValueError, IndexError, KeyError) as error:
        raise UsageError(
            f"{what}: {strip_control_codes(str(error), 200)}", code="checkpoint.pipeline-mismatch"
        ) from None
