"""pi0.5, the plug-in: its config and how it is made. The network is in network.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from proctor.errors import UsageError
from proctor.features import Interface, NormMode
from proctor.policies.base import Policy
from proctor.policies.lerobot.config import CheckpointPlugin, of_training
from proctor.policies.pi0.config import FlowConfig

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors import UsualSteps
    from proctor.policies.lerobot.step import Step

_REMEMBERING = ("use_visual_memory", "use_proprioceptive_memory")
"""Fields of LeRobots after 0.6.1, by which it looks at more than one moment."""


@dataclass
class Pi05Config(FlowConfig):
    """pi0's fields, with pi0.5's defaults."""

    type: str = "pi05"
    tokenizer_max_length: int = field(default=200, metadata={"help": "tokens of a prompt"})
    normalization_mapping: dict[str, NormMode] = field(
        default_factory=lambda: {
            "VISUAL": NormMode.IDENTITY,
            "STATE": NormMode.QUANTILES,
            "ACTION": NormMode.QUANTILES,
        },
        metadata=of_training("how each kind of feature is normalised, as {STATE: QUANTILES}"),
    )

    def processing(self, usual: UsualSteps) -> tuple[Sequence[Step], Sequence[Step]]:
        """As LeRobot: the state is among the words, once it is normalised."""
        from proctor.policies.lerobot.language import StatePrompt

        prompt = StatePrompt(max_state_dim=self.max_state_dim)
        before = usual.rename, usual.to_batch, self.relative(), usual.normalize
        return (*before, prompt, self.tokenize(), usual.to_device), self.behind(usual)

    def validate(self) -> None:
        """Refuse a memory, too: without it other actions would be played."""
        super().validate()
        for name in _REMEMBERING:
            if self.unknown.get(name):
                raise UsageError(f"{name} is set, which is not known here")


def make(config: Pi05Config, interface: Interface) -> Policy:
    """Make one with fresh random weights for the interface's cameras and state."""
    from proctor.policies.lerobot.checkpoint import fresh_policy

    return fresh_policy(PLUGIN, config, interface)


PLUGIN = CheckpointPlugin(
    config=Pi05Config,
    make=make,
    summary="pi0.5, a vision-language-action model, untrained (trained: --policy.path)",
    network="proctor.policies.pi05.network:Pi05",
    prefix="model.",
    tell_tale=frozenset({"paligemma_variant", "num_inference_steps"}),
)
