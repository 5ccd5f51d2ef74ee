"""Checks of an installed benchmark: record, interpreter, versions, imports."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

from proctor.benchmarks.recipes.install import child_environment, interpreter_info
from proctor.benchmarks.recipes.installation import Installation
from proctor.benchmarks.recipes.recipe import BenchmarkRecipe
from proctor.errors import UsageError, summarize_traceback

_IMPORT_LIMIT_S = 180
_PINNED = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?==([\w.+!]+)")


def find_problems(recipe: BenchmarkRecipe, installation: Installation) -> Iterator[str]:
    """Yield one line for each thing that is wrong; opens no simulator."""
    if installation.is_outdated(recipe):
        yield "installed from another recipe: install it again"
    try:
        found = interpreter_info(installation.python)
    except UsageError as error:
        yield str(error)
        return
    versions = {_canonical(name): version for name, version in found.versions.items()}
    for name, wanted in pinned_versions(recipe).items():
        has = versions.get(_canonical(name))
        if has != wanted:
            yield f"{name} {wanted} is wanted, {has or 'nothing'} is installed"
    for module in recipe.modules:
        fault = _import_fault(installation, module)
        if fault:
            yield f"import {module}: {fault}"
    for asset in recipe.assets:
        if not (installation.folder / asset.into).exists():
            yield f"{asset.into} is missing: install it again"


def pinned_versions(recipe: BenchmarkRecipe) -> dict[str, str]:
    """Return the distributions that a recipe pins by version."""
    matches = (_PINNED.fullmatch(text.partition(";")[0].strip()) for text in _packages(recipe))
    return {found[1]: found[2] for found in matches if found}


def _packages(recipe: BenchmarkRecipe) -> tuple[str, ...]:
    return (*recipe.requirements, *recipe.no_deps)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _import_fault(installation: Installation, module: str) -> str:
    """Return why a module cannot be imported; empty if it can."""
    try:
        done = subprocess.run(  # noqa: S603  the interpreter of an installation
            [str(installation.python), "-c", f"import {module}"],
            capture_output=True,
            text=True,
            errors="replace",
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            timeout=_IMPORT_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {_IMPORT_LIMIT_S} s"
    return summarize_traceback(done.stderr) if done.returncode else ""
