"""Processor steps that only pi0-FAST has: its prompt, and the tokenization of actions.

A FAST tokenizer is read as data: ``tokenizer.json`` with byte pairs, and ``processor_config.json``
with a scale. The code that comes with it on the Hub is never run; fast.py replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from proctor.errors import UsageError
from proctor.features import ACTION, ACTION_MASK, ACTION_TOKENS
from proctor.policies.lerobot.processors.step import OURS, ProcessorStep, PromptInputs
from proctor.policies.lerobot.tokenizer.tokenizer import FOLDER as WORDS_FOLDER
from proctor.policies.lerobot.tokenizer.tokenizer import (
    MOST_TOKENS,
    PROCESSOR,
    TextTokenizer,
    Tokenizers,
)
from proctor.policies.pi0.config import PALIGEMMA
from proctor.policies.pi0.steps import StatePrompt
from proctor.policies.pi0_fast.fast import ActionTokenizer, FastCodec

FOLDER = "action_tokenizer"
"""A checkpoint's folder with its FAST tokenizer."""
_OPENING, _END = "Action: ", "|"
_SKIPPED = 128


@dataclass(frozen=True)
class Pi0FastStatePrompt(StatePrompt):
    """Write the state into the prompt; pi0-FAST generates the ending "Action: " itself."""

    registry_name: ClassVar[str] = "pi0_fast_prepare_state_tokenizer_processor_step"
    ending: ClassVar[str] = ""


@dataclass(frozen=True)
class _Scale:
    """The fields read from processor_config.json."""

    min_token: Annotated[int, msgspec.Meta(ge=-(2**15), le=2**15)]
    scale: Annotated[float, msgspec.Meta(gt=0, le=1e6)]


@dataclass(frozen=True)
class _Pairs:
    """``BytePairCodec`` over a text tokenizer."""

    tokenizer: TextTokenizer

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, codes: list[int]) -> str:
        if min(codes, default=0) < 0:
            raise ValueError("a code is below 0")
        return self.tokenizer.decode(codes)


@dataclass(frozen=True)
class TokenizeActions(ProcessorStep):
    """Tokenize the actions of a training sample: ``ACTION_TOKENS`` int64, ``ACTION_MASK`` bool.

    In evaluation the step does nothing; the network takes its tokenizer to decode actions.
    """

    registry_name: ClassVar[str] = "action_tokenizer_processor"
    adds_prompt_inputs: ClassVar[bool] = True
    artifacts: ClassVar[Mapping[str, str]] = {
        "action_tokenizer_name": "inside",
        "paligemma_tokenizer_name": "words_inside",
    }
    trust_remote_code: bool = True
    """Written for LeRobot; Proctor runs no remote code."""
    max_action_tokens: int = 256
    fast_skip_tokens: int = _SKIPPED
    paligemma_tokenizer_name: str = PALIGEMMA
    allow_truncation: bool = True
    """Whether longer sequences are truncated (LeRobot after 0.6.1)."""
    action_tokenizer_name: str | None = None
    action_tokenizer: ActionTokenizer | None = field(default=None, metadata=OURS)
    held: dict[str, bytes] = field(default_factory=dict, metadata=OURS)
    """The FAST tokenizer's files, by name."""
    inside: str = field(default=FOLDER, metadata=OURS)
    words_inside: str = field(default=WORDS_FOLDER, metadata=OURS)
    """The checkpoint's folders of the FAST and the text tokenizer, if it has them."""

    @property
    def training_keys(self) -> tuple[str, ...]:
        """Training data that the step reads: the actions."""
        return (ACTION,)

    def encode_prompt(self, prompt_inputs: PromptInputs) -> PromptInputs:
        """Add the action tokens if there are actions."""
        if ACTION not in prompt_inputs.seen:
            return prompt_inputs
        assert self.action_tokenizer is not None, "a pipeline is equipped before it is used"
        chunks = prompt_inputs.seen[ACTION].float().numpy()
        tokens = np.zeros((len(chunks), self.max_action_tokens), np.int64)
        real = np.zeros(tokens.shape, np.bool_)
        for row, actions in enumerate(chunks):
            whole = self.action_tokenizer.tokens(actions)
            said = whole[: self.max_action_tokens]
            if len(said) < len(whole) and not self.allow_truncation:
                raise UsageError(
                    f"{self.registry_name}: actions take {len(whole)} tokens, max_action_tokens is "
                    f"{self.max_action_tokens}, and allow_truncation false",
                    code="policy.actions-too-long",
                )
            tokens[row, : len(said)], real[row, : len(said)] = said, True
        return replace(
            prompt_inputs, arrays={**prompt_inputs.arrays, ACTION_TOKENS: tokens, ACTION_MASK: real}
        )

    def config(self) -> dict[str, Any]:
        """Return the settings in LeRobot's order; settings that it may omit only if not default."""
        said: dict[str, Any] = {
            "trust_remote_code": self.trust_remote_code,
            "max_action_tokens": self.max_action_tokens,
        }
        if self.action_tokenizer_name is not None:
            said["action_tokenizer_name"] = self.action_tokenizer_name
        if not self.allow_truncation:
            said["allow_truncation"] = False
        if self.fast_skip_tokens != _SKIPPED:
            said["fast_skip_tokens"] = self.fast_skip_tokens
        if self.paligemma_tokenizer_name != PALIGEMMA:
            said["paligemma_tokenizer_name"] = self.paligemma_tokenizer_name
        return said

    def files(self) -> dict[str, bytes]:
        """Return the files of the FAST tokenizer, by their paths in a checkpoint."""
        return {f"{FOLDER}/{name}": content for name, content in self.held.items()}

    def check(self, where: str) -> None:
        """Refuse lengths that are too short or too long."""
        if not 2 <= self.max_action_tokens <= MOST_TOKENS:
            raise UsageError(
                f"{where}: max_action_tokens is {self.max_action_tokens}",
                code="checkpoint.invalid-pipeline",
            )
        if self.fast_skip_tokens < 0:
            raise UsageError(
                f"{where}: fast_skip_tokens is {self.fast_skip_tokens}",
                code="checkpoint.invalid-pipeline",
            )

    def with_tokenizers(self, tokenizers: Tokenizers) -> TokenizeActions:
        """Return the step with its text tokenizer and its FAST tokenizer loaded."""
        words = tokenizers.find(self.paligemma_tokenizer_name, self.words_inside)
        # --policy.tokenizer names a text tokenizer, never FAST's.
        codes = replace(tokenizers, given=None).find(self.action_tokenizer_name, self.inside)
        scale = _scale(codes)
        speech = ActionTokenizer(
            fast=FastCodec(_Pairs(codes), scale.scale, scale.min_token),
            size=words.plain_size,
            skip=self.fast_skip_tokens,
            begin=words.special("bos_token"),
            end=words.number(_END),
            stop=words.special("eos_token"),
            opening=tuple(words.encode(_OPENING, specials=False)),
        )
        # A saved checkpoint has them in these folders.
        placed = replace(self, inside=FOLDER, words_inside=WORDS_FOLDER)
        return replace(placed, action_tokenizer=speech, held=codes.files)


def _scale(codes: TextTokenizer) -> _Scale:
    where = f"{codes.where}/{PROCESSOR}"
    if PROCESSOR not in codes.files:
        raise UsageError(
            f"{where} is missing: it holds the scale of FAST's coefficients",
            code="tokenizer.not-found",
        )
    try:
        return msgspec.json.decode(codes.files[PROCESSOR], type=_Scale)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: {error}", code="tokenizer.unreadable") from None


def find_action_tokenizer(steps: Sequence[ProcessorStep]) -> ActionTokenizer:
    """Return the action tokenizer of the preprocessor steps."""
    for step in steps:
        if isinstance(step, TokenizeActions) and step.action_tokenizer is not None:
            return step.action_tokenizer
    raise UsageError(
        f"the policy's preprocessor has no {TokenizeActions.registry_name}",
        code="checkpoint.missing-tokenizer",
    )
