"""Random numbers of one SAC update, drawn before it: an update is then a pure function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from proctor.policies.gaussian_actor.network import DROPOUT


@dataclass(frozen=True)
class DrawSizes:
    """Shapes of the random numbers of one update."""

    critic_steps: int
    actor_steps: int
    batch: int
    actions: int
    critics: int
    subset: int | None
    """Critics of a random subset for the target value; None: all."""
    encoder_passes: int
    """Passes of an observation encoder with images, each with its own dropout mask."""
    cameras: Sequence[str]
    embedding: int
    """Numbers of a camera's spatial embedding, which dropout is applied to."""


@dataclass
class SacDraws:
    """Random numbers of one update, on the algorithm's device."""

    target_noise: Tensor  # [critic_steps, B, A], standard normal, for the target actions
    actor_noise: Tensor  # [actor_steps, 2, B, A]: of the actor's loss, of the temperature's
    subsets: Tensor | None = None  # int64 [critic_steps, k]: critics of the target value
    keep: Tensor | None = None  # [encoder_passes, cameras, B, embedding]: dropout masks

    def parts(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return the fields in order."""
        return self.target_noise, self.actor_noise, self.subsets, self.keep

    def cloned(self) -> SacDraws:
        """Return a copy with its own memory."""
        subsets = None if self.subsets is None else self.subsets.clone()
        keep = None if self.keep is None else self.keep.clone()
        return SacDraws(self.target_noise.clone(), self.actor_noise.clone(), subsets, keep)

    def masks(self, cameras: Sequence[str]) -> Iterator[dict[str, Tensor] | None]:
        """Yield the dropout masks of each encoder pass by camera; None: no dropout."""
        if self.keep is None:
            while True:
                yield None
        for passed in self.keep:
            yield dict(zip(cameras, passed, strict=True))


def draw(sizes: DrawSizes, generator: torch.Generator) -> SacDraws:
    """Draw the random numbers of one update on the generator's device."""
    device = generator.device
    shape = sizes.batch, sizes.actions
    noise = torch.randn(
        sizes.critic_steps + 2 * sizes.actor_steps, *shape, generator=generator, device=device
    )
    subsets = keep = None
    if sizes.subset is not None:
        scores = torch.rand(sizes.critic_steps, sizes.critics, generator=generator, device=device)
        subsets = scores.argsort(dim=-1)[:, : sizes.subset]
    if sizes.cameras:
        masks = sizes.encoder_passes, len(sizes.cameras), sizes.batch, sizes.embedding
        keep = torch.empty(masks, device=device)
        keep.bernoulli_(1 - DROPOUT, generator=generator).div_(1 - DROPOUT)
    return SacDraws(
        noise[: sizes.critic_steps],
        noise[sizes.critic_steps :].view(sizes.actor_steps, 2, *shape),
        subsets,
        keep,
    )
