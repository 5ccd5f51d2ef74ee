"""``proctor benchmarks list``: the recipes, their cost, and which are installed."""

from __future__ import annotations

from dataclasses import dataclass

from proctor.config.flags.command import CommandConfig

NOT_RUN = "not run here"
"""Shown for a recipe whose benchmark was never run with Proctor."""
_FOOTNOTE = (
    f"\n{NOT_RUN}: recipe and adapter are written from the benchmark's sources, and were never run "
    "by Proctor's developers. They are not refused."
)


@dataclass(kw_only=True)
class BenchmarksListCommand(CommandConfig):
    """List the benchmarks that are installed into an interpreter of their own.

    Each line has the Python version, the disk space, whether it is installed, and where Proctor's
    developers have run it.
    """

    def run(self) -> int:
        """Print the table and return the exit code."""
        from rich.table import Table
        from rich.text import Text

        from proctor.benchmarks.recipes.catalog import find_recipe, recipe_names
        from proctor.report.html.tables import fit_table, table_console

        table = Table(box=None, pad_edge=False, header_style="bold")
        for head in ("benchmark", "what it is", "Python", "GB", "installed", "tested"):
            justify = "right" if head == "GB" else "left"
            table.add_column(head, overflow="fold", justify=justify)  # type: ignore[arg-type]
        recipes = [find_recipe(name) for name in recipe_names()]
        for recipe in recipes:
            gigabytes = f"{recipe.disk_mb / 1000:.1f}"
            cells = (recipe.name, recipe.summary, "/".join(recipe.pythons), gigabytes)
            state = _state(recipe.name)
            tested = recipe.tested or NOT_RUN
            table.add_row(*(Text(cell) for cell in (*cells, state, tested)))
        console = table_console()
        console.print(fit_table(table, console.width, 1))
        if not all(recipe.tested for recipe in recipes):
            print(_FOOTNOTE)
        return 0


def _state(name: str) -> str:
    from proctor.benchmarks.recipes.catalog import find_recipe
    from proctor.benchmarks.recipes.installation import find_installation

    installation = find_installation(name)
    if installation is None:
        return "no"
    if installation.is_outdated(find_recipe(name)):
        return "outdated"
    return f"yes, Python {installation.record.python}"
