"""Parameters and gradients of several modules in two flat buffers, and Adam on slices of them.

An update of small networks is limited by the number of kernels, not by arithmetic. With flat
buffers, gradient clipping, Adam and the target update are a few kernels for all parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import torch
from torch import Tensor, nn

BETAS = 0.9, 0.999
EPSILON = 1e-8
_CLIP_EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""


class Layout(Enum):
    """Order in memory of a weight [H, I], or of stacked ones [E, H, I].

    A product with a small batch is twice as fast if it needs no transposed weight.
    """

    PLAIN = "plain"
    TRANSPOSED = "transposed"
    """[I, H], or [E, I, H]."""
    INPUT_FIRST = "input first"
    """[I, E, H]: one matrix for an input that all networks of a stack share."""

    def order(self, dims: int) -> list[int]:
        """Return the dimensions in the order of memory."""
        order = list(range(dims))
        if self is Layout.TRANSPOSED:
            order[-2:] = order[:-3:-1]
        return [2, 0, 1] if self is Layout.INPUT_FIRST else order


@dataclass(frozen=True)
class Block:
    """A parameter [E, ...] of E stacked networks, and the place of its gradient."""

    value: Tensor
    gradient: Tensor


class FlatParameters:
    """Trainable parameters in one buffer, in named sections that are contiguous slices."""

    def __init__(
        self,
        sections: Mapping[str, Sequence[nn.Parameter]],
        layouts: Mapping[nn.Parameter, Layout] | None = None,
    ) -> None:
        """Move the parameters into the buffer; they share its memory from now on.

        Sections must not share parameters. A parameter without a layout is plain.
        """
        self.parameters = {name: list(parameters) for name, parameters in sections.items()}
        flat = [p for parameters in self.parameters.values() for p in parameters]
        orders = {p: (layouts or {}).get(p, Layout.PLAIN).order(p.dim()) for p in flat}
        self.values = torch.cat([p.detach().permute(orders[p]).reshape(-1) for p in flat])
        self.gradients = torch.zeros_like(self.values)
        self.slices: dict[str, slice] = {}
        start = 0
        for name, parameters in self.parameters.items():
            first = start
            for parameter in parameters:
                stop, order = start + parameter.numel(), orders[parameter]
                stored = self.values[start:stop].view([parameter.shape[i] for i in order])
                parameter.data = stored.permute([order.index(i) for i in range(len(order))])
                start = stop
            self.slices[name] = slice(first, start)

    def span(self, *names: str) -> slice:
        """Return the slice of neighbouring sections, given in order."""
        parts = [self.slices[name] for name in names]
        assert all(a.stop == b.start for a, b in pairwise(parts))
        return slice(parts[0].start, parts[-1].stop)

    def block(self, parameters: Sequence[nn.Parameter], *, stacked: bool) -> Block:
        """Return one parameter, or several plain neighbours joined along their rows, as a block.

        With ``stacked`` the first dimension is that of the stack; else the stack has one network.
        """
        value = parameters[0].detach()
        if len(parameters) > 1:
            rows = sum(parameter.shape[0] for parameter in parameters)
            value = self.values.as_strided(
                [rows, *value.shape[1:]], value.stride(), value.storage_offset()
            )
        if not stacked:
            value = value.unsqueeze(0)
        place = value.shape, value.stride(), value.storage_offset()
        return Block(value, self.gradients.as_strided(*place))

    def write(
        self,
        parameters: Sequence[nn.Parameter],
        gradients: Sequence[Tensor],
        *,
        accumulate: bool = False,
    ) -> None:
        """Write or add the gradients of neighbouring parameters to their places."""
        if not parameters:
            return
        start = parameters[0].storage_offset()
        stop = parameters[-1].storage_offset() + parameters[-1].numel()
        flat = [gradient.reshape(-1) for gradient in gradients]
        if accumulate:
            self.gradients[start:stop].add_(torch.cat(flat))
        else:
            torch.cat(flat, out=self.gradients[start:stop])

    def clip(self, most: float, *spans: slice) -> Tensor:
        """Scale the gradients of the spans so that their norm is at most ``most``.

        Returns:
            The norm before scaling.
        """
        parts = [self.gradients[span] for span in spans]
        norms = [torch.linalg.vector_norm(part) for part in parts]
        norm = norms[0] if len(norms) == 1 else torch.hypot(*norms)
        if norm.is_cuda or norm > most:  # reading the norm would make a GPU wait
            scale = torch.clamp(most / (norm + _CLIP_EPSILON), max=1.0)
            for part in parts:
                part.mul_(scale)
        return norm


class FlatAdam:
    """Adam on a slice of a flat buffer, with torch's fused kernel."""

    def __init__(self, values: Tensor, gradients: Tensor, rate: float) -> None:
        self.values = values
        self._gradients = gradients
        self.rate = rate
        self.mean = torch.zeros_like(values)
        self.square = torch.zeros_like(values)
        self.count = torch.zeros((), device=values.device)

    def step(self) -> None:
        """Move the values against their gradients."""
        self.count += 1
        torch._fused_adam_(
            [self.values],
            [self._gradients],
            [self.mean],
            [self.square],
            [],
            [self.count],
            lr=self.rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )
