"""SmolVLA's own step of LeRobot's pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proctor.policies.lerobot.language import NewLine


@dataclass(frozen=True)
class SmolVlaNewLine(NewLine):
    """Append a new line to every instruction without one."""

    registry_name: ClassVar[str] = "smolvla_new_line_processor"
