"""Trains policies on datasets and writes checkpoints."""

from __future__ import annotations

from proctor.system.platform.optional import LOAD_ERRORS, import_failure

try:
    import safetensors  # noqa: F401  used by modules that write weights
    import torch  # noqa: F401
except LOAD_ERRORS as error:
    raise import_failure(error, "torch", "torch,dataset") from None
