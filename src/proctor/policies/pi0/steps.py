"""Processor steps that only pi0, pi0.5 and pi0-FAST have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from proctor.features import STATE, Array
from proctor.policies.lerobot.processors.step import ProcessorStep, PromptInputs
from proctor.policies.lerobot.tokenizer.language import TASK, NewLine, check_task_key

_BIN_EDGES = np.linspace(-1, 1, 257)[:-1]
"""Lower edges of the 256 bins that a normalised state is discretised into."""


@dataclass(frozen=True)
class Pi0NewLine(NewLine):
    """Append a newline to every instruction that has none."""

    registry_name: ClassVar[str] = "pi0_new_line_processor"


@dataclass(frozen=True)
class StatePrompt(ProcessorStep):
    """Write the normalised state into the prompt, as bin numbers.

    "push" becomes "Task: push, State: 128 97;\\nAction: ".
    """

    ending: ClassVar[str]
    max_state_dim: int = 32
    task_key: str = TASK

    @property
    def needs(self) -> tuple[str, ...]:
        """Input that the prompt is made from: the state."""
        return (STATE,)

    def encode_prompt(self, prompt_inputs: PromptInputs) -> PromptInputs:
        """Replace each instruction by a prompt with the state."""
        bins = np.digitize(prompt_inputs.seen[STATE].float().numpy(), _BIN_EDGES) - 1
        words = (
            self._prompt(text, row) for text, row in zip(prompt_inputs.words, bins, strict=True)
        )
        return replace(prompt_inputs, words=tuple(words))

    def _prompt(self, text: str, bins: Array) -> str:
        task = text.strip().replace("_", " ").replace("\n", " ")
        return f"Task: {task}, State: {' '.join(map(str, bins))};\n{self.ending}"

    def check(self, where: str) -> None:
        """Refuse any ``task_key`` but the task."""
        check_task_key(self.task_key, where)


@dataclass(frozen=True)
class Pi05StatePrompt(StatePrompt):
    """Write the state into the prompt, which ends with "Action: "."""

    registry_name: ClassVar[str] = "pi05_prepare_state_tokenizer_processor_step"
    ending: ClassVar[str] = "Action: "
