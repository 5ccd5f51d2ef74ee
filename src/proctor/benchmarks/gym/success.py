"""Success rules of gymnasium environments: ``--env.success`` (``proctor_worker.gym_env``)."""

from __future__ import annotations

from proctor.errors import UsageError
from proctor_worker.gym_env import success
from proctor_worker.gym_env.success import (
    CHOICES,
    DEFAULT,
    SuccessInputs,
    SuccessRule,
    SuccessSource,
)
from proctor_worker.records import Refused

__all__ = ["CHOICES", "DEFAULT", "SuccessInputs", "SuccessRule", "SuccessSource", "parse_success"]


def parse_success(text: str) -> SuccessRule:
    """Parse ``--env.success``."""
    try:
        return success.parse_success(text)
    except Refused as error:
        raise UsageError(str(error), code=error.code) from None
