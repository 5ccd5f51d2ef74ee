"""Installed benchmarks: one folder each in the user's cache, complete or not there.

    ~/.cache/proctor/benchmarks/NAME/venv/           its virtual environment
                                    assets/          its files
                                sources/         its code that no package index has
                                python           starts its interpreter with its variables
                                    install.json     what was installed

``install.json`` is written last, and the folder gets its name after that.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from proctor.benchmarks.recipes.recipe import BenchmarkRecipe
from proctor.errors import FolderInUse, UsageError
from proctor.system.caches import cache_folder
from proctor.system.files import read_regular_file
from proctor.system.locks import Lock, acquire_lock

RECORD = "install.json"
VENV = "venv"
LAUNCHER = "python"


class InstallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was installed: ``install.json``."""

    recipe: str
    """Hash of the recipe (``BenchmarkRecipe.digest``)."""
    python: str
    """Full version of the interpreter."""
    versions: dict[str, str]
    """Installed distributions."""
    assets: dict[str, str]
    """SHA-256 of every downloaded file, by URL."""
    installed_at: str


@dataclass(frozen=True)
class Installation:
    """An installed benchmark."""

    name: str
    folder: Path
    record: InstallRecord

    @property
    def python(self) -> Path:
        """Its interpreter; a script that sets its environment variables, if it has any."""
        return launcher_in(self.folder)

    def is_outdated(self, recipe: BenchmarkRecipe) -> bool:
        """Return whether it was installed from another recipe than this one."""
        return self.record.recipe != recipe.digest()


def benchmarks_folder() -> Path:
    """Return the folder of all installed benchmarks."""
    return cache_folder("benchmarks")


def find_interpreter(name: str) -> Path | None:
    """Return the interpreter of installed benchmark ``name``; None: it is not installed."""
    installation = find_installation(name)
    return None if installation is None else installation.python


def find_installation(name: str) -> Installation | None:
    """Return installed benchmark ``name``; None: it is not installed."""
    folder = benchmarks_folder() / name
    try:
        content = read_regular_file(folder / RECORD)
        record = msgspec.json.decode(content, type=InstallRecord)
    except (OSError, msgspec.MsgspecError):
        return None
    installation = Installation(name, folder, record)
    return installation if installation.python.exists() else None


def require_interpreter(name: str) -> Path:
    """Return the interpreter of installed benchmark ``name``."""
    python = find_interpreter(name)
    if python is None:
        raise UsageError(
            f"{name} is not installed; run: proctor benchmarks install {name}",
            code="benchmark.not-installed",
        )
    return python


def remove_installation(name: str) -> Path | None:
    """Remove the folder of benchmark ``name`` and return it; None: there was nothing."""
    folder = benchmarks_folder() / name
    if not folder.is_dir() or folder.is_symlink():
        return None
    lock = lock_benchmarks()
    try:
        user = process_that_uses(folder)
        if user is not None:
            raise UsageError(
                f"{name} is in use by process {user}; stop it first", code="benchmark.in-use"
            )
        (folder / RECORD).unlink(missing_ok=True)  # from here on it is not installed
        shutil.rmtree(folder)
    finally:
        lock.release()
    return folder


def lock_benchmarks() -> Lock:
    """Acquire the lock that excludes other installations and removals."""
    folder = benchmarks_folder()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return acquire_lock(folder)
    except FolderInUse:
        raise UsageError(
            f"another process installs or removes a benchmark in {folder}; wait for it",
            code="benchmark.busy",
        ) from None


def process_that_uses(folder: Path) -> int | None:
    """Return a process whose interpreter lies in ``folder``; None if there is none or unknown."""
    start = os.fsencode(folder) + b"/"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(start) for word in words[:2]):  # the second: a script's own name
            return int(process.name)
    return None


def interpreter_in(folder: Path) -> Path:
    """Return where the interpreter of an installation in ``folder`` is."""
    below = "Scripts/python.exe" if sys.platform == "win32" else "bin/python"
    return folder / VENV / below


def launcher_in(folder: Path) -> Path:
    """Return what starts the interpreter of an installation in ``folder``."""
    script = folder / LAUNCHER
    return script if script.exists() else interpreter_in(folder)


def write_launcher(recipe: BenchmarkRecipe, folder: Path) -> None:
    """Write the script that starts the interpreter, if it needs environment variables.

    It finds its own folder, so it stays valid when that is renamed.
    """
    if not recipe.environment:
        return
    lines = ["#!/bin/sh", 'folder=$(cd "$(dirname "$0")" && pwd)']
    for name, value in recipe.environment.items():
        lines.append(f'export {name}="{value.replace("{folder}", "$folder")}"')
    inside = interpreter_in(folder).relative_to(folder)
    lines.append(f'exec "$folder/{inside}" "$@"')
    script = folder / LAUNCHER
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    script.chmod(0o755)
