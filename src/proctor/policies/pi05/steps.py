"""The processor step that only pi0.5 has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proctor.policies.pi0.steps import StatePrompt


@dataclass(frozen=True)
class Pi05StatePrompt(StatePrompt):
    """Write the state into the prompt, which ends with "Action: "."""

    registry_name: ClassVar[str] = "pi05_prepare_state_tokenizer_processor_step"
    ending: ClassVar[str] = "Action: "
