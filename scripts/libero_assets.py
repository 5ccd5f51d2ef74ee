"""Put LIBERO's assets and LIBERO-Pro's task files into the cache, unless they are there.

If they cannot be downloaded it says why and succeeds: tests that need them are then skipped.
"""

from __future__ import annotations

import sys

from proctor.benchmarks.libero.assets import find_assets
from proctor.benchmarks.libero.download import download_assets
from proctor.benchmarks.libero.tasks import SUITES
from proctor.benchmarks.libero_pro.task_files import download_task_files, find_task_files
from proctor.errors import UsageError


def main() -> None:
    """Get the assets of all suites, and LIBERO-Pro's task files (its objects are 73 MB more)."""
    try:
        find_assets(None, SUITES)
    except FileNotFoundError:
        download_assets(SUITES)
    try:
        find_task_files(None)
    except FileNotFoundError:
        download_task_files()


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        print(f"warning: {error}", file=sys.stderr)
