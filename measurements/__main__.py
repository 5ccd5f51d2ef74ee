"""Run one measurement: ``python -m measurements NAME [flags]``, or ``--list`` for the names."""

from __future__ import annotations

import ast
import compileall
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

NAMES = (
    "start",
    "engine",
    "alternating",
    "libero",
    "scaling",
    "digests",
    "inference",
    "loading",
    "gpu_host",
    "datasets",
    "recording",
    "warp_drawing",
    "metaworld_step",
    "metaworld_experts",
    "imitation",
    "robot_bus",
    "robot_faults",
    "robot_trials",
    "online_gym_hil",
    "online_faults",
    "training",
    "batches",
    "online_speed",
    "robustness",
    "statistics",
    "ten_minutes",
    "kills",
    "foreign_worker",
    "peers",
)
"""Every measurement is a module of this package with ``main(words)``."""
USAGE = (
    "python -m measurements NAME [flags]   run one; NAME --help lists its flags\n"
    "python -m measurements --list         names and what they measure"
)


def module_of(name: str) -> Path:
    """Return a measurement's path in this package: a module, or ``run`` of a subpackage."""
    return Path(name, "run") if (Path(__file__).parent / name).is_dir() else Path(name)


def summary(name: str) -> str:
    """Return the first line of a measurement's docstring, without importing it."""
    path = Path(__file__).parent / module_of(name).with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def compile_package() -> None:
    """Compile Proctor's modules, as pip does when it installs them.

    With PYTHONDONTWRITEBYTECODE every process of a checkout would compile them again: 0.3 s of CPU
    time for each command.
    """
    package = importlib.util.find_spec("proctor")
    for folder in () if package is None else package.submodule_search_locations or ():
        compileall.compile_dir(folder, quiet=2)


def main(words: Sequence[str]) -> int:
    """Run the measurement named by the first argument, with the other arguments as its flags."""
    name, *flags = words or ["--help"]
    if name in ("--help", "-h"):
        print(USAGE)
        return 0
    if name == "--list":
        for known in NAMES:
            print(f"{known:<12} {summary(known)}")
        return 0
    if name not in NAMES:
        print(f"no measurement {name!r} (choose from: {', '.join(NAMES)})", file=sys.stderr)
        return 2
    compile_package()
    module = module_of(name)
    importlib.import_module(".".join(("measurements", *module.parts))).main(flags)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
