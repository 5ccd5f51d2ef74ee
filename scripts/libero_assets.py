"""Put LIBERO's assets into the cache, unless they are there.

If they cannot be downloaded it says why and succeeds: tests that need them are then skipped.
"""

from __future__ import annotations

import sys

from proctor.benchmarks.libero.assets import find_assets
from proctor.benchmarks.libero.download import download_assets
from proctor.benchmarks.libero.tasks import SUITES
from proctor.errors import UsageError


def main() -> None:
    """Get the assets of all suites."""
    try:
        find_assets(None, SUITES)
    except FileNotFoundError:
        download_assets(SUITES)


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        print(f"warning: {error}", file=sys.stderr)
