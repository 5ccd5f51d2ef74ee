"""LIBERO-Pro's suites, their tasks, instructions and init states.

A suite's tasks have the names and the order of its base suite's.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from proctor.benchmarks.libero.prompt import Prompt
from proctor.benchmarks.libero.tasks import ALL, STANDARD_SUITES, instruction_of
from proctor.errors import UsageError
from proctor.features import Array

DIMENSIONS = {"swap": "swap", "object": "object", "lan": "language", "task": "task"}
"""Last word of a suite's name -> what it changes: places, objects, instructions or goals."""
SUITES = tuple(f"{base}_{word}" for base in STANDARD_SUITES for word in DIMENSIONS)
GROUPS = {
    **{f"{ALL}_{word}": tuple(f"{b}_{word}" for b in STANDARD_SUITES) for word in DIMENSIONS},
    ALL: SUITES,
}
"""Names of several suites: those of one dimension, and all."""


def base_suite(suite: str) -> str:
    """Return LIBERO's suite that ``suite`` changes; a suite of LIBERO is its own."""
    return suite.rpartition("_")[0] if suite in SUITES else suite


def dimension_of(suite: str) -> str:
    """Return what ``suite`` changes."""
    return DIMENSIONS[suite.rpartition("_")[2]]


@cache
def _changed_instructions() -> dict[str, list[str]]:
    """Return suite -> the BDDL files' instructions, for suites that change them."""
    text = resources.files(__package__).joinpath("instructions.json").read_text(encoding="utf-8")
    table: dict[str, list[str]] = json.loads(text)
    return table


def pro_instruction(suite: str, task_id: int, name: str, prompt: Prompt) -> str:
    """Return a task's instruction.

    The package's own is always the base task's, although two dimensions change instruction or goal.
    """
    changed = _changed_instructions().get(suite)
    if changed is None or prompt is Prompt.UPSTREAM:
        return instruction_of(name)
    return changed[task_id]


def read_pro_init_states(folder: Path, suite: str, name: str) -> Array:
    """Return a task's init states, float64 [states, 1 + nq + nv], from the folder of task files."""
    path = folder / "init_files" / suite / f"{name}.pruned_init.npz"
    try:
        with np.load(path, allow_pickle=False) as archive:
            states = np.asarray(archive["states"], np.float64)
    except (OSError, KeyError, ValueError, BadZipFile) as error:
        raise UsageError(
            f"{path} holds no init states ({error})", code="env.broken-install"
        ) from None
    if states.ndim != 2 or not len(states):
        raise UsageError(f"{path} holds no table of init states", code="env.broken-install")
    return states
