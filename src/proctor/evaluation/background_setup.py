"""What a run waits for and nobody need wait for: begun while the policy is loaded."""

from __future__ import annotations

import contextlib
import threading

from proctor.benchmarks.base import Benchmark, display_keys
from proctor.engine.forking import start_fork_server
from proctor.errors import ProctorError


def start_background_setup(benchmark: Benchmark, *, in_workers: bool, images: bool) -> None:
    """Have the simulator's modules imported and, for ``images``, see what can render here.

    Returns at once. Both go on in other processes; what comes of them is asked for later, by those
    who need it.

    Raises:
        MissingExtra: the simulator is not installed.
    """
    variables = benchmark.preflight(())
    if in_workers:
        start_fork_server(benchmark.preload, variables)
    if images:
        threading.Thread(target=_find_graphics, args=(benchmark,), daemon=True).start()


def _find_graphics(benchmark: Benchmark) -> None:
    """Fill the cache that the next ``preflight`` asks."""
    with contextlib.suppress(ProctorError):  # whoever needs it asks again, and hears
        benchmark.preflight(display_keys(benchmark.features()))
