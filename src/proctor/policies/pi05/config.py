"""Config and plug-in of pi0.5. The network is in network.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from proctor.errors import UsageError
from proctor.features import NormMode
from proctor.policies.lerobot.config import CheckpointPlugin
from proctor.policies.lerobot.shared_fields import normalization, shared
from proctor.policies.pi0.config import FlowConfig

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors import StepLists, UsualSteps

_HISTORY_FIELDS = ("use_visual_memory", "use_proprioceptive_memory")
"""Fields of LeRobot after 0.6.1 that give the policy a history of observations."""


@dataclass
class Pi05Config(FlowConfig):
    """pi0's fields with pi0.5's defaults."""

    type: str = "pi05"
    tokenizer_max_length: int = shared("tokenizer_max_length", 200)
    normalization_mapping: dict[str, NormMode] = normalization(
        VISUAL=NormMode.IDENTITY, STATE=NormMode.QUANTILES, ACTION=NormMode.QUANTILES
    )

    def processing(self, usual: UsualSteps) -> StepLists:
        """Return LeRobot's steps of pi0.5; the prompt holds the normalised state."""
        from proctor.policies.pi05.steps import Pi05StatePrompt

        prompt = Pi05StatePrompt(max_state_dim=self.max_state_dim)
        before = usual.rename, usual.to_batch, self.relative_step(), usual.normalize
        return (*before, prompt, self.tokenizer_step(), usual.to_device), self.postprocessing(usual)

    def validate(self) -> None:
        """Also refuse a history of observations, which is not supported."""
        super().validate()
        for name in _HISTORY_FIELDS:
            if self.unknown.get(name):
                raise UsageError(
                    f"{name} is set, which is not supported", code="policy.unsupported-field"
                )


PLUGIN = CheckpointPlugin(
    config=Pi05Config,
    summary="pi0.5, a vision-language-action model, untrained (trained: --policy.path)",
    network="proctor.policies.pi05.network:Pi05",
    prefix="model.",
    steps={
        "pi05_prepare_state_tokenizer_processor_step": "proctor.policies.pi05.steps:Pi05StatePrompt"
    },
    signature_fields=frozenset({"paligemma_variant", "num_inference_steps"}),
)
