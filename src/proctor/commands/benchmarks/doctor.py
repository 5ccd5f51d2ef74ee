"""``proctor benchmarks doctor NAME``: check an installed benchmark and open it."""

from __future__ import annotations

from dataclasses import dataclass, field

from proctor.config.flags.command import CommandConfig, argument
from proctor.errors import strip_control_codes

EXIT_BROKEN = 1


@dataclass(kw_only=True)
class BenchmarksDoctorCommand(CommandConfig):
    """Check an installed benchmark: versions, imports, files; then open it.

    Prints one line for each problem. Opening means one reset, one step and one image, in the
    benchmark's own interpreter.

    Exit code 1: something is broken.
    """

    name: str = field(metadata=argument("NAME", "benchmark, see proctor benchmarks list"))

    def run(self) -> int:
        """Print versions and problems, and return the exit code."""
        from proctor import plugins
        from proctor.benchmarks.recipes.catalog import find_recipe
        from proctor.benchmarks.recipes.health import find_problems, pinned_versions
        from proctor.benchmarks.recipes.installation import find_installation
        from proctor.evaluation.smoke_test import SmokeTestStatus, smoke_test_one

        recipe = find_recipe(self.name)
        installation = find_installation(self.name)
        if installation is None:
            print(f"{self.name} is not installed; run: proctor benchmarks install {self.name}")
            return EXIT_BROKEN
        record = installation.record
        pins = [f"{name} {version}" for name, version in pinned_versions(recipe).items()]
        print(f"{self.name}: Python {record.python}, {', '.join(pins) or 'no pinned packages'}")
        print(f"folder: {installation.folder}, installed {record.installed_at}")
        if not recipe.tested:
            print("note: not run here, see proctor benchmarks list")
        problems = list(find_problems(recipe, installation))
        if not problems and self.name in plugins.known_plugins("benchmarks"):
            trial = smoke_test_one(self.name, {})
            if trial.found is SmokeTestStatus.OPENED:
                print(f"ok: {trial.text}")
            else:
                problems.append(f"{trial.text}; run: {trial.fix}" if trial.fix else trial.text)
        for problem in problems:
            print(f"problem: {strip_control_codes(problem)}")
        return EXIT_BROKEN if problems else 0
