"""SmolVLM's connector: pixel shuffle and projection of image patches to language-model tokens.

32 x 32 patches ─▶ squares of 4 x 4 are merged ─▶ projection ─▶ 64 tokens
"""

from __future__ import annotations

from torch import Tensor, nn

from proctor.policies.smolvla.vlm import VlmSizes


class Connector(nn.Module):
    """Merge squares of ``scale_factor`` x ``scale_factor`` patches into one token each."""

    def __init__(self, sizes: VlmSizes) -> None:
        super().__init__()
        self.factor = sizes.scale_factor
        inner = sizes.vision_config.hidden_size * self.factor**2
        self.modality_projection = nn.Module()
        self.modality_projection.proj = nn.Linear(inner, sizes.text_config.hidden_size, bias=False)

    def forward(self, patches: Tensor) -> Tensor:
        """Map [N, side * side, width] to [N, (side / factor)^2, text width]."""
        s, side = self.factor, round(patches.shape[1] ** 0.5)
        n = side // s
        grid = patches.reshape(len(patches), n, s, n, s, -1)
        squares = grid.transpose(2, 3).reshape(len(patches), n * n, -1)
        tokens: Tensor = self.modality_projection.proj(squares)  # type: ignore[operator]
        return tokens
