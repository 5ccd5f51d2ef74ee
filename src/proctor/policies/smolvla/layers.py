"""SmolVLM's connector, the Llama layers of its language model, and the action expert.

The connector merges squares of 4 x 4 image patches: 32 x 32 patches ─▶ 64 tokens.

Shapes: B the batch, L tokens, H query heads, h key-value heads, D a head's width.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.blocks.decoder_layer import (
    GatedMlp,
    GroupedQueryProjections,
    grouped_query_attention,
)
from proctor.policies.smolvla.vlm import TextSizes, VlmSizes

ROPE_BASE = 10_000.0
"""LeRobot's base; it ignores the base that the language model was trained with."""
_ALIGNED = 8
"""Alignment of mask rows: attention copies masks that are not aligned."""


class RotaryEmbedding(NamedTuple):
    """Rotary position embedding of tokens, each [B, L, 1, D / 2]."""

    cos: Tensor
    sin: Tensor


def rotary_embedding(positions: Tensor, head: int) -> RotaryEmbedding:
    """Return the rotary embedding of ``positions`` [B, L]."""
    exponents = (2.0 / head) * torch.arange(head // 2, dtype=torch.float32, device=positions.device)
    turns = (positions[..., None].float() / ROPE_BASE**exponents)[:, :, None]
    return RotaryEmbedding(turns.cos(), turns.sin())


def apply_rope(x: Tensor, rope: RotaryEmbedding) -> Tensor:
    """Apply rotary embeddings to queries or keys [B, L, H, D], in float32."""
    first, second = x.float().chunk(2, -1)
    cos, sin = rope
    left = torch.addcmul(first * cos, second, sin, value=-1)
    right = torch.addcmul(second * cos, first, sin)
    return torch.cat([left, right], -1).to(x.dtype)


def additive_mask(allowed: Tensor, groups: int = 1) -> Tensor:
    """Return the additive mask: 0 where ``allowed`` [B, Lq, Lk], else minus infinity.

    ``groups`` is the number of query heads per key-value head; they become extra rows.
    """
    keys = allowed.shape[-1]
    forbidden = F.pad(~allowed.repeat(1, groups, 1), (0, -keys % _ALIGNED))
    scores = torch.zeros(forbidden.shape, device=allowed.device)
    return scores.masked_fill(forbidden, -torch.inf)[:, None, :, :keys]


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Return the attention of queries [B, Lq, H, D] over keys and values [B, Lk, h, D]."""
    q, k, v = (part.transpose(1, 2) for part in (queries, keys, values))
    return grouped_query_attention(q, k, v, mask.to(q.dtype))


class LlamaLayer(nn.Module):
    """A decoder layer; ``asked``: width of the tokens that keys and values come from, if other."""

    def __init__(
        self, width: int, inner: int, sizes: TextSizes, kv_width: int | None = None
    ) -> None:
        super().__init__()
        heads, kv_heads = sizes.num_attention_heads, sizes.num_key_value_heads
        self.self_attn = GroupedQueryProjections(width, heads, kv_heads, sizes.head, kv_width)
        self.mlp = GatedMlp(width, inner, F.silu)
        self.input_layernorm = nn.RMSNorm(width, eps=sizes.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=sizes.rms_norm_eps)

    def add_attention_and_mlp(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return tokens after the residual of ``attended`` [B, L, H * D] and the MLP."""
        x = x + self.self_attn.o_proj(attended)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class LlamaModel(nn.Module):
    """The language model's first layers."""

    def __init__(self, sizes: TextSizes, layers: int) -> None:
        super().__init__()
        width, inner = sizes.hidden_size, sizes.intermediate_size
        self.embed_tokens = nn.Embedding(sizes.vocab_size, width)
        self.layers = nn.ModuleList([LlamaLayer(width, inner, sizes) for _ in range(layers)])
        self.norm = nn.RMSNorm(width, eps=sizes.rms_norm_eps)

    def forward(
        self, x: Tensor, rope: RotaryEmbedding, mask: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """Return the KV cache of tokens [B, L, width] in every layer; keys are rotated.

        The output of the last layer is not computed.
        """
        cache: list[tuple[Tensor, Tensor]] = []
        for layer in cast("list[LlamaLayer]", self.layers):
            normed = layer.input_layernorm(x)
            attention = layer.self_attn
            keys, values = apply_rope(attention.keys(normed), rope), attention.values(normed)
            cache.append((keys, values))
            if len(cache) < len(self.layers):
                queries = apply_rope(attention.queries(normed), rope)
                x = layer.add_attention_and_mlp(x, attend(queries, keys, values, mask))
        return cache


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


class ExpertCache(NamedTuple):
    """KV cache for action tokens: computed once per query, used in every denoising step."""

    keys: list[Tensor]
    """Keys of every layer of the expert, [B, P, h, D]; ``values`` have the same shape."""
    values: list[Tensor]
    joint: tuple[RotaryEmbedding, Tensor]
    """Rotary embedding and mask of action tokens in joint layers."""
    cross: tuple[RotaryEmbedding, Tensor]
    """Rotary embedding and mask in cross layers, where positions start at 0."""


def joint_layers(mode: str, every: int, layers: int) -> list[bool]:
    """Return for each layer whether it is joint; the others are cross layers."""
    return ["cross" not in mode or (every > 0 and n % every == 0) for n in range(layers)]


class ActionExpert(nn.Module):
    """The action expert: its layers and its final norm."""

    def __init__(self, width: int, sizes: TextSizes, joint: list[bool]) -> None:
        super().__init__()
        self.joint = joint
        self.head = sizes.head
        self.groups = sizes.num_attention_heads // sizes.num_key_value_heads
        shared = sizes.num_key_value_heads * sizes.head
        inner = mlp_width(width)
        layers = [LlamaLayer(width, inner, sizes, None if own else shared) for own in joint]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(width, eps=sizes.rms_norm_eps)

    @property
    def _stack(self) -> list[LlamaLayer]:
        return cast("list[LlamaLayer]", self.layers)

    def make_cache(
        self, prefix_cache: list[tuple[Tensor, Tensor]], valid: Tensor, length: int
    ) -> ExpertCache:
        """Return the cache that ``length`` action tokens attend to, each causally.

        ``prefix_cache`` holds keys and values of the language model, layer by layer; ``valid``
        masks the prefix's padding.
        """
        keys, values, dtype = [], [], self.norm.weight.dtype
        for layer, joint, (keys_in, values_in) in zip(
            self._stack, self.joint, prefix_cache, strict=True
        ):
            attention = layer.self_attn
            keys_in, values_in = keys_in.to(dtype), values_in.to(dtype)
            keys.append(keys_in if joint else attention.keys(keys_in.flatten(2)))
            values.append(values_in if joint else attention.values(values_in.flatten(2)))
        steps = torch.arange(length, device=valid.device)
        causal = (steps <= steps[:, None]).expand(len(valid), -1, -1)
        allowed = torch.cat([valid[:, None].expand(-1, length, -1), causal], -1)
        count = valid.sum(1, keepdim=True)
        joint_rope = rotary_embedding(count + steps, self.head)
        cross_rope = rotary_embedding(steps[None], self.head)
        return ExpertCache(
            keys,
            values,
            (joint_rope, additive_mask(allowed, self.groups)),
            (cross_rope, additive_mask(valid[:, None])),
        )

    def forward(self, x: Tensor, cache: ExpertCache) -> Tensor:
        """Return action tokens [B, T, width] after all layers."""
        parts = zip(self._stack, self.joint, cache.keys, cache.values, strict=True)
        for layer, joint, keys, values in parts:
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            rope, mask = cache.joint if joint else cache.cross
            if joint:
                own = apply_rope(attention.keys(normed), rope)
                keys = torch.cat([keys, own], 1)
                values = torch.cat([values, attention.values(normed)], 1)
            queries = apply_rope(attention.queries(normed), rope)
            x = layer.add_attention_and_mlp(x, attend(queries, keys, values, mask))
        out: Tensor = self.norm(x)
        return out


def mlp_width(width: int) -> int:
    """Return the inner width of the expert's MLPs."""
    return -(-4 * (2 * width // 3) // 256) * 256
