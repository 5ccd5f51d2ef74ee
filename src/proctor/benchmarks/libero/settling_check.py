"""Check that LIBERO's objects settle as with the tested versions of MuJoCo and robosuite.

From MuJoCo 3.4 on contacts are deeper. In some tasks an object then falls off or through its
support, so the episode starts wrong and its failure says nothing about the policy.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import Any

import numpy as np

from proctor.benchmarks.libero.sim import LiberoSim
from proctor.types import EpisodeSpec, Task

_TABLE = "settled.json"
_TOLERANCE_M = 0.01


@cache
def settled_table() -> dict[str, Any]:
    """Return the tested versions, and the settled positions of every task's objects."""
    text = resources.files("proctor.benchmarks.libero").joinpath(_TABLE).read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def settling_spec(task: Task) -> EpisodeSpec:
    """Return the episode whose settled positions are in the table."""
    return EpisodeSpec(task, index=0, seed=0, init_state=0)


def check_settling(sim: LiberoSim, task: Task) -> None:
    """Refuse a simulator whose objects settle elsewhere; skip the check with tested versions.

    Raises:
        RuntimeError: an object is off; the text names it and the versions that work.
    """
    expected = settled_table()["tasks"].get(task.suite, {}).get(task.name)
    if expected is None or _as_tested():
        return
    sim.reset(settling_spec(task))
    for name, position in sim.object_positions().items():
        off_m = float(np.linalg.norm(position - np.array(expected[name])))
        if off_m > _TOLERANCE_M:
            works = " ".join(
                f"{name}=={number}" for name, number in settled_table()["versions"].items()
            )
            raise RuntimeError(
                f"{name} settles {off_m:.2f} m from where it should in {task.suite} "
                f"{task.task_id}: these versions change LIBERO's contacts; run: pip install {works}"
            )


def _as_tested() -> bool:
    return all(version(name) == number for name, number in settled_table()["versions"].items())
