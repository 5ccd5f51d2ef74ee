"""MLPs of the same sizes as one stack, with explicit gradients that are written in place.

One matrix product serves all MLPs of the stack. Gradients go straight to their place in a flat
buffer: no autograd graph is built, no temporary gradient is allocated and copied.

E is the number of MLPs, B the batch, H the width of a layer, I its input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.rl.algorithms.flat_parameters import Block

_EPSILON = 1e-5
"""Of torch.nn.LayerNorm."""


class _Linear:
    """A linear layer [E, H, I], with the views that its products need."""

    def __init__(self, weight: Block, bias: Block) -> None:
        self.weight, self.bias = weight.value, bias.value
        self.bias_gradient = bias.gradient
        self.bias_rows = bias.value.unsqueeze(1)  # [E, 1, H]
        self.transposed = weight.value.transpose(1, 2)  # [E, I, H]
        self.gradient, self.is_transposed = weight.gradient, False
        if not weight.gradient.is_contiguous():
            self.gradient, self.is_transposed = weight.gradient.transpose(1, 2), True

    def forward(self, x: Tensor) -> Tensor:
        """Return [E, B, H] of ``x`` [E, B, I]."""
        return torch.baddbmm(self.bias_rows, x, self.transposed)

    def backward(self, x: Tensor, d: Tensor, *, parameters: bool) -> Tensor:
        """Return the gradient of ``x``, given that of the output."""
        if parameters:
            left, right = (x, d) if self.is_transposed else (d, x)
            torch.bmm(left.transpose(1, 2), right, out=self.gradient)
            torch.sum(d, 1, out=self.bias_gradient)
        return torch.bmm(d, self.weight)


class _First:
    """A linear layer [E, H, I] with the same input for all MLPs: one product with all rows."""

    def __init__(self, weight: Block, bias: Block) -> None:
        self.count, self.width, _ = weight.value.shape
        self.weight = weight.value.flatten(0, 1)  # [E * H, I]
        self.bias, self.bias_gradient = bias.value.flatten(), bias.gradient.view(-1)
        self.gradient, self.is_transposed = weight.gradient.flatten(0, 1), False
        if not self.gradient.is_contiguous():
            self.gradient, self.is_transposed = self.gradient.t(), True

    def forward(self, x: Tensor) -> Tensor:
        """Return [E, B, H] of ``x`` [B, I]."""
        y = F.linear(x, self.weight, self.bias)
        return y.view(-1, self.count, self.width).transpose(0, 1)

    def backward(self, x: Tensor, d: Tensor, *, parameters: bool) -> Tensor:
        """Return the gradient [B, I] of ``x``, given that of the output."""
        rows = d.transpose(0, 1).flatten(1)  # [B, E * H]
        if parameters:
            left, right = (x, rows) if self.is_transposed else (rows, x)
            torch.mm(left.t(), right, out=self.gradient)
            torch.sum(rows, 0, out=self.bias_gradient)
        return rows @ self.weight


class _Norm:
    """Scale and shift [E, H] of a layer norm."""

    def __init__(self, scale: Block, shift: Block) -> None:
        self.scale, self.shift = scale.value.unsqueeze(1), shift.value.unsqueeze(1)
        self.scale_gradient, self.shift_gradient = scale.gradient, shift.gradient


@dataclass
class _Hidden:
    linear: _First | _Linear
    norm: _Norm | None = None
    """None: neither normalised nor activated."""
    activation: nn.Module | None = None


@dataclass(frozen=True)
class _Saved:
    """What the backward pass of a hidden layer needs."""

    given: Tensor
    linear: Tensor
    mean: Tensor
    inverse_std: Tensor
    normed: Tensor
    activated: Tensor
    """The activation's input."""


class Tape:
    """Intermediate values of one forward pass."""

    def __init__(self) -> None:
        self.hidden: list[_Saved] = []
        self.last: Tensor | None = None


class StackedMlp:
    """E MLPs: hidden layers of Linear, LayerNorm and an activation, then a Linear."""

    def __init__(self, structure: Iterable[nn.Module], blocks: Iterator[Block]) -> None:
        """``blocks`` are the stacked parameters in the order of ``structure``, then the output."""
        self._hidden: list[_Hidden] = []
        for module in structure:
            if isinstance(module, nn.Linear):
                kind = _Linear if self._hidden else _First
                self._hidden.append(_Hidden(kind(next(blocks), next(blocks))))
            elif isinstance(module, nn.LayerNorm):
                self._hidden[-1].norm = _Norm(next(blocks), next(blocks))
            else:
                self._hidden[-1].activation = module
        self._output = _Linear(next(blocks), next(blocks))

    def forward(self, x: Tensor, tape: Tape | None = None) -> Tensor:
        """Return the outputs [E, B, O] for ``x`` [B, I]; ``tape`` records for `backward`."""
        for layer in self._hidden:
            given, y = x, layer.linear.forward(x)
            normed = mean = inverse_std = x = y
            if layer.norm is not None:
                normed, mean, inverse_std = torch.native_layer_norm(
                    y, y.shape[-1:], None, None, _EPSILON
                )
                x = torch.addcmul(layer.norm.shift, normed, layer.norm.scale)
            if tape is not None:
                tape.hidden.append(_Saved(given, y, mean, inverse_std, normed, x))
            x = x if layer.activation is None else layer.activation(x)
        if tape is not None:
            tape.last = x
        return self._output.forward(x)

    def backward(self, tape: Tape, gradient: Tensor, *, parameters: bool = True) -> Tensor:
        """Return the gradient [B, I] of the input, given that of the outputs [E, B, O].

        With ``parameters``, their gradients are overwritten.
        """
        assert tape.last is not None
        d = self._output.backward(tape.last, gradient, parameters=parameters)
        for layer, saved in zip(reversed(self._hidden), reversed(tape.hidden), strict=True):
            d = _activation_backward(layer.activation, saved.activated, d)
            if layer.norm is not None:
                if parameters:
                    torch.sum(d * saved.normed, 1, out=layer.norm.scale_gradient)
                    torch.sum(d, 1, out=layer.norm.shift_gradient)
                d = torch.ops.aten.native_layer_norm_backward(
                    d * layer.norm.scale, saved.linear, d.shape[-1:], saved.mean,
                    saved.inverse_std, None, None, [True, False, False],
                )[0]  # fmt: skip
            d = layer.linear.backward(saved.given, d, parameters=parameters)
        return d


def _activation_backward(activation: nn.Module | None, x: Tensor, d: Tensor) -> Tensor:
    """Return the gradient of the activation's input ``x``, given that of its output."""
    if activation is None:
        return d
    if isinstance(activation, nn.SiLU):
        gradient: Tensor = torch.ops.aten.silu_backward(d, x)
        return gradient
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(activation(leaf), leaf, d)[0]
