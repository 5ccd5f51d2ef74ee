"""Pipeline steps that turn an instruction into a prompt and a prompt into tokens.

new line  "push" -> "push\\n", as language models were trained on their prompts
tokens    token ids, padded to a fixed length, and a mask of the real ones
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from proctor.errors import UsageError
from proctor.features import LANGUAGE_MASK, LANGUAGE_TOKENS
from proctor.policies.lerobot.processors.step import OURS, ProcessorStep, PromptInputs
from proctor.policies.lerobot.tokenizer.tokenizer import (
    FOLDER,
    MOST_TOKENS,
    TextTokenizer,
    Tokenizers,
)

TASK = "task"
"""The only supported value of ``task_key``."""
_TRIED = "Task: push the puck, State: 0 255;\n"
"""Prompt that every tokenizer must encode, checked before anything starts."""


@dataclass(frozen=True)
class NewLine(ProcessorStep):
    """Append a new line to every instruction without one; families register it by their name."""

    def encode_prompt(self, prompt_inputs: PromptInputs) -> PromptInputs:
        """Change the instructions."""
        words = (text if text.endswith("\n") else f"{text}\n" for text in prompt_inputs.words)
        return replace(prompt_inputs, words=tuple(words))


@dataclass(frozen=True)
class Tokenize(ProcessorStep):
    """Tokenize prompts: ``LANGUAGE_TOKENS`` int64 [B, max_length], ``LANGUAGE_MASK`` bool.

    Prompts are always padded to ``max_length``, whatever ``padding`` is. LeRobot's "longest" pads
    to the longest prompt of a batch, so a row would depend on the others. A network that uses the
    mask gives the same result for both.
    """

    registry_name: ClassVar[str] = "tokenizer_processor"
    adds_prompt_inputs: ClassVar[bool] = True
    artifacts: ClassVar[Mapping[str, str]] = {"tokenizer_name": "inside"}
    max_length: int = 512
    task_key: str = TASK
    padding_side: str = "right"
    padding: str = "max_length"
    truncation: bool = True
    tokenizer_name: str | None = None
    tokenizer: TextTokenizer | None = field(default=None, metadata=OURS)
    inside: str = field(default=FOLDER, metadata=OURS)
    """Folder of the tokenizer inside the checkpoint."""

    def encode_prompt(self, prompt_inputs: PromptInputs) -> PromptInputs:
        """Add tokens and mask."""
        tokenizer = self.tokenizer
        assert tokenizer is not None, "with_tokenizers is called before use"
        most, pad = self.max_length, tokenizer.pad
        tokens = np.full((len(prompt_inputs.words), most), pad, np.int64)
        mask = np.zeros(tokens.shape, np.bool_)
        for row, text in enumerate(prompt_inputs.words):
            ids = tokenizer.encode(text, most if self.truncation else None)
            if len(ids) > most:
                raise UsageError(
                    f"{text[:60]!r} has {len(ids)} tokens (at most {most})",
                    code="policy.prompt-too-long",
                )
            start = 0 if self.padding_side == "right" else most - len(ids)
            span = slice(start, start + len(ids))
            tokens[row, span], mask[row, span] = ids, True
        return replace(
            prompt_inputs,
            arrays={**prompt_inputs.arrays, LANGUAGE_TOKENS: tokens, LANGUAGE_MASK: mask},
        )

    def config(self) -> dict[str, Any]:
        """Return the tokenizer's settings, in LeRobot's order."""
        named = {} if self.tokenizer_name is None else {"tokenizer_name": self.tokenizer_name}
        return {
            "max_length": self.max_length,
            "task_key": self.task_key,
            "padding_side": self.padding_side,
            "padding": self.padding,
            "truncation": self.truncation,
            **named,
        }

    def files(self) -> dict[str, bytes]:
        """Return the tokenizer's files."""
        held = {} if self.tokenizer is None else self.tokenizer.files
        return {f"{self.inside}/{name}": content for name, content in held.items()}

    def check(self, where: str) -> None:
        """Refuse unsupported settings."""
        check_task_key(self.task_key, where)
        if not 1 <= self.max_length <= MOST_TOKENS:
            raise UsageError(
                f"{where}: max_length is {self.max_length} (choose 1-{MOST_TOKENS})",
                code="checkpoint.unsupported-step",
            )
        choices = {"padding_side": ("right", "left"), "padding": ("max_length", "longest")}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UsageError(
                    f"{where}: {name} is {getattr(self, name)!r} (choose {', '.join(known)})",
                    code="checkpoint.unsupported-step",
                )

    def with_tokenizers(self, tokenizers: Tokenizers) -> Tokenize:
        """Return the step with its tokenizer."""
        tokenizer = tokenizers.find(self.tokenizer_name, self.inside)
        tokenizer.encode(_TRIED)
        _ = tokenizer.pad
        return replace(self, tokenizer=tokenizer, inside=FOLDER)  # where a new checkpoint has it


def check_prompt_length(steps: Sequence[ProcessorStep], most: int) -> None:
    """Refuse prompts with more tokens than the network has position embeddings."""
    for step in steps:
        if isinstance(step, Tokenize) and step.max_length > most:
            raise UsageError(
                f"{step.registry_name}: max_length is {step.max_length}, but the policy takes at "
                f"most {most} tokens",
                code="policy.prompt-too-long",
            )


def check_task_key(key: str, where: str) -> None:
    """Refuse a ``task_key`` other than the task."""
    if key != TASK:
        raise UsageError(
            f"{where}: task_key is {key!r} (supported: {TASK!r})",
            code="checkpoint.unsupported-step",
        )
