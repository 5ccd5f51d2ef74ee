"""Download of LIBERO-Pro's task files and of the assets of all its suites.

python -m proctor.benchmarks.libero_pro.download
"""

from __future__ import annotations

import sys

from proctor.benchmarks.libero.assets import find_assets
from proctor.benchmarks.libero.download import download_assets
from proctor.benchmarks.libero_pro.task_files import download_task_files, find_task_files
from proctor.benchmarks.libero_pro.tasks import SUITES
from proctor.errors import UsageError, strip_control_codes


def main() -> None:
    """Download the files, unless they are there."""
    try:
        try:
            find_task_files(None)
        except FileNotFoundError:
            download_task_files()
        try:
            find_assets(None, SUITES)
        except FileNotFoundError:
            download_assets(SUITES)
    except UsageError as error:
        sys.exit(strip_control_codes(str(error)))


if __name__ == "__main__":
    main()
