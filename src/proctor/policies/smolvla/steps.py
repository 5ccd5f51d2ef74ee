"""The processor step that only SmolVLA has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proctor.policies.lerobot.tokenizer.language import NewLine


@dataclass(frozen=True)
class SmolVlaNewLine(NewLine):
    """SmolVLA's name of the step."""

    registry_name: ClassVar[str] = "smolvla_new_line_processor"
