"""Config and plug-in of pi0-FAST. The network is in network.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from proctor.errors import UsageError
from proctor.policies.lerobot.config.config import (
    CheckpointPlugin,
    setting,
    training_setting,
    unused,
)
from proctor.policies.lerobot.config.mixins import read_rtc
from proctor.policies.lerobot.config.shared_fields import shared
from proctor.policies.lerobot.fresh import make_fresh
from proctor.policies.lerobot.processors.limits import MOST_PROMPT, STEPS, Limits
from proctor.policies.pi0 import sizes
from proctor.policies.pi0.config import PALIGEMMA, PiConfig

if TYPE_CHECKING:
    from proctor.policies.lerobot.processors.processors import StepLists, UsualSteps

_STEPS = "proctor.policies.pi0_fast.steps"


@dataclass
class Pi0FastConfig(PiConfig):
    """The family's fields and those of action tokenization, with LeRobot 0.6's defaults."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Language": "text_tokenizer_name",
        "Inference": "action_tokenizer_name temperature max_decoding_steps fast_skip_tokens "
        "validate_action_token_prefix",
    }

    type: str = "pi0_fast"
    max_action_tokens: int = training_setting(
        256,
        "maximum action tokens per chunk; longer sequences are truncated",
        Limits(2, MOST_PROMPT),
    )
    tokenizer_max_length: int = shared("tokenizer_max_length", 200)
    text_tokenizer_name: str = setting(
        PALIGEMMA, "text tokenizer of a new policy: a folder or a Hub id"
    )
    action_tokenizer_name: str = setting(
        "lerobot/fast-action-tokenizer",
        "FAST action tokenizer, a folder or a Hub id, for checkpoints without one",
    )
    temperature: float = setting(
        0.0, "sampling temperature of action tokens; 0: greedy decoding", Limits(0, below=True)
    )
    max_decoding_steps: int = setting(256, "maximum tokens decoded per inference", STEPS)
    fast_skip_tokens: int = setting(
        128,
        "tokens at the end of the text vocabulary that are not used for actions",
        Limits(0, sizes.VOCABULARY - 1),
    )
    validate_action_token_prefix: bool = setting(
        True, "return zero actions when the decoded text does not begin with 'Action:'"
    )
    use_kv_cache: bool = unused(True)

    @property
    def text_tokenizer(self) -> str:
        """Folder or Hub id of a new policy's text tokenizer."""
        return self.text_tokenizer_name

    def processing(self, usual: UsualSteps) -> StepLists:
        """Return LeRobot's steps of pi0-FAST: the state in the prompt, actions as tokens."""
        from proctor.policies.pi0_fast.steps import Pi0FastStatePrompt, TokenizeActions

        prompt = Pi0FastStatePrompt(max_state_dim=self.max_state_dim)
        say = TokenizeActions(
            max_action_tokens=self.max_action_tokens,
            fast_skip_tokens=self.fast_skip_tokens,
            paligemma_tokenizer_name=self.text_tokenizer_name,
            action_tokenizer_name=self.action_tokenizer_name,
        )
        before = usual.rename, usual.to_batch, self.relative_step(), usual.normalize
        return (*before, prompt, self.tokenizer_step(), say, usual.to_device), self.postprocessing(
            usual
        )

    def validate(self) -> None:
        """Also check the fields of action tokenization."""
        super().validate()
        if read_rtc(self.rtc_config) is not None:
            raise UsageError(
                "rtc_config is not supported: pi0_fast has no denoising steps to guide",
                code="policy.conflict",
            )
        side = sizes.TRAINED_SIDE
        if self.image_resolution != [side, side]:
            raise UsageError(
                f"image_resolution is {self.image_resolution}: pi0_fast has {side}",
                code="policy.invalid-shape",
            )


PLUGIN = CheckpointPlugin(
    config=Pi0FastConfig,
    summary="pi0-FAST, which decodes actions as tokens, untrained (trained: --policy.path)",
    network="proctor.policies.pi0_fast.network:Pi0Fast",
    prefix="model.",
    steps={
        "pi0_fast_prepare_state_tokenizer_processor_step": f"{_STEPS}:Pi0FastStatePrompt",
        "action_tokenizer_processor": f"{_STEPS}:TokenizeActions",
    },
    signature_fields=frozenset({"paligemma_variant", "fast_skip_tokens"}),
    make=make_fresh,
)
