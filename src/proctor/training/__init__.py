"""From a dataset and a network to checkpoints."""

from __future__ import annotations

from proctor.errors import MissingExtra

try:
    import safetensors  # noqa: F401  by what writes weights
    import torch  # noqa: F401
except ImportError as error:
    raise MissingExtra(error.name or "torch", "torch,dataset") from None
