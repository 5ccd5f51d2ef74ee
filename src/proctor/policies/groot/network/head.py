"""GR00T N1.7's action head: flow matching with a diffusion transformer.

    backbone's features ─▶ LayerNorm ─▶ self-attention ─▶ keys and values of 16 blocks   once
    state ─▶ token ┐
    noisy actions, time ─▶ tokens ┴▶ DiT ─▶ velocity ─▶ Euler steps from noise to actions

x_t = (1 - t) noise + t actions, and the velocity is actions - noise. Keys and values of the
context do not change between denoising steps, and neither do the weights of an embodiment.

B is the batch, T the action horizon, A the padded action size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.groot.network.backbone import BackboneTokens
from proctor.policies.groot.network.dit import Dit, Encoder, KeysAndValues
from proctor.policies.groot.network.sizes import GrootSizes


class HeadContext(NamedTuple):
    """Everything that denoising steps share."""

    attended: list[KeysAndValues | None]
    """What each block of the DiT attends to; None: the tokens themselves."""
    state: Tensor
    """The state's token, [B, 1, D]."""
    encoder: ActionEncoderWeights
    decoder: MlpWeights


class Prefix(NamedTuple):
    """Actions of the previous chunk for real-time chunking."""

    actions: Tensor
    """Start of the first actions, [B, T, A]."""
    counts: Tensor
    """1 where ``actions`` replaces the noise, [B, T, 1]."""
    strength: Tensor
    """Factor of the velocity, [B, T, 1]."""


class ActionHead(nn.Module):
    """The action head; attribute names are those of NVIDIA's checkpoints."""

    def __init__(self, sizes: GrootSizes) -> None:
        super().__init__()
        self.sizes = sizes
        slots, width = sizes.max_num_embodiments, sizes.input_embedding_dim
        self.model = Dit(sizes.diffusion_model_cfg, sizes.backbone_embedding_dim)
        self.state_encoder = EmbodimentMlp(slots, sizes.max_state_dim, sizes.hidden_size, width)
        self.action_encoder = ActionEncoder(slots, sizes.max_action_dim, width)
        self.action_decoder = EmbodimentMlp(
            slots, sizes.hidden_size, sizes.hidden_size, sizes.max_action_dim
        )
        if sizes.num_target_vision_tokens:
            self.future_tokens = nn.Embedding(sizes.num_target_vision_tokens, width)
            nn.init.normal_(self.future_tokens.weight, std=0.02)
        normed = sizes.use_vlln
        self.vlln = nn.LayerNorm(sizes.backbone_embedding_dim) if normed else nn.Identity()
        self.vl_self_attention = Encoder(sizes.vl_self_attention_cfg)
        if sizes.add_pos_embed:
            self.position_embedding = nn.Embedding(sizes.max_seq_len, width)
            nn.init.normal_(self.position_embedding.weight, std=0.02)

    def encode_context(self, tokens: BackboneTokens, *, upstream: bool) -> Tensor:
        """Return the context rows [B, S, D] of the backbone's features.

        ``upstream``: rows attend to padding too, as in LeRobot.
        """
        rows: Tensor = self.vlln(tokens.features)
        out: Tensor = self.vl_self_attention(rows, None if upstream else tokens.valid)
        return out

    def context(
        self, tokens: BackboneTokens, state: Tensor, embodiment: Tensor, *, upstream: bool
    ) -> HeadContext:
        """Return what denoising steps share; ``state`` is [B, S], ``embodiment`` int [B]."""
        rows = self.encode_context(tokens, upstream=upstream)
        return HeadContext(
            self._attended(rows, tokens, upstream=upstream),
            self.state_encoder.of(embodiment)(state[:, None]),
            self.action_encoder.of(embodiment),
            self.action_decoder.of(embodiment),
        )

    def _attended(
        self, rows: Tensor, tokens: BackboneTokens, *, upstream: bool
    ) -> list[KeysAndValues | None]:
        """Return keys and values of every cross-attention block.

        Blocks attend to image tokens and to text tokens in turn, or all of them to all tokens.
        """
        blocks = self.model.transformer_blocks
        if not self.sizes.use_alternate_vl_dit:
            valid = None if upstream else tokens.valid
            return [
                block.attn1.attended(rows, valid) if n % 2 == 0 else None  # type: ignore[operator, union-attr]
                for n, block in enumerate(blocks)
            ]
        images = torch.cat([rows[:, part] for part in tokens.images], 1)
        gaps = _gaps(tokens.images, rows.shape[1])
        text, valid = (torch.cat([x[:, part] for part in gaps], 1) for x in (rows, tokens.valid))
        every = 2 * self.sizes.attend_text_every_n_blocks
        found: list[KeysAndValues | None] = []
        for number, block in enumerate(blocks):
            shown = (text, valid) if number % every == 0 else (images, None)
            found.append(block.attn1.attended(*shown) if number % 2 == 0 else None)  # type: ignore[operator, union-attr]
        return found

    def velocity(
        self, x: Tensor, time: Tensor, modulations: Sequence[Tensor], context: HeadContext
    ) -> Tensor:
        """Return the velocity [B, T, A] at ``x``, ``time`` embedded for the action encoder."""
        tokens = context.encoder(x, time)
        if self.sizes.add_pos_embed:
            tokens = tokens + self.position_embedding.weight[: x.shape[1]]
        parts = [context.state.to(tokens.dtype)]
        if self.sizes.num_target_vision_tokens:
            parts.append(self.future_tokens.weight.to(tokens.dtype).expand(len(tokens), -1, -1))
        out = self.model(torch.cat([*parts, tokens], 1), modulations, context.attended)
        return context.decoder(out)[:, -x.shape[1] :]

    def sample(
        self, context: HeadContext, noise: Tensor, steps: int, prefix: Prefix | None = None
    ) -> Tensor:
        """Integrate from ``noise`` [B, T, A] to actions by ``steps`` Euler steps."""
        x = noise
        if prefix is not None:
            x = torch.where(prefix.counts > 0, prefix.actions.to(x.dtype), x)
        whole = self.sizes.num_timestep_buckets
        made = [torch.full((1,), int(n / steps * whole), device=x.device) for n in range(steps)]
        buckets = torch.cat(made)  # made on the device, as CUDA graphs need
        times = self.action_encoder.embed_time(buckets)
        modulations = self.model.modulations(buckets)
        for n in range(steps):
            here = [modulation[n : n + 1] for modulation in modulations]
            step = self.velocity(x, times[n : n + 1], here, context) / steps
            x = x + (step if prefix is None else step * prefix.strength.to(step.dtype))
        return x

    def errors(self, context: HeadContext, actions: Tensor, noise: Tensor, time: Tensor) -> Tensor:
        """Return the squared errors [B, T, A] of the velocity at ``time`` [B]."""
        t = time[:, None, None]
        x = (1 - t) * noise + t * actions
        bucket = (time * self.sizes.num_timestep_buckets).long()
        embedded = self.action_encoder.embed_time(bucket)
        found = self.velocity(x, embedded, self.model.modulations(bucket), context)
        return (found.float() - (actions - noise)) ** 2


def _gaps(parts: Sequence[slice], length: int) -> list[slice]:
    """Return the slices between ``parts`` of a sequence."""
    starts = [0, *(part.stop for part in parts)]
    ends = [*(part.start for part in parts), length]
    return [slice(a, b) for a, b in zip(starts, ends, strict=True)]


class LinearWeights(NamedTuple):
    """Weights of a linear layer, for each row of a batch."""

    weight: Tensor
    """[B, in, out]."""
    bias: Tensor
    """[B, 1, out]."""

    def __call__(self, x: Tensor) -> Tensor:
        """Map [B, T, in] to [B, T, out]."""
        return torch.bmm(x.to(self.weight.dtype), self.weight) + self.bias


class EmbodimentLinear(nn.Module):
    """A linear layer for each embodiment."""

    def __init__(self, embodiments: int, size: int, out: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(embodiments, size, out))
        nn.init.normal_(self.W, std=0.02)
        self.b = nn.Parameter(torch.zeros(embodiments, out))

    def of(self, embodiment: Tensor) -> LinearWeights:
        """Return the weights of each row's ``embodiment``, int [B]."""
        return LinearWeights(self.W[embodiment], self.b[embodiment][:, None])


class MlpWeights(NamedTuple):
    """Weights of a two-layer MLP, for each row of a batch."""

    first: LinearWeights
    second: LinearWeights

    def __call__(self, x: Tensor) -> Tensor:
        """Map [B, T, in] to [B, T, out]."""
        return self.second(F.relu(self.first(x)))


class EmbodimentMlp(nn.Module):
    """A two-layer MLP for each embodiment."""

    def __init__(self, embodiments: int, size: int, hidden: int, out: int) -> None:
        super().__init__()
        self.layer1 = EmbodimentLinear(embodiments, size, hidden)
        self.layer2 = EmbodimentLinear(embodiments, hidden, out)

    def of(self, embodiment: Tensor) -> MlpWeights:
        """Return the weights of each row's ``embodiment``."""
        return MlpWeights(self.layer1.of(embodiment), self.layer2.of(embodiment))


class ActionEncoderWeights(NamedTuple):
    """Weights of the action encoder, for each row of a batch."""

    action: LinearWeights
    mixed: LinearWeights
    out: LinearWeights

    def __call__(self, actions: Tensor, time: Tensor) -> Tensor:
        """Encode noisy actions [B, T, A] and times [B or 1, D] to tokens [B, T, D]."""
        x = self.action(actions)
        both = torch.cat([x, time.to(x.dtype)[:, None].expand_as(x)], -1)
        return self.out(F.silu(self.mixed(both)))


class ActionEncoder(nn.Module):
    """Encoder of noisy actions and their time, for each embodiment."""

    def __init__(self, embodiments: int, action: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.W1 = EmbodimentLinear(embodiments, action, width)
        self.W2 = EmbodimentLinear(embodiments, 2 * width, width)
        self.W3 = EmbodimentLinear(embodiments, width, width)

    def of(self, embodiment: Tensor) -> ActionEncoderWeights:
        """Return the weights of each row's ``embodiment``."""
        return ActionEncoderWeights(
            *(layer.of(embodiment) for layer in (self.W1, self.W2, self.W3))
        )

    def embed_time(self, bucket: Tensor) -> Tensor:
        """Return the sinusoidal embedding [N, D] of time buckets [N]: sines, then cosines."""
        half = self.width // 2
        number = torch.arange(half, dtype=torch.float32, device=bucket.device)
        angles = bucket.float()[:, None] * (number * (-math.log(10_000.0) / half)).exp()
        return torch.cat([angles.sin(), angles.cos()], -1)
