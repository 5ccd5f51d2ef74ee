"""Residual VQ-VAE for action chunks: two VQ codebooks (van den Oord et al., 2017).

    actions [N, W * A] ─▶ encoder ─▶ vector ─▶ nearest code of codebook 1 ─┐
                                       └─ residual ─▶ of codebook 2 ───────┴─ sum ─▶ decoder

The codebooks are not trained by gradients: each code is a moving average of the vectors that are
assigned to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.policies.vqbet.config import VqBetConfig

N_LAYERS = 2
DECAY = 0.8
"""Decay of the codebooks' moving averages."""
_EPS = 1e-5


@dataclass(frozen=True)
class QuantizerOutput:
    """Result of quantising N vectors."""

    vectors: Tensor
    """Quantised vectors [N, D], with straight-through gradients."""
    codes: Tensor
    """Code of each codebook, int64 [N, 2]."""
    distance: Tensor
    """Commitment loss: mean squared residual, summed over the codebooks."""


class Codebook(nn.Module):
    """One VQ codebook; attribute names are those of LeRobot's checkpoints."""

    initted: Tensor
    cluster_size: Tensor
    embed_avg: Tensor
    embed: Tensor

    def __init__(self, n_codes: int, width: int) -> None:
        super().__init__()
        vectors = torch.empty(1, n_codes, width)
        nn.init.kaiming_uniform_(vectors)
        self.register_buffer("initted", torch.ones(1))
        self.register_buffer("cluster_size", torch.zeros(1, n_codes))
        self.register_buffer("embed_avg", vectors.clone())
        self.register_buffer("embed", vectors)

    def nearest(self, vectors: Tensor) -> Tensor:
        """Return the nearest code of each vector [N, D]."""
        codes = self.embed[0]
        between = (vectors**2).sum(1, keepdim=True) + (codes**2).sum(1) - 2 * vectors @ codes.T
        return between.argmin(1)

    @torch.no_grad()
    def update(self, vectors: Tensor, codes: Tensor) -> None:
        """Update the moving average of every code with the vectors assigned to it."""
        chosen = F.one_hot(codes, self.embed.shape[1]).to(vectors.dtype)
        counts, sums = chosen.sum(0), chosen.T @ vectors
        if dist.is_available() and dist.is_initialized():  # all processes share one codebook
            dist.all_reduce(counts)
            dist.all_reduce(sums)
        self.cluster_size.lerp_(counts[None], 1 - DECAY)
        self.embed_avg.lerp_(sums[None], 1 - DECAY)
        total, n = self.cluster_size.sum(), self.cluster_size.shape[1]
        sizes = (self.cluster_size + _EPS) / (total + n * _EPS) * total  # smoothed, so never 0
        self.embed.copy_(self.embed_avg / sizes[..., None])


class QuantizerLayer(nn.Module):
    """Wrapper that gives a codebook its name in LeRobot's checkpoints."""

    def __init__(self, n_codes: int, width: int) -> None:
        super().__init__()
        self._codebook = Codebook(n_codes, width)

    @property
    def codebook(self) -> Codebook:
        """The codebook."""
        return self._codebook


class ResidualVq(nn.Module):
    """Residual vector quantiser: each codebook quantises the residual of the one before."""

    freeze_codebook: Tensor

    def __init__(self, n_codes: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(QuantizerLayer(n_codes, width) for _ in range(N_LAYERS))
        self.register_buffer("freeze_codebook", torch.tensor(False))

    @property
    def codebooks(self) -> list[Codebook]:
        """The codebooks, in order."""
        return [layer.codebook for layer in self.layers if isinstance(layer, QuantizerLayer)]

    def forward(self, vectors: Tensor, *, update: bool) -> QuantizerOutput:
        """Quantise vectors [N, D] in float32; ``update`` updates the codebooks."""
        with torch.autocast(vectors.device.type, enabled=False):
            return self._forward(vectors, update=update)

    def _forward(self, vectors: Tensor, *, update: bool) -> QuantizerOutput:
        residual, quantised_sum = vectors.float(), torch.zeros_like(vectors, dtype=torch.float32)
        codes, distance = [], torch.zeros((), device=vectors.device)
        for codebook in self.codebooks:
            nearest = codebook.nearest(residual.detach())
            quantised = codebook.embed[0][nearest]
            if update:
                codebook.update(residual.detach(), nearest)
            distance = distance + F.mse_loss(residual, quantised)
            quantised_sum = quantised_sum + residual + (quantised - residual).detach()
            residual = residual - quantised
            codes.append(nearest)
        return QuantizerOutput(quantised_sum, torch.stack(codes, 1), distance)

    def vectors(self, codes: Tensor) -> Tensor:
        """Return the summed code vectors [N, D] of ``codes`` [N, 2]."""
        of_layers = [book.embed[0][codes[:, i]] for i, book in enumerate(self.codebooks)]
        return torch.stack(of_layers).sum(0)


class VqVae(nn.Module):
    """Encodes action chunks as codes, and decodes codes to chunks."""

    discretized: Tensor
    """Whether phase 1 is over and the codebooks are frozen."""

    def __init__(self, config: VqBetConfig) -> None:
        super().__init__()
        self.chunk_shape = (config.action_chunk_size, config.action_dim)
        numbers, hidden = config.action_chunk_size * config.action_dim, config.vqvae_enc_hidden_dim
        width = config.vqvae_embedding_dim
        self.vq_layer = ResidualVq(config.vqvae_n_embed, width)
        self.encoder = _mlp(numbers, hidden, width)
        self.decoder = _mlp(width, hidden, numbers)
        self.register_buffer("discretized", torch.tensor(False))

    def freeze(self) -> None:
        """Freeze the codebooks."""
        self.discretized.fill_(True)
        self.vq_layer.freeze_codebook.fill_(True)

    @torch.no_grad()
    def encode(self, actions: Tensor) -> Tensor:
        """Return the codes [N, 2] of chunks [N, W, A]."""
        return self._quantize(actions, update=False).codes

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Return the chunks [N, W, A] of codes [N, 2]."""
        vectors = self.vq_layer.vectors(codes)
        actions: Tensor = self.decoder(vectors).unflatten(1, self.chunk_shape)
        return actions

    def loss(self, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the reconstruction and commitment loss of chunks [N, W, A], and its terms.

        In training mode it also updates the codebooks.
        """
        coded = self._quantize(actions, update=self.training)
        error = (actions.flatten(1) - self.decoder(coded.vectors)).abs().mean()
        n = self.vq_layer.codebooks[0].embed.shape[1]
        codes = coded.codes
        parts = {
            "n_different_codes": torch.stack([_n_different(c, n) for c in codes.unbind(1)]).sum(),
            "n_different_combinations": _n_different(codes[:, 0] * n + codes[:, 1], n * n),
            "recon_l1_error": error.detach(),
        }
        return error + 5 * coded.distance, parts

    def _quantize(self, actions: Tensor, *, update: bool) -> QuantizerOutput:
        coded: QuantizerOutput = self.vq_layer(self.encoder(actions.flatten(1)), update=update)
        return coded


def _mlp(size: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(size, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, out),
    )


def _n_different(values: Tensor, n: int) -> Tensor:
    """Count the distinct values in 0 to n - 1, without a host sync."""
    return torch.zeros(n, device=values.device).scatter_(0, values, 1.0).sum()
