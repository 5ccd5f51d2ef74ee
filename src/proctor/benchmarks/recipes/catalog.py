"""The recipes that ship with Proctor."""

from __future__ import annotations

from pathlib import Path

from proctor.benchmarks.recipes.recipe import BenchmarkRecipe, read_recipe
from proctor.errors import UsageError, did_you_mean

RECIPES = Path(__file__).parent
"""Folder of the recipes: ``NAME.toml``."""


def recipe_names() -> list[str]:
    """List the names of all recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def find_recipe(name: str) -> BenchmarkRecipe:
    """Return the recipe of benchmark ``name``."""
    names = recipe_names()
    if name not in names:
        raise UsageError(
            f"no recipe for {name!r}{did_you_mean(name, names)} (choose {', '.join(names)})",
            code="benchmark.no-recipe",
        )
    return read_recipe(name, (RECIPES / f"{name}.toml").read_text(encoding="utf-8"))
