"""The processor step that only SmolVLA has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proctor.policies.lerobot.language import NewLine


@dataclass(frozen=True)
class SmolVlaNewLine(NewLine):
    """Append a newline to every instruction that has none."""

    registry_name: ClassVar[str] = "smolvla_new_line_processor"
