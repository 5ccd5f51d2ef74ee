"""Sizes of transformer encoders, with the field names of transformers' config.json.

No torch here: configs are checked before anything is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec

from proctor.errors import UsageError
from proctor.policies.lerobot.limits import MOST_LAYERS, MOST_PIXELS, MOST_WIDTH

Width: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MOST_WIDTH)]
Layers: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MOST_LAYERS)]
Pixels: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MOST_PIXELS)]


@dataclass(frozen=True)
class EncoderSizes:
    """Sizes that the image and text encoders share; the defaults are CLIP's."""

    hidden_size: Width = 768
    intermediate_size: Width = 3072
    num_hidden_layers: Layers = 12
    num_attention_heads: Width = 12
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5

    def check(self, where: str) -> None:
        """Refuse invalid sizes; ``where`` names the file."""
        if self.hidden_size % self.num_attention_heads:
            raise UsageError(
                f"{where}: hidden_size is not a multiple of num_attention_heads",
                code="checkpoint.invalid-config",
            )
        if self.hidden_act not in self.activations:
            raise UsageError(
                f"{where}: hidden_act {self.hidden_act!r} is not supported",
                code="checkpoint.invalid-config",
            )

    @property
    def activations(self) -> tuple[str, ...]:
        """The activation functions that published models of this kind use."""
        return ("quick_gelu", "gelu")


@dataclass(frozen=True)
class SiglipSizes(EncoderSizes):
    """Sizes of a SigLIP image encoder; the defaults are SmolVLM2's."""

    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    image_size: Pixels = 512
    patch_size: Pixels = 16

    @property
    def activations(self) -> tuple[str, ...]:
        """GELU in its tanh form."""
        return ("gelu_pytorch_tanh",)
