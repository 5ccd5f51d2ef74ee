"""Slow set-up that starts in the background while the policy is loaded."""

from __future__ import annotations

import contextlib
import threading

from proctor.benchmarks.base import Benchmark, display_keys
from proctor.engine.processes.forking import start_fork_server
from proctor.engine.processes.warm_workers import WarmWorkers, use_warm_workers
from proctor.errors import ProctorError


def start_background_setup(
    benchmark: Benchmark, *, in_workers: bool, images: bool, warm: WarmWorkers | None = None
) -> None:
    """Start to import the simulator's modules and, for ``images``, to probe the GL backends.

    The ``warm`` workers start as soon as the GL backend is known. Returns at once. All of it runs
    in other processes; the code that needs the results waits for them.
    """
    variables = benchmark.preflight(())
    if in_workers:
        start_fork_server(benchmark.preload, variables)
    if images:
        if warm is not None:
            use_warm_workers(warm)
        threading.Thread(target=_find_graphics, args=(benchmark, warm), daemon=True).start()


def _find_graphics(benchmark: Benchmark, warm: WarmWorkers | None) -> None:
    """Fill the cache that the next ``preflight`` reads, and start the ``warm`` workers."""
    try:
        # The caller that needs the backend asks again and gets the error.
        with contextlib.suppress(ProctorError):
            environment = benchmark.preflight(display_keys(benchmark.features()))
            if warm is not None:
                warm.start(environment)
    finally:
        if warm is not None:
            warm.skip()
