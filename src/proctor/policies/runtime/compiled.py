"""torch.compile for parts of a network, with one-line errors.

Dynamic shapes are off: a kernel compiled for another size first would give other bits, and an
episode would depend on the episodes before it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from proctor.errors import ProctorError, UsageError, summarize_traceback

INDUCTOR = "inductor"
"""torch's default compile backend."""


def compile_parts(
    parts: Iterable[nn.Module], *, backend: str = INDUCTOR, mode: str | None = None
) -> None:
    """Compile each module at its first call, and again for every new input shape."""
    for module in parts:
        module.compile(backend=backend, mode=mode, dynamic=False)


def uncompiled() -> AbstractContextManager[None]:
    """Return a context in which compiled modules run uncompiled.

    torch before 2.6 has no such setting; it compiles again for new shapes.
    """
    if not hasattr(torch.compiler, "set_stance"):
        return nullcontext()
    eager: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return eager


def require_compiler(flag: str, device: torch.device) -> None:
    """Refuse ``flag`` if this machine lacks a compiler for ``device``."""
    on_gpu = device.type == "cuda"
    usual = "clang++" if sys.platform == "darwin" else "g++"
    compiler = os.environ.get("CC", "gcc") if on_gpu else os.environ.get("CXX", usual)
    if shutil.which(compiler) is None:
        raise UsageError(
            f"{flag}: no compiler {compiler!r} on this machine; install one, or omit the flag",
            code="policy.compiler-missing",
        )
    if on_gpu and importlib.util.find_spec("triton") is None:
        raise UsageError(
            f"{flag}: torch.compile needs triton on GPUs: pip install triton",
            code="policy.compiler-missing",
        )


@contextmanager
def summarize_compiler_errors(flag: str, kind: type[ProctorError]) -> Iterator[None]:
    """Turn torch.compile's errors into one-line errors of ``kind``."""
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        raise kind(
            f"torch.compile failed: {summarize_traceback(str(error))}; "
            f"run without it: {flag}=false",
            code="policy.compile-failed",
        ) from error
