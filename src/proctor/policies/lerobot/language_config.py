"""Base config of policies with a language model."""

from __future__ import annotations

from dataclasses import dataclass

from proctor.fingerprint import EVALUATION_ONLY, UNSAVED
from proctor.policies.lerobot.config import CheckpointConfig
from proctor.settings import setting


@dataclass
class LanguageConfig(CheckpointConfig):
    """Config of a policy with tokenized instructions; weights keep their file's dtype.

    Its ``processing`` adds a ``Tokenize`` step to the usual ones.
    """

    dtype: str | None = setting(
        None,
        "dtype of weights and activations: float32, bfloat16 or float16 (default: the "
        "checkpoint's)",
        UNSAVED,
        EVALUATION_ONLY,
    )

    @property
    def language_conditioned(self) -> bool:
        """Whether the policy needs an instruction: always."""
        return True
