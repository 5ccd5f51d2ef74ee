"""Slow set-up that starts in the background while the policy is loaded."""

from __future__ import annotations

import contextlib
import threading

from proctor.benchmarks.base import Benchmark, display_keys
from proctor.engine.forking import start_fork_server
from proctor.errors import ProctorError


def start_background_setup(benchmark: Benchmark, *, in_workers: bool, images: bool) -> None:
    """Start to import the simulator's modules and, for ``images``, to probe the GL backends.

    Returns at once. Both run in other processes; the code that needs the results waits for them.

    Raises:
        MissingExtra: the simulator is not installed.
    """
    variables = benchmark.preflight(())
    if in_workers:
        start_fork_server(benchmark.preload, variables)
    if images:
        threading.Thread(target=_find_graphics, args=(benchmark,), daemon=True).start()


def _find_graphics(benchmark: Benchmark) -> None:
    """Fill the cache that the next ``preflight`` reads."""
    with contextlib.suppress(
        ProctorError
    ):  # the caller that needs it asks again and gets the error
        benchmark.preflight(display_keys(benchmark.features()))
