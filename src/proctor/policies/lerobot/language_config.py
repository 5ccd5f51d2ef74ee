"""Base config of policies with a language model."""

from __future__ import annotations

from dataclasses import dataclass, field

from proctor.fingerprint import ConfigUse, flag_only_for
from proctor.policies.lerobot.config import CheckpointConfig, run_flag


@dataclass
class LanguageConfig(CheckpointConfig):
    """Config of a policy with tokenized instructions; weights keep their file's dtype.

    Its ``processing`` adds a ``Tokenize`` step to the usual ones.
    """

    dtype: str | None = field(
        default=None,
        metadata=run_flag(
            "dtype of weights and activations: float32, bfloat16 or float16", "the checkpoint's"
        )
        | flag_only_for(ConfigUse.EVALUATION),
    )

    @property
    def language_conditioned(self) -> bool:
        """Whether the policy needs an instruction: always."""
        return True
