"""One step of the processing that a checkpoint carries, and what is told of a task on its way.

A step does two things, each of which it may leave alone:

    step(tensors)     with observations and actions, on the device, a batch at a time
    step.hear(told)   with a task's words, on the CPU, before the batch goes to the device

Words are no tensors, so what makes numbers of them is apart: it is done once for an instruction,
or, where a prompt has the robot's state in it, once for each row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from proctor.features import Array

if TYPE_CHECKING:
    from proctor.policies.lerobot.tokenizer import Tokenizers

Tensors: TypeAlias = dict[str, Tensor]
OURS = {"saved": False}
"""Field metadata of a step: not in its config, but made when a checkpoint is read."""


@dataclass(frozen=True)
class PromptInputs:
    """What a network is told, on its way through the steps: a row for each query or sample."""

    words: tuple[str, ...]
    """Of each row's task; a step may put others in their place."""
    seen: Tensors = field(default_factory=dict)
    """The parts of the newest observation that steps need (``ProcessorStep.needs``), [B, ...],
    processed so far; in training also the actions [B, T, A]."""
    arrays: dict[str, Array] = field(default_factory=dict)
    """What the network is given, by the names of its inputs: [B, ...] each."""


@dataclass(frozen=True)
class ProcessorStep:
    """One step of a pipeline: a function of named tensors, with a config and maybe statistics."""

    registry_name: ClassVar[str]
    adds_prompt_inputs: ClassVar[bool] = False
    """Whether the network hears something of it: it adds to ``PromptInputs.arrays``."""
    artifacts: ClassVar[Mapping[str, str]] = {}
    """Settings whose files newer LeRobots keep in folders of the checkpoint, with our fields that
    name these folders."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Observations, by the policy's names, that it works by on the CPU: the newest, raw.

        Before the network, what it tells depends on them beside the words; behind the network they
        are handed to the step among its tensors.
        """
        return ()

    @property
    def training_keys(self) -> tuple[str, ...]:
        """What else of a sample what it tells depends on, where the policy is trained."""
        return ()

    def __call__(self, tensors: Tensors) -> Tensors:
        """Return the tensors after this step; the argument is left as it was."""
        return tensors

    def encode_prompt(self, told: PromptInputs) -> PromptInputs:
        """Return what is told after this step; what was seen is processed as all tensors are."""
        return replace(told, seen=self(told.seen)) if told.seen else told

    def config(self) -> dict[str, Any]:
        """Return the step's config as it stands in the JSON file."""
        return {}

    def state(self) -> Tensors:
        """Return the step's numbers as they stand in its state file."""
        return {}

    def files(self) -> Mapping[str, bytes]:
        """Return the files that it works by, by their path in a checkpoint: tokenizers."""
        return {}

    def on(self, device: torch.device) -> ProcessorStep:
        """Return the step as it works on ``device``."""
        return self

    def check(self, where: str) -> None:
        """Refuse a config that it cannot work by; ``where`` names its place.

        Raises:
            UsageError: naming the setting.
        """

    def with_tokenizers(self, tokenizers: Tokenizers) -> ProcessorStep:
        """Return the step with the files that it needs beside the checkpoint's own.

        Raises:
            UsageError: they are not to be had.
        """
        return self

    def inverse_of(self, earlier: Sequence[ProcessorStep]) -> ProcessorStep:
        """Return a step behind the network as it undoes what ``earlier``, before it, did.

        Raises:
            UsageError: there is nothing that it could undo.
        """
        return self
