"""When an episode of a gymnasium environment counts as solved: ``--env.success``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from proctor.errors import UsageError

CHOICES = "info.KEY, terminated or reward>=NUMBER"


class Source(Enum):
    """Where a step says whether the task is solved."""

    INFO = "info"
    TERMINATED = "terminated"
    REWARD = "reward"


@dataclass(frozen=True)
class SuccessRule:
    """How to tell from a step whether the task is solved."""

    source: Source
    path: tuple[str, ...] = ()
    """The key inside info, level by level."""
    least_reward: float = 0.0

    def judge(self, reward: float, terminated: bool, info: Mapping[str, Any]) -> bool | None:
        """Return whether the task is solved; None where info does not say."""
        if self.source is Source.TERMINATED:
            return terminated
        if self.source is Source.REWARD:
            return reward >= self.least_reward
        value: Any = info
        for name in self.path:
            if not isinstance(value, Mapping) or name not in value:
                return None
            value = value[name]
        return bool(np.all(value))


def parse_success(text: str) -> SuccessRule:
    """Read ``--env.success``.

    Raises:
        UsageError: it is none of the three kinds.
    """
    text = text.strip()
    if text == "terminated":
        return SuccessRule(Source.TERMINATED)
    if re.fullmatch(r"info(\.[^.\s]+)+", text):
        return SuccessRule(Source.INFO, path=tuple(text.split(".")[1:]))
    at_least = re.fullmatch(r"reward\s*>=\s*(\S+)", text)
    if at_least:
        try:
            return SuccessRule(Source.REWARD, least_reward=float(at_least[1]))
        except ValueError:
            raise UsageError(f"--env.success: {at_least[1]!r} is not a number") from None
    raise UsageError(f"--env.success: {text!r} is not a rule (choose {CHOICES})")
