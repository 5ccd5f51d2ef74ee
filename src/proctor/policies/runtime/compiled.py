"""torch.compile on parts of a network: refused where nothing can compile, one line where it fails.

Shapes are not generalised: kernels that were made for another size first would give other bits, and
what an episode plays would depend on what was played before it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from proctor.errors import ProctorError, UsageError, summarize_traceback

INDUCTOR = "inductor"
"""What torch compiles by, unless told otherwise."""


def compile_parts(
    parts: Iterable[nn.Module], *, backend: str = INDUCTOR, mode: str | None = None
) -> None:
    """Have each module compiled when it is first called, and again for every other shape."""
    for module in parts:
        module.compile(backend=backend, mode=mode, dynamic=False)


def require_compiler(flag: str, device: torch.device) -> None:
    """Refuse to compile, as ``flag`` asks, where nothing can.

    Raises:
        UsageError: what is missing.
    """
    on_gpu = device.type == "cuda"
    usual = "clang++" if sys.platform == "darwin" else "g++"
    compiler = os.environ.get("CC", "gcc") if on_gpu else os.environ.get("CXX", usual)
    if shutil.which(compiler) is None:
        raise UsageError(
            f"{flag}: there is no compiler {compiler!r} here; install one, or leave it"
        )
    if on_gpu and importlib.util.find_spec("triton") is None:
        raise UsageError(f"{flag}: on GPUs torch compiles with triton: pip install triton")


@contextmanager
def compiler_errors_in_one_line(flag: str, kind: type[ProctorError]) -> Iterator[None]:
    """Let what torch.compile says of itself be one line of ours.

    Raises:
        ProctorError: of ``kind``: it cannot compile what is called in here.
    """
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        raise kind(
            f"torch.compile failed: {summarize_traceback(str(error))}; "
            f"go on without it: {flag}=false"
        ) from error
