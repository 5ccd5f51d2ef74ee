"""Processor steps of GR00T N1.5, as LeRobot 0.5.1 writes them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)

from proctor.features import ACTION
from proctor.policies.groot.decode_steps import ActionUnpack
from proctor.policies.groot.padded_prompts import encode_padded
from proctor.policies.groot.steps import ACTION_MASK, PackInputs, check_range
from proctor.policies.groot_n15.chat import EaglePrompt, read_prompt
from proctor.policies.groot_n15.embodiments import EMBODIMENTS
from proctor.policies.groot_n15.sizes import HORIZON
from proctor.policies.lerobot.step import OURS, ProcessorStep, PromptInputs, Tensors
from proctor.policies.lerobot.tokenizer import FOLDER, MOST_TOKENS, Tokenizers

ASSETS = "lerobot/eagle2hg-processor-groot-n1p5"
"""Repository of the tokenizer."""


@dataclass(frozen=True)
class PackInputsV3(PackInputs):
    """Normalise and pad states and actions, order the views, add the embodiment's number.

    Each row keeps its own instruction; LeRobot gives the first one to the whole batch.
    """

    registry_name: ClassVar[str] = "groot_pack_inputs_v3"
    action_horizon: int = HORIZON
    max_state_dim: int = 64
    max_action_dim: int = 32
    formalize_language: bool = False
    embodiment_mapping: dict[str, int] = field(default_factory=lambda: dict(EMBODIMENTS))
    clip_outliers: bool = field(default=False, metadata=OURS)

    def _formal(self, text: str) -> str:
        if not self.formalize_language:
            return text
        return "".join(c for c in text.lower() if c.isalnum() or c.isspace())

    def _actions(self, tensors: Tensors) -> Tensors:
        """Return normalised, padded actions [B, T, A] and their mask.

        A short chunk is filled with its last action, and the filling counts in the loss.
        """
        actions = tensors[ACTION]
        actions = actions[:, None] if actions.dim() == 2 else actions
        actions = self._min_max(actions, ACTION)[:, : self.action_horizon]
        missing = self.action_horizon - actions.shape[1]
        actions = torch.cat([actions, actions[:, -1:].expand(-1, missing, -1)], 1)
        spare = self.max_action_dim - actions.shape[-1]
        mask = F.pad(torch.ones_like(actions), (0, spare))
        return {ACTION: F.pad(actions, (0, spare)), ACTION_MASK: mask}

    def config(self) -> dict[str, Any]:
        """Return the step's settings, in LeRobot's order."""
        return {
            "state_horizon": self.state_horizon,
            "action_horizon": self.action_horizon,
            "max_state_dim": self.max_state_dim,
            "max_action_dim": self.max_action_dim,
            "language_key": self.language_key,
            "formalize_language": self.formalize_language,
            "embodiment_tag": self.embodiment_tag,
            "embodiment_mapping": self.embodiment_mapping,
            "normalize_min_max": self.normalize_min_max,
        }


@dataclass(frozen=True)
class EagleEncode(ProcessorStep):
    """Tokenize prompts in Eagle's chat format.

    ``LANGUAGE_TOKENS`` [B, max_length] are the tokens around the views (``EaglePrompt``). The
    network resizes views, whose size its vision encoder determines.
    """

    registry_name: ClassVar[str] = "groot_eagle_encode_v3"
    adds_prompt_inputs: ClassVar[bool] = True
    tokenizer_assets_repo: str = ASSETS
    max_length: int = field(default=192, metadata=OURS)
    prompt: EaglePrompt | None = field(default=None, metadata=OURS)

    def encode_prompt(self, told: PromptInputs) -> PromptInputs:
        """Add tokens and mask."""
        prompt = self.prompt
        assert prompt is not None, "with_tokenizers is called before use"
        return encode_padded(told, prompt, self.max_length)

    def files(self) -> dict[str, bytes]:
        """Return the tokenizer's files."""
        held = {} if self.prompt is None else self.prompt.tokenizer.files
        return {f"{FOLDER}/{name}": content for name, content in held.items()}

    def with_tokenizers(self, tokenizers: Tokenizers) -> EagleEncode:
        """Return the step with its tokenizer and chat format."""
        check_range("tokenizer_max_length", self.max_length, MOST_TOKENS)
        return replace(self, prompt=read_prompt(tokenizers.find(self.tokenizer_assets_repo)))


@dataclass(frozen=True)
class EagleCollate(ProcessorStep):
    """Does nothing: LeRobot's step joins the samples that ``EagleEncode`` has joined already."""

    registry_name: ClassVar[str] = "groot_eagle_collate_v3"
    tokenizer_assets_repo: str = ASSETS


@dataclass(frozen=True)
class ActionUnpackV1(ActionUnpack):
    """Invert the normalisation by a dataset's statistics, for every step of a chunk."""

    registry_name: ClassVar[str] = "groot_action_unpack_unnormalize_v1"

    def config(self) -> dict[str, Any]:
        """Return the step's settings, in LeRobot's order."""
        return {
            "env_action_dim": self.env_action_dim,
            "normalize_min_max": self.normalize_min_max,
        }
