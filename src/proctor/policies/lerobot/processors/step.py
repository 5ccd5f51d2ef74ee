"""One step of a checkpoint's pre- or postprocessor, and the prompt inputs that it encodes.

A step has two methods, and may implement either:

    step(tensors)                 observations and actions, on the device, a batch at a time
    step.encode_prompt(inputs)    a task's words, on the CPU, before the batch goes to the device

Text is not a tensor, so prompts are encoded apart: once per instruction, or once per row if the
prompt holds the robot's state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from proctor.features import Array

if TYPE_CHECKING:
    from proctor.policies.lerobot.tokenizer.tokenizer import Tokenizers

Tensors: TypeAlias = dict[str, Tensor]
OURS = {"saved": False}
"""Field metadata of a step: not saved in its config, set when a checkpoint is read."""
STATE_FILE_ONLY = OURS | {"from_config": False}
"""Field metadata of a step: tensors of its state file, which no flag changes."""


@dataclass(frozen=True)
class PromptInputs:
    """Prompts on their way through the steps, one row for each query or sample."""

    words: tuple[str, ...]
    """Instruction or prompt of each row; a step may replace it."""
    seen: Tensors = field(default_factory=dict)
    """The newest observations that steps need (``ProcessorStep.needs``), [B, ...], processed by
    the steps before; in training also the actions [B, T, A]."""
    arrays: dict[str, Array] = field(default_factory=dict)
    """The network's prompt inputs by name, [B, ...] each."""


def saved_fields(step: ProcessorStep) -> dict[str, Any]:
    """Return the fields of a step that its config holds, in order."""
    saved = [f.name for f in fields(step) if f.metadata.get("saved", True)]
    return {name: getattr(step, name) for name in saved}


@dataclass(frozen=True)
class ProcessorStep:
    """One step of a pipeline: a function of named tensors, with a config and maybe statistics."""

    registry_name: ClassVar[str]
    adds_prompt_inputs: ClassVar[bool] = False
    """Whether it adds to ``PromptInputs.arrays``."""
    artifacts: ClassVar[Mapping[str, str]] = {}
    """Settings whose files newer LeRobot versions keep in folders of the checkpoint, mapped to the
    fields that name these folders."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Observations that it needs on the CPU, by the policy's names: the newest, raw.

        In the preprocessor they are part of the prompt. In the postprocessor they are among the
        step's tensors.
        """
        return ()

    @property
    def training_keys(self) -> tuple[str, ...]:
        """Further keys of a training sample that its prompt inputs depend on."""
        return ()

    @property
    def training_draws(self) -> Mapping[str, int]:
        """Keys of random numbers that it needs in training: how many for each row, 0 to 1."""
        return {}

    def __call__(self, tensors: Tensors) -> Tensors:
        """Return the tensors after this step; the argument is not changed."""
        return tensors

    def encode_prompt(self, prompt_inputs: PromptInputs) -> PromptInputs:
        """Return the prompt inputs after this step; observations go through the step too."""
        return (
            replace(prompt_inputs, seen=self(prompt_inputs.seen))
            if prompt_inputs.seen
            else prompt_inputs
        )

    def config(self) -> dict[str, Any]:
        """Return the step's config for the JSON file."""
        return {}

    def state(self) -> Tensors:
        """Return the step's tensors for its state file."""
        return {}

    def files(self) -> Mapping[str, bytes]:
        """Return the files that it needs, such as tokenizers, by their path in a checkpoint."""
        return {}

    def on(self, device: torch.device) -> ProcessorStep:
        """Return the step for ``device``."""
        return self

    def with_state(self, state: Tensors, where: str) -> ProcessorStep:
        """Return the step with the tensors of its state file; ``where`` names it in errors."""
        return self

    def check(self, where: str) -> None:
        """Refuse an unsupported config; ``where`` names the step in errors."""

    def with_tokenizers(self, tokenizers: Tokenizers) -> ProcessorStep:
        """Return the step with its tokenizers loaded."""
        return self

    def inverse_of(self, earlier: Sequence[ProcessorStep]) -> ProcessorStep:
        """Return a postprocessor step bound to the step of ``earlier`` that it inverts."""
        return self
