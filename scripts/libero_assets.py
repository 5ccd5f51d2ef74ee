"""Put LIBERO's assets into the cache: from an archive beside the project, else from the Hub.

Says so when neither is to be had: the tests that need them then fail, naming what is missing.
"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

from proctor.benchmarks.libero_assets import cache_folder, download_assets, find_assets
from proctor.errors import UsageError

ARCHIVE = Path(__file__).parents[2] / "shared" / "libero" / "assets-four-suites.tar.xz"


def main() -> None:
    """Get the assets unless they are there."""
    try:
        find_assets(None)
    except FileNotFoundError:
        get_assets()


def get_assets() -> None:
    """Unpack the archive, or download."""
    if not ARCHIVE.exists():
        try:
            download_assets()
        except UsageError as error:
            print(f"warning: {error}", file=sys.stderr)
        return
    print(f"unpacking LIBERO's assets into {cache_folder()}")
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(cache_folder(), filter="data")


if __name__ == "__main__":
    main()
