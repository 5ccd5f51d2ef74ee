"""Whether LIBERO's worlds settle here as they did with the versions its results were made with.

From MuJoCo 3.4 on contacts are deeper, and in some tasks an object falls off or through what it
stands on: the episode starts wrong and its failure says nothing about the policy.
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
    """Return the versions the table was made with, and where the objects of each task settled."""
    text = resources.files("proctor.benchmarks.libero").joinpath(_TABLE).read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def settling_spec(task: Task) -> EpisodeSpec:
    """Return the episode whose settled start the table holds."""
    return EpisodeSpec(task, index=0, seed=0, init_state=0)


def check_settling(sim: LiberoSim, task: Task) -> None:
    """Refuse a world whose objects do not settle where they should. Nothing to do as tested.

    Raises:
        RuntimeError: naming the object, how far off it is, and the versions that work.
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
