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
from proctor.policies.lerobot.step import OURS, ProcessorStep, PromptInputs
from proctor.policies.lerobot.tokenizer import FOLDER, MOST_TOKENS, TextTokenizer, Tokenizers

TASK = "task"
"""The only source of instructions that ``task_key`` may name."""
_TRIED = "Task: push the puck, State: 0 255;\n"
"""Words that a tokenizer has to have numbers for, before anything begins."""


@dataclass(frozen=True)
class NewLine(ProcessorStep):
    """Append a new line to every instruction without one; families register it by their name."""

    def hear(self, told: PromptInputs) -> PromptInputs:
        """Change the instructions."""
        words = (text if text.endswith("\n") else f"{text}\n" for text in told.words)
        return replace(told, words=tuple(words))


@dataclass(frozen=True)
class Tokenize(ProcessorStep):
    """Number the words: ``LANGUAGE_TOKENS`` int64 [B, max_length], ``LANGUAGE_MASK`` bool.

    Always of that length, whatever ``padding`` says: LeRobot fills up to the longest of a batch
    where it is "longest", and what a network makes of one row then depends on the others. A network
    that is given the mask and uses it returns the same for both.
    """

    registry_name: ClassVar[str] = "tokenizer_processor"
    tells: ClassVar[bool] = True
    artifacts: ClassVar[Mapping[str, str]] = {"tokenizer_name": "inside"}
    max_length: int = 512
    task_key: str = TASK
    padding_side: str = "right"
    padding: str = "max_length"
    truncation: bool = True
    tokenizer_name: str | None = None
    tokenizer: TextTokenizer | None = field(default=None, metadata=OURS)
    inside: str = field(default=FOLDER, metadata=OURS)
    """The checkpoint's folder that has it, where it has."""

    def hear(self, told: PromptInputs) -> PromptInputs:
        """Add the numbers.

        Raises:
            UsageError: there are too many, and the checkpoint says that none may be left out.
        """
        tokenizer = self.tokenizer
        assert tokenizer is not None, "a pipeline is equipped before it is used"
        most, pad = self.max_length, tokenizer.pad
        tokens = np.full((len(told.words), most), pad, np.int64)
        mask = np.zeros(tokens.shape, np.bool_)
        for row, text in enumerate(told.words):
            ids = tokenizer.encode(text, most if self.truncation else None)
            if len(ids) > most:
                raise UsageError(f"{text[:60]!r} has {len(ids)} tokens (at most {most})")
            start = 0 if self.padding_side == "right" else most - len(ids)
            place = slice(start, start + len(ids))
            tokens[row, place], mask[row, place] = ids, True
        return replace(told, arrays={**told.arrays, LANGUAGE_TOKENS: tokens, LANGUAGE_MASK: mask})

    def config(self) -> dict[str, Any]:
        """Return how words are numbered, in LeRobot's order."""
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
        """Return the tokenizer's."""
        held = {} if self.tokenizer is None else self.tokenizer.files
        return {f"{self.inside}/{name}": content for name, content in held.items()}

    def check(self, where: str) -> None:
        """Refuse what words cannot be numbered by."""
        check_task(self.task_key, where)
        if not 1 <= self.max_length <= MOST_TOKENS:
            raise UsageError(f"{where}: max_length is {self.max_length} (choose 1-{MOST_TOKENS})")
        choices = {"padding_side": ("right", "left"), "padding": ("max_length", "longest")}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UsageError(
                    f"{where}: {name} is {getattr(self, name)!r} (we know {', '.join(known)})"
                )

    def equipped(self, tokenizers: Tokenizers) -> Tokenize:
        """Return the step with its tokenizer.

        Raises:
            UsageError: it is not to be had.
        """
        tokenizer = tokenizers.find(self.tokenizer_name, self.inside)
        tokenizer.encode(_TRIED)
        _ = tokenizer.pad
        return replace(self, tokenizer=tokenizer, inside=FOLDER)  # where it is written


def check_room(steps: Sequence[ProcessorStep], most: int) -> None:
    """Refuse prompts of more tokens than a network has places for.

    Raises:
        UsageError: the steps before it make such.
    """
    for step in steps:
        if isinstance(step, Tokenize) and step.max_length > most:
            raise UsageError(
                f"{step.registry_name}: max_length is {step.max_length}, and the policy has places "
                f"for {most} tokens"
            )


def check_task(key: str, where: str) -> None:
    """Refuse another source of instructions than the task.

    Raises:
        UsageError: naming the step.
    """
    if key != TASK:
        raise UsageError(f"{where}: task_key is {key!r}, and words come from {TASK!r} only")
