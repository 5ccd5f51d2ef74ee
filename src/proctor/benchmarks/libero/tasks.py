"""LIBERO's suites, tasks and init states, read from the installed package without importing it."""

from __future__ import annotations

import ast
import importlib.util
import io
import pickle
import re
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from proctor.errors import MissingExtra, UsageError
from proctor.features import Array

STANDARD_SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
SUITES = (*STANDARD_SUITES, "libero_90")
ALL = "libero_all"
"""The four standard suites, as papers call them together."""
_ALONE = " && pip install --no-deps hf-libero==0.1.4 bddl==1.0.1"
"""Without dependencies: their metadata requires torch, transformers, robomimic ..., all unused."""
_SCENE_PREFIX = re.compile(r"^[A-Z_]+_SCENE\d+_")
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


def package_folder() -> Path:
    """Return the folder of LIBERO's package."""
    spec = importlib.util.find_spec("libero")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    for place in places:
        if (Path(place) / "libero" / "bddl_files").is_dir():
            return Path(place) / "libero"
    raise not_installed()


def not_installed() -> MissingExtra:
    """Return the error for a missing part of LIBERO, with both commands that install it."""
    return MissingExtra("LIBERO", "libero", then=_ALONE)


@cache
def task_names() -> dict[str, tuple[str, ...]]:
    """Return suite -> names of its tasks, in the order of their ids."""
    path = package_folder() / "benchmark" / "libero_suite_task_map.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "libero_task_map":
            suites: dict[str, list[str]] = ast.literal_eval(node.value)
            return {suite: tuple(suites[suite]) for suite in SUITES}
    raise UsageError(
        f"{path} holds no task map: install hf-libero 0.1.4",
        code="env.broken-install",
    )


def instruction_of(name: str) -> str:
    """Return a task's instruction: its name in words, without the scene."""
    return _SCENE_PREFIX.sub("", name).replace("_", " ")


def bddl_file(suite: str, name: str) -> Path:
    """Return a task's BDDL file."""
    return package_folder() / "bddl_files" / suite / f"{name}.bddl"


def read_init_states(suite: str, name: str) -> Array:
    """Return a task's init states, float64 [states, 1 + nq + nv]."""
    states = read_state_file(package_folder() / "init_files" / suite / f"{name}.pruned_init")
    if states.ndim != 2:
        raise UsageError(
            f"{suite} {name} has no table of init states; reinstall hf-libero",
            code="env.broken-install",
        )
    return states


def read_state_file(path: Path) -> Array:
    """Return the numbers of an init-state file, float64.

    The file is a pickle inside a zip; only an array of numbers is accepted.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            member = next(entry for entry in archive.namelist() if entry.endswith("data.pkl"))
            states = _NumbersOnly(io.BytesIO(archive.read(member))).load()
    except (OSError, StopIteration, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise UsageError(
            f"{path} holds no init states ({error}); reinstall its package",
            code="env.broken-install",
        ) from None
    if not isinstance(states, np.ndarray) or not states.size:
        raise UsageError(
            f"{path} holds no init states; reinstall its package", code="env.broken-install"
        )
    return states.astype(np.float64)


class _NumbersOnly(pickle.Unpickler):
    """Unpickler of numpy arrays that refuses everything else, so no code of the file runs."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed function or class for arrays."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)
