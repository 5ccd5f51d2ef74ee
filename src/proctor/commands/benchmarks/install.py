"""``proctor benchmarks install|remove NAME``."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from proctor.config.flags.command import CommandConfig, argument
from proctor.errors import UsageError
from proctor.settings import setting

if TYPE_CHECKING:
    from proctor.benchmarks.recipes.recipe import BenchmarkRecipe

_EXIT_DECLINED = 1


@dataclass(kw_only=True)
class BenchmarksInstallCommand(CommandConfig):
    """Install a benchmark into a virtual environment of its own, in the user's cache.

    The versions are pinned. uv is used if it is on PATH, else venv and pip. Asks before anything
    starts. Ctrl-C leaves nothing half installed.

    Afterwards --env.type=NAME finds it.
    """

    name: str = field(metadata=argument("NAME", "benchmark, see proctor benchmarks list"))
    yes: bool = setting(False, "do not ask before the download")

    def run(self) -> int:
        """Install it and return the exit code."""
        from proctor.benchmarks.recipes.catalog import find_recipe
        from proctor.benchmarks.recipes.install import check_requirements, install
        from proctor.benchmarks.recipes.installation import find_installation
        from proctor.benchmarks.recipes.python_search import find_python

        recipe = find_recipe(self.name)
        known = find_installation(self.name)
        if known is not None and not known.is_outdated(recipe):
            print(f"{self.name} is installed in {known.folder}")
            return 0
        check_requirements(recipe)
        find_python(recipe.pythons, recipe.name)
        print(cost_line(recipe))
        for note in (*recipe.notes, *_machine_note(recipe)):
            print(f"note: {note}")
        if not self.yes and not _confirmed():
            print("nothing was installed")
            return _EXIT_DECLINED
        with _ProgressBars() as bars:
            done = install(recipe, bars)
        print(f"{self.name} is installed: Python {done.record.python}, {done.folder}")
        print(f"next: proctor benchmarks doctor {self.name}")
        return 0


@dataclass(kw_only=True)
class BenchmarksRemoveCommand(CommandConfig):
    """Remove an installed benchmark: its folder in the user's cache, and nothing else."""

    name: str = field(metadata=argument("NAME", "benchmark, see proctor benchmarks list"))

    def run(self) -> int:
        """Remove it and return the exit code."""
        from proctor.benchmarks.recipes.catalog import find_recipe
        from proctor.benchmarks.recipes.installation import remove_installation

        removed = remove_installation(find_recipe(self.name).name)
        print(f"{self.name} is not installed" if removed is None else f"removed {removed}")
        return 0


def cost_line(recipe: BenchmarkRecipe) -> str:
    """Return what an installation costs and where it goes, in one line."""
    from proctor.benchmarks.recipes.installation import benchmarks_folder

    return (
        f"{recipe.name}: Python {' or '.join(recipe.pythons)}, about {recipe.download_mb} MB to "
        f"download, {recipe.disk_mb} MB on disk, {recipe.minutes} min, licence {recipe.licence}; "
        f"into {benchmarks_folder() / recipe.name}"
    )


def _machine_note(recipe: BenchmarkRecipe) -> list[str]:
    here = platform.machine()
    if not recipe.machines or here in recipe.machines:
        return []
    return [f"its packages exist for {', '.join(recipe.machines)}; this machine is {here}"]


def _confirmed() -> bool:
    """Ask the user."""
    if not sys.stdin.isatty():
        raise UsageError("no terminal to ask on; add --yes", code="benchmark.not-confirmed")
    return input("continue? [y/N] ").strip().lower() in ("y", "yes")


class _ProgressBars:
    """One bar for each stage of an installation; plain lines where no bar can be drawn."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[size]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[item]}", markup=False),
        )
        self._bars = Progress(*columns, console=self._console)
        self._task: Any = None
        self._done_mb, self._total_mb = 0.0, 0.0

    def __enter__(self) -> _ProgressBars:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finish()
        if self._console.is_terminal:
            self._bars.stop()

    def stage(self, text: str, megabytes: float | None = None) -> None:
        """Begin a stage with a bar of its own."""
        self._finish()
        self._done_mb, self._total_mb = 0.0, megabytes or 0.0
        if not self._console.is_terminal:
            print(text, file=sys.stderr, flush=True)
            return
        self._task = self._bars.add_task(text, total=megabytes, size="", item="")

    def update(self, text: str, megabytes: float = 0.0) -> None:
        """Show the current item; the total is an estimate and grows if need be."""
        if self._task is None:
            return
        self._done_mb += megabytes
        total = max(self._total_mb, self._done_mb) or None
        size = f"{self._done_mb:.0f}/{total:.0f} MB" if total else ""
        self._bars.update(self._task, completed=self._done_mb, total=total, size=size, item=text)

    def _finish(self) -> None:
        if self._task is not None:
            self._bars.update(self._task, total=1, completed=1, item="")
        self._task = None
