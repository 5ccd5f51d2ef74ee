"""Prompts of a batch as padded tokens, and the steps that make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from proctor.errors import UsageError
from proctor.features import LANGUAGE_MASK, LANGUAGE_TOKENS
from proctor.policies.lerobot.step import ProcessorStep, PromptInputs


class PromptEncoder(Protocol):
    """Encodes prompts in a backbone's chat format."""

    @property
    def pad(self) -> int:
        """The token of padding."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of an instruction's prompt."""


def encode_padded(told: PromptInputs, prompt: PromptEncoder, length: int) -> PromptInputs:
    """Add tokens and mask of all prompts, padded to ``length``."""
    tokens = np.full((len(told.words), length), prompt.pad, np.int64)
    mask = np.zeros(tokens.shape, np.bool_)
    for row, text in enumerate(told.words):
        ids = prompt.encode(text)
        if len(ids) > length:
            raise UsageError(
                f"{text[:60]!r} has {len(ids)} tokens (at most {length}: "
                "--policy.tokenizer_max_length)",
                code="policy.prompt-too-long",
            )
        tokens[row, : len(ids)], mask[row, : len(ids)] = ids, True
    return replace(told, arrays={**told.arrays, LANGUAGE_TOKENS: tokens, LANGUAGE_MASK: mask})


StepT = TypeVar("StepT", bound=ProcessorStep)


def only_step(steps: Sequence[ProcessorStep], kind: type[StepT]) -> StepT:
    """Return the step of ``kind``, which a preprocessor of GR00T has once."""
    found = [step for step in steps if isinstance(step, kind)]
    if len(found) != 1:
        raise UsageError(
            f"GR00T's preprocessor needs one {kind.registry_name}, found {len(found)}",
            code="checkpoint.invalid-pipeline",
        )
    return found[0]
