"""N1.5's backbone, Eagle 2.5 VL: SigLIP's image tokens in a prompt of Qwen3.

Every prompt begins with the same tokens and images, so the places of images do not depend on the
instruction. Padding is at the end here and at the start in LeRobot; no valid token attends to it.
Parameter names are those of NVIDIA's checkpoints.

B is the batch, L the prompt's tokens without images, S all tokens, D the width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from proctor.policies.blocks.encoder_sizes import SiglipSizes
from proctor.policies.blocks.siglip import SiglipEncoder
from proctor.policies.groot.network.backbone import BackboneTokens
from proctor.policies.groot.network.qwen_text import QwenText, TokenPlaces, axis_rotary, causal_mask
from proctor.policies.groot.network.sizes import EagleSizes


class PoolingMlp(nn.Module):
    """Weights of the pooling head's MLP."""

    def __init__(self, sizes: SiglipSizes) -> None:
        super().__init__()
        self.fc1 = nn.Linear(sizes.hidden_size, sizes.intermediate_size)
        self.fc2 = nn.Linear(sizes.intermediate_size, sizes.hidden_size)


class PoolingHead(nn.Module):
    """Weights of SigLIP's pooling head: checkpoints hold them, and GR00T does not use them."""

    def __init__(self, sizes: SiglipSizes) -> None:
        super().__init__()
        width = sizes.hidden_size
        self.probe = nn.Parameter(torch.zeros(1, 1, width))
        self.attention = nn.MultiheadAttention(width, sizes.num_attention_heads)
        self.layernorm = nn.LayerNorm(width, eps=sizes.layer_norm_eps)
        self.mlp = PoolingMlp(sizes)


class PooledSiglip(SiglipEncoder):
    """SigLIP's image encoder with the weights of its pooling head."""

    def __init__(self, sizes: SiglipSizes) -> None:
        super().__init__(sizes, norms_first=True)
        self.head = PoolingHead(sizes)


class VisionModel(nn.Module):
    """Holds the image encoder under transformers' name."""

    def __init__(self, sizes: SiglipSizes) -> None:
        super().__init__()
        self.vision_model = PooledSiglip(sizes)

    def forward(self, images: Tensor) -> Tensor:
        """Return one token per patch."""
        tokens: Tensor = self.vision_model(images)
        return tokens


class LanguageModel(nn.Module):
    """The first layers of Qwen3, and its head: the token embeddings, not used."""

    def __init__(self, sizes: EagleSizes) -> None:
        super().__init__()
        self.model = QwenText(sizes.text_config, sizes.select_layer)
        self.lm_head = nn.Module()
        self.lm_head.weight = self.model.embed_tokens.weight


class EagleModel(nn.Module):
    """Vision encoder, language model and the layer between them."""

    def __init__(self, sizes: EagleSizes) -> None:
        super().__init__()
        self.vision_model = VisionModel(sizes.vision_config)
        self.language_model = LanguageModel(sizes)
        seen, width = sizes.vision_config.hidden_size, sizes.text_config.hidden_size
        self.mlp1 = nn.Sequential(nn.Linear(seen, width))


class EagleBackbone(nn.Module):
    """The backbone of GR00T N1.5."""

    def __init__(self, sizes: EagleSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.eagle_model = EagleModel(sizes)
        width = sizes.text_config.hidden_size
        projected = sizes.project_to_dim
        self.eagle_linear = nn.Identity() if projected is None else nn.Linear(width, projected)

    @property
    def language(self) -> QwenText:
        """The language model."""
        return self.eagle_model.language_model.model

    @property
    def visual(self) -> VisionModel:
        """The vision encoder."""
        return self.eagle_model.vision_model

    def forward(
        self,
        views: Sequence[Tensor],
        tokens: Tensor,
        valid: Tensor,
        parts: Sequence[slice],
        *,
        upstream: bool,
    ) -> BackboneTokens:
        """Encode views [B, 3, H, W] each and a prompt.

        ``parts`` are the parts of ``tokens`` [B, L] before, between and after the views; ``valid``
        is False at padding. ``upstream``: padding tokens attend to nothing, as in LeRobot, where
        the action head reads them.
        """
        words = self.language.embed_tokens(tokens)
        x, everywhere = _with_images(words, valid, parts, self.encode_views(views))
        features = self.encode_tokens(x, everywhere, upstream=upstream)
        return BackboneTokens(features, everywhere, _slices(parts, self.sizes.image_tokens))

    def encode_tokens(self, x: Tensor, valid: Tensor, *, upstream: bool) -> Tensor:
        """Return the features of embedded tokens [B, S, D]; they are normed, unlike N1.7's."""
        text = self.language.sizes
        positions = torch.arange(x.shape[1], device=x.device).expand(3, -1)
        cos, sin = axis_rotary(positions, text)
        mask = causal_mask(valid, text.groups)
        attends = valid[..., None] if upstream else None
        found = self.language(x, TokenPlaces(cos, sin, mask, attends), [])
        features: Tensor = self.eagle_linear(self.language.norm(found))
        return features

    def encode_views(self, views: Sequence[Tensor]) -> list[Tensor]:
        """Return the tokens [B, image tokens, D] of each view."""
        rows = len(views[0])
        found = self.eagle_model.mlp1(self.visual(torch.cat(list(views))))
        return list(found.split(rows))


def _with_images(
    words: Tensor, valid: Tensor, parts: Sequence[slice], images: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return tokens [B, S, D] with images between the prompt's parts, and whether each is valid."""
    made, shown = [words[:, parts[0]]], [valid[:, parts[0]]]
    for part, image in zip(parts[1:], images, strict=True):
        made += [image.to(words.dtype), words[:, part]]
        shown += [valid.new_ones(image.shape[:2]), valid[:, part]]
    return torch.cat(made, 1), torch.cat(shown, 1)


def _slices(parts: Sequence[slice], length: int) -> list[slice]:
    """Return where the images lie among all tokens."""
    found, start = [], 0
    for part in parts[:-1]:
        start += part.stop - part.start
        found.append(slice(start, start + length))
        start += length
    return found
