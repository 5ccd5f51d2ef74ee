"""Processes that decode images into a frame cache, each its own share of the episodes.

They import no torch and end by themselves. An episode that a process could not decode stays missing
in the cache: the caller decodes it again, and raises its error.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from proctor.features import Array

_INTERVAL_S = 0.05


def running_fillers(cache: object, shares: Sequence[Array]) -> Iterator[None]:
    """Start a process for each share of the episodes; yield until all have ended.

    ``cache`` is a ``CachedSource``, which is pickled. Processes that still run when the caller
    stops iterating are killed.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in shares:
            process = subprocess.Popen(  # noqa: S603  our own module
                [sys.executable, "-P", "-m", __name__, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's signals reach only the caller
            )
            processes.append(process)
        for process, share in zip(processes, shares, strict=True):
            assert process.stdin is not None
            try:
                with process.stdin:
                    process.stdin.write(pickle.dumps((cache, share)))
            except BrokenPipeError:  # it has died
                continue
        while any(process.poll() is None for process in processes):
            yield
            time.sleep(_INTERVAL_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """Decode the share that is passed through stdin; stop if the caller dies."""
    parent = int(sys.argv[1])

    def stop_without_parent(*_: int) -> None:
        if os.getppid() != parent:
            sys.exit(1)

    content = sys.stdin.buffer.read()  # at once: the caller waits for it
    cache, episodes = pickle.loads(content)  # noqa: S301  from our own process
    cache.fill(episodes, stop_without_parent, 1)


if __name__ == "__main__":
    main()
