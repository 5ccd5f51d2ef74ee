"""GR00T N1.7's backbone: Qwen3-VL on images and a prompt, up to one of its middle layers.

Every prompt has the same layout, so the places of its images are known before anything runs:

    prefix | <vision_start> image tokens <vision_end>, for each view | text | padding

Padding is at the end here and at the start in LeRobot. No valid token attends to it and positions
do not count it, so this makes no difference to valid tokens. Parameter names are transformers'.

B is the batch, V the views, S all tokens, D the width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.groot.network.qwen_sizes import QwenSizes
from proctor.policies.groot.network.qwen_text import QwenText, TokenPlaces, axis_rotary, causal_mask
from proctor.policies.groot.network.qwen_vision import QwenVision, VisionTokens

Grid = tuple[int, int]
"""Rows and columns of an image's tokens."""


class BackboneTokens(NamedTuple):
    """The backbone's features, and what each token is."""

    features: Tensor
    """[B, S, D]."""
    valid: Tensor
    """False at padding, bool [B, S]."""
    images: list[slice]
    """Places of each view's image tokens, the same in every row."""


class Layout(NamedTuple):
    """Places of a prompt's tokens."""

    prefix: int
    """Tokens before the first image."""
    grids: tuple[Grid, ...]
    """Grid of each view's tokens."""
    text: int
    """Tokens after the last image, padding included."""

    @property
    def images(self) -> list[slice]:
        """Places of each view's image tokens."""
        start, found = self.prefix, []
        for rows, columns in self.grids:
            found.append(slice(start + 1, start + 1 + rows * columns))
            start += rows * columns + 2
        return found

    def positions(self, device: torch.device) -> Tensor:
        """Return the positions [3, S] of all tokens in time, height and width."""
        start, parts = 0, []

        def text(n: int) -> None:
            nonlocal start
            run = torch.arange(start, start + n, device=device)
            parts.append(run.expand(3, n))
            start += n

        text(self.prefix)
        for rows, columns in self.grids:
            text(1)
            row = torch.arange(rows, device=device)[:, None].expand(rows, columns)
            column = torch.arange(columns, device=device).expand(rows, columns)
            places = torch.stack([torch.zeros_like(row), row, column]).flatten(1)
            parts.append(places + start)
            start += max(rows, columns)
            text(1)
        text(self.text)
        return torch.cat(parts, 1)


class QwenParts(nn.Module):
    """Vision encoder and language model."""

    def __init__(self, sizes: QwenSizes, n_layers: int) -> None:
        super().__init__()
        self.visual = QwenVision(sizes.vision_config)
        self.language_model = QwenText(sizes.text_config, n_layers)


class QwenModel(nn.Module):
    """The model with its language-model head, which is the token embeddings and is not used."""

    def __init__(self, sizes: QwenSizes, n_layers: int) -> None:
        super().__init__()
        self.model = QwenParts(sizes, n_layers)
        self.lm_head = nn.Module()
        self.lm_head.weight = self.model.language_model.embed_tokens.weight


class QwenBackbone(nn.Module):
    """The backbone of GR00T N1.7."""

    def __init__(self, sizes: QwenSizes, n_layers: int) -> None:
        super().__init__()
        self.model = QwenModel(sizes, min(n_layers, sizes.text_config.num_hidden_layers))

    @property
    def visual(self) -> QwenVision:
        """The vision encoder."""
        return self.model.model.visual

    @property
    def language(self) -> QwenText:
        """The language model."""
        return self.model.model.language_model

    def forward(
        self, views: Sequence[Tensor], tokens: Tensor, valid: Tensor, prefix: int, *, upstream: bool
    ) -> BackboneTokens:
        """Encode views [B, 3, H, W] each and a prompt.

        ``tokens`` [B, L] are ``prefix`` tokens, the start and the end of an image, and the text;
        ``valid`` is False at padding. ``upstream``: padding tokens attend to nothing, as in
        LeRobot, where the action head reads them.
        """
        seen = self.encode_views(views)
        grids = tuple(self._grid(view) for view in views)
        layout = Layout(prefix, grids, tokens.shape[1] - prefix - 2)
        words = self.language.embed_tokens(tokens)
        before = torch.ones_like(valid[:, :1]).expand(-1, layout.images[-1].stop + 1)
        everywhere = torch.cat([before, valid[:, prefix + 2 :]], 1)
        x = self._assemble(words, [view.merged for view in seen], prefix)
        deepstack = [
            self._spread(layout, [view.deepstack[n] for view in seen])
            for n in range(len(seen[0].deepstack))
        ]
        text = self.language.sizes
        cos, sin = axis_rotary(layout.positions(x.device), text)
        mask = causal_mask(everywhere, text.groups)
        attends = everywhere[..., None] if upstream else None
        features = self.language(x, TokenPlaces(cos, sin, mask, attends), deepstack)
        return BackboneTokens(features, everywhere, layout.images)

    def encode_views(self, views: Sequence[Tensor]) -> list[VisionTokens]:
        """Return the tokens of each view; views of one size are encoded together."""
        if len({view.shape for view in views}) > 1:
            return [self._encode(view) for view in views]
        found = self._encode(torch.cat(list(views)))
        parts = [[*part.chunk(len(views))] for part in (found.merged, *found.deepstack)]
        return [
            VisionTokens(merged, list(deepstack)) for merged, *deepstack in zip(*parts, strict=True)
        ]

    def _encode(self, images: Tensor) -> VisionTokens:
        size = self.visual.sizes.patch_size
        grid = images.shape[-2] // size, images.shape[-1] // size
        found: VisionTokens = self.visual(self.visual.patches(images), grid)
        return found

    def _grid(self, view: Tensor) -> Grid:
        side = self.visual.sizes.token_pixels
        return view.shape[-2] // side, view.shape[-1] // side

    @staticmethod
    def _assemble(words: Tensor, views: list[Tensor], prefix: int) -> Tensor:
        """Return [B, S, D]: the prompt's words with the views' tokens between them."""
        start, end = words[:, prefix : prefix + 1], words[:, prefix + 1 : prefix + 2]
        parts = [words[:, :prefix]]
        for view in views:
            parts += [start, view.to(words.dtype), end]
        return torch.cat([*parts, words[:, prefix + 2 :]], 1)

    @staticmethod
    def _spread(layout: Layout, views: list[Tensor]) -> Tensor:
        """Return [B, S, D]: the views' tokens at their places, and 0 elsewhere."""
        parts, after = [], 1
        for number, view in enumerate(views):
            before = layout.prefix + 1 if number == 0 else 1
            after = 1 + layout.text if number == len(views) - 1 else 1
            parts.append(F.pad(view, (0, 0, before, after)))
        return torch.cat(parts, 1)
