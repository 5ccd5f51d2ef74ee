"""Loss terms that several policy families share."""

from __future__ import annotations

from torch import Tensor


def masked_mean(errors: Tensor, is_pad: Tensor) -> Tensor:
    """Return the mean of errors [B, T, A] over the actions that are not padding.

    ``is_pad`` [B, T] is True at padded actions; a batch of padding alone gives 0.
    """
    valid = ~is_pad[..., None]
    n_valid = (valid.sum() * errors.shape[-1]).clamp(min=1)
    return (errors * valid).sum() / n_valid
