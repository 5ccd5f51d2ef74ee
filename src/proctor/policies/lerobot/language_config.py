"""What the configs of policies with a language model have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from proctor.fingerprint import ConfigUse, flag_only_for
from proctor.policies.lerobot.config import CheckpointConfig, run_flag


@dataclass
class LanguageConfig(CheckpointConfig):
    """A policy that is told its task by tokens; its weights stay what their file has.

    Its ``processing`` puts a ``Tokenize`` step among the usual ones.
    """

    dtype: str | None = field(
        default=None,
        metadata=run_flag("weights: float32, bfloat16, float16; else as their file has them")
        | flag_only_for(ConfigUse.EVALUATION),
    )

    @property
    def language_conditioned(self) -> bool:
        """It is."""
        return True
