"""Base network of pi0, pi0.5 and pi0-FAST: PaliGemma with LeRobot's mix of dtypes."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from proctor.policies.pi0.config import PiConfig
from proctor.policies.pi0.paligemma import PaliGemma
from proctor.policies.runtime.network import Network

_HALVED = re.compile(
    r"lm_head|embed_tokens|(language_model|gemma_expert\.model)\.layers\.\d+\.(self_attn|mlp)\."
)
"""Parameters that ``dtype`` applies to; LeRobot keeps the others in float32."""
_MODEL = "paligemma_with_expert.paligemma."
_HEAD, _TABLE = f"{_MODEL}lm_head.weight", f"{_MODEL}model.language_model.embed_tokens.weight"


class PrefixEncoder(Network):
    """Network that encodes images and prompt with PaliGemma."""

    takes_history = False
    skips_padding = True
    config: PiConfig
    paligemma_with_expert: nn.ModuleDict

    @property
    def vlm(self) -> PaliGemma:
        """The vision-language model."""
        model: PaliGemma = self.paligemma_with_expert["paligemma"]  # type: ignore[assignment]
        return model

    @property
    def vocabulary(self) -> int:
        """Size of the token embedding table."""
        return self.vlm.language.embed_tokens.num_embeddings

    def encode_images(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """Return the image tokens of every camera in ``inputs``; missing cameras are skipped.

        LeRobot encodes a black image instead and masks it, which gives the same numbers.
        """
        cameras = [inputs[key] for key in self.config.cameras if key in inputs]
        return self.vlm.encode_images(cameras, self.config.side)

    def remap_state_dict(self, stored: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tie token embeddings and language-model head if a file holds only one of them."""
        for name, other in ((_TABLE, _HEAD), (_HEAD, _TABLE)):
            if name not in stored and other in stored:
                stored = {**stored, name: stored[other]}
        return stored

    def cast(self, dtype: torch.dtype | None) -> None:
        """Store the large matrices in ``dtype`` and everything else in float32."""
        for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
            wanted = dtype or tensor.dtype
            tensor.data = tensor.data.to(wanted if _HALVED.search(name) else torch.float32)

    @property
    def input_dtype(self) -> torch.dtype:
        """Always float32, the dtype of the vision encoder."""
        return torch.float32

    def training_notes(self, steps: int) -> tuple[str, ...]:
        """Return notes on relative actions: their statistics and their excluded joints."""
        config = self.config
        if not config.use_relative_actions:
            return ()
        known = config.action_feature_names is not None
        unnamed = (
            "the dataset does not name the action's dimensions, so relative_exclude_joints has no "
            "effect: all dimensions are relative"
        )
        return (
            "the policy learns actions relative to the state but normalises them by the dataset's "
            "statistics of actions: these must be computed from relative actions",
            *(() if known or not config.relative_exclude_joints else (unnamed,)),
        )

    def begin_training(self) -> None:
        """Cast to the config's dtype, and untie the token embeddings from the head."""
        self.cast({"float32": torch.float32, "bfloat16": torch.bfloat16}[self.config.dtype])
        table = self.vlm.language.embed_tokens.weight
        if table.data_ptr() == self.vlm.lm_head.weight.data_ptr():
            table.data = table.data.clone()
