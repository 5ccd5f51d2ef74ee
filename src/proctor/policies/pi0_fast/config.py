"""pi0-FAST, the plug-in: its config and how it is made. The network is in network.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from proctor.errors import UsageError
from proctor.features import Interface
from proctor.policies.base import Policy
from proctor.policies.lerobot.config import NOT_A_FLAG, CheckpointPlugin, of_training
from proctor.policies.lerobot.limits import MOST_STEPS, check_sizes
from proctor.policies.lerobot.rtc_config import read_rtc
from proctor.policies.pi0 import sizes
from proctor.policies.pi0.config import PALIGEMMA, PiConfig

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors import UsualSteps
    from proctor.policies.lerobot.step import Step

_MOST_TOKENS = 4096


@dataclass
class Pi0FastConfig(PiConfig):
    """The family's fields, and how actions are said; the defaults are LeRobot 0.6's."""

    type: str = "pi0_fast"
    max_action_tokens: int = field(
        default=256, metadata=of_training("tokens of a chunk; what is longer is cut")
    )
    tokenizer_max_length: int = field(default=200, metadata={"help": "tokens of a prompt"})
    text_tokenizer_name: str = field(
        default=PALIGEMMA,
        metadata={"help": "folder or Hub id of a new policy's tokenizer of words"},
    )
    action_tokenizer_name: str = field(
        default="lerobot/fast-action-tokenizer",
        metadata={"help": "folder or Hub id of FAST's tokenizer, where the checkpoint has none"},
    )
    temperature: float = field(
        default=0.0, metadata={"help": "above 0, tokens are drawn; 0: the likeliest"}
    )
    max_decoding_steps: int = field(default=256, metadata={"help": "tokens said at most"})
    fast_skip_tokens: int = field(
        default=128, metadata={"help": "the last tokens of words, which codes are not lent"}
    )
    validate_action_token_prefix: bool = field(
        default=True, metadata={"help": "what does not begin with 'Action:' is no action, so zeros"}
    )
    use_kv_cache: bool = field(default=True, metadata=NOT_A_FLAG)

    @property
    def words_by(self) -> str:
        """As its config says."""
        return self.text_tokenizer_name

    def processing(self, usual: UsualSteps) -> tuple[Sequence[Step], Sequence[Step]]:
        """As LeRobot: the state is among the words, and actions are said once normalised."""
        from proctor.policies.lerobot.language import Pi0FastStatePrompt
        from proctor.policies.pi0_fast.steps import SayActions

        prompt = Pi0FastStatePrompt(max_state_dim=self.max_state_dim)
        say = SayActions(
            max_action_tokens=self.max_action_tokens,
            fast_skip_tokens=self.fast_skip_tokens,
            paligemma_tokenizer_name=self.text_tokenizer_name,
            action_tokenizer_name=self.action_tokenizer_name,
        )
        before = usual.rename, usual.to_batch, self.relative(), usual.normalize
        return (*before, prompt, self.tokenize(), say, usual.to_device), self.behind(usual)

    def validate(self) -> None:
        """Check what is said, too."""
        super().validate()
        check_sizes(self, {"max_action_tokens": _MOST_TOKENS, "max_decoding_steps": MOST_STEPS})
        if read_rtc(self.rtc_config) is not None:
            raise UsageError("pi0_fast says its actions: nothing leads them (rtc_config)")
        side = sizes.TRAINED_SIDE
        if self.image_resolution != [side, side]:
            raise UsageError(f"image_resolution is {self.image_resolution}: pi0_fast has {side}")
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature is {self.temperature:g} (choose 0 or more)")
        if not 0 <= self.fast_skip_tokens < sizes.VOCABULARY:
            raise UsageError(f"fast_skip_tokens is {self.fast_skip_tokens}")
        if self.max_action_tokens < 2:
            raise UsageError("max_action_tokens is 1, and the first token says nothing")


def make(config: Pi0FastConfig, interface: Interface) -> Policy:
    """Make one with fresh random weights for the interface's cameras and state."""
    from proctor.policies.lerobot.checkpoint import fresh_policy

    return fresh_policy(PLUGIN, config, interface)


PLUGIN = CheckpointPlugin(
    config=Pi0FastConfig,
    make=make,
    summary="pi0-FAST, which says actions as words, untrained (trained: --policy.path)",
    network="proctor.policies.pi0_fast.network:Pi0Fast",
    prefix="model.",
    tell_tale=frozenset({"paligemma_variant", "fast_skip_tokens"}),
)
