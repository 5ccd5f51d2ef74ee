"""Codes for stretches of actions: a VQ-VAE with two layers of codes (van den Oord et al., 2017).

    actions [N, W * A] ─▶ encoder ─▶ vector ─▶ nearest code of layer 1 ─┐
                                       └─ what is left ─▶ of layer 2 ───┴─ sum ─▶ decoder ─▶ actions

Codes are not learnt by gradients: each is a running mean of the vectors that it stands for.
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
"""Of the running means."""
_EPS = 1e-5


@dataclass(frozen=True)
class Coded:
    """What became of N vectors."""

    vectors: Tensor
    """The sums of their codes' vectors [N, D]; gradients pass as if nothing had been done."""
    codes: Tensor
    """Of each layer, int64 [N, 2]."""
    distance: Tensor
    """Mean square of what each layer leaves of its vectors, added up."""


class Codebook(nn.Module):
    """One layer's codes; attribute names are those of LeRobot's checkpoints."""

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
        """Return the code of each vector [N, D]."""
        codes = self.embed[0]
        between = (vectors**2).sum(1, keepdim=True) + (codes**2).sum(1) - 2 * vectors @ codes.T
        return between.argmin(1)

    @torch.no_grad()
    def follow(self, vectors: Tensor, codes: Tensor) -> None:
        """Move every code towards the mean of the vectors that it was the nearest of."""
        chosen = F.one_hot(codes, self.embed.shape[1]).to(vectors.dtype)
        counts, sums = chosen.sum(0), chosen.T @ vectors
        if dist.is_available() and dist.is_initialized():  # several processes have one codebook
            dist.all_reduce(counts)
            dist.all_reduce(sums)
        self.cluster_size.lerp_(counts[None], 1 - DECAY)
        self.embed_avg.lerp_(sums[None], 1 - DECAY)
        total, n = self.cluster_size.sum(), self.cluster_size.shape[1]
        sizes = (self.cluster_size + _EPS) / (total + n * _EPS) * total  # none is divided by 0
        self.embed.copy_(self.embed_avg / sizes[..., None])


class Layer(nn.Module):
    """A place in the names of LeRobot's checkpoints."""

    def __init__(self, n_codes: int, width: int) -> None:
        super().__init__()
        self._codebook = Codebook(n_codes, width)

    @property
    def codebook(self) -> Codebook:
        """Its codes."""
        return self._codebook


class ResidualCodes(nn.Module):
    """Layers of codes, each for what the one before leaves."""

    freeze_codebook: Tensor

    def __init__(self, n_codes: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(n_codes, width) for _ in range(N_LAYERS))
        self.register_buffer("freeze_codebook", torch.tensor(False))

    @property
    def codebooks(self) -> list[Codebook]:
        """The codes of each layer."""
        return [layer.codebook for layer in self.layers if isinstance(layer, Layer)]

    def forward(self, vectors: Tensor, *, follow: bool) -> Coded:
        """Code vectors [N, D], in float32; ``follow`` lets the codes follow them."""
        with torch.autocast(vectors.device.type, enabled=False):
            return self._forward(vectors, follow=follow)

    def _forward(self, vectors: Tensor, *, follow: bool) -> Coded:
        left, found = vectors.float(), torch.zeros_like(vectors, dtype=torch.float32)
        codes, distance = [], torch.zeros((), device=vectors.device)
        for codebook in self.codebooks:
            nearest = codebook.nearest(left.detach())
            quantised = codebook.embed[0][nearest]
            if follow:
                codebook.follow(left.detach(), nearest)
            distance = distance + F.mse_loss(left, quantised)
            found = found + left + (quantised - left).detach()
            left = left - quantised
            codes.append(nearest)
        return Coded(found, torch.stack(codes, 1), distance)

    def vectors(self, codes: Tensor) -> Tensor:
        """Return the sums [N, D] of the vectors that ``codes`` [N, 2] stand for."""
        of_layers = [book.embed[0][codes[:, i]] for i, book in enumerate(self.codebooks)]
        return torch.stack(of_layers).sum(0)


class VqVae(nn.Module):
    """Stretches of actions to codes and back."""

    discretized: Tensor
    """Whether the codes are learnt, and stay as they are."""

    def __init__(self, config: VqBetConfig) -> None:
        super().__init__()
        self.stretch = (config.action_chunk_size, config.action_dim)
        numbers, hidden = config.action_chunk_size * config.action_dim, config.vqvae_enc_hidden_dim
        width = config.vqvae_embedding_dim
        self.vq_layer = ResidualCodes(config.vqvae_n_embed, width)
        self.encoder = _mlp(numbers, hidden, width)
        self.decoder = _mlp(width, hidden, numbers)
        self.register_buffer("discretized", torch.tensor(False))

    def freeze(self) -> None:
        """Let the codes be as they are from here on."""
        self.discretized.fill_(True)
        self.vq_layer.freeze_codebook.fill_(True)

    @torch.no_grad()
    def encode(self, actions: Tensor) -> Tensor:
        """Return the codes [N, 2] of stretches [N, W, A]."""
        return self._coded(actions, follow=False).codes

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Return the stretches [N, W, A] that codes [N, 2] stand for."""
        vectors = self.vq_layer.vectors(codes)
        actions: Tensor = self.decoder(vectors).unflatten(1, self.stretch)
        return actions

    def loss(self, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return how far stretches [N, W, A] are from what their codes stand for, and parts.

        In training mode the codes follow.
        """
        coded = self._coded(actions, follow=self.training)
        error = (actions.flatten(1) - self.decoder(coded.vectors)).abs().mean()
        n = self.vq_layer.codebooks[0].embed.shape[1]
        codes = coded.codes
        parts = {
            "n_different_codes": torch.stack([_n_different(c, n) for c in codes.unbind(1)]).sum(),
            "n_different_combinations": _n_different(codes[:, 0] * n + codes[:, 1], n * n),
            "recon_l1_error": error.detach(),
        }
        return error + 5 * coded.distance, parts

    def _coded(self, actions: Tensor, *, follow: bool) -> Coded:
        coded: Coded = self.vq_layer(self.encoder(actions.flatten(1)), follow=follow)
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
    """Count which of 0 to n - 1 are there, without waiting for the device."""
    return torch.zeros(n, device=values.device).scatter_(0, values, 1.0).sum()
