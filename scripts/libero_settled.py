"""Write where the objects of every LIBERO task settle: src/proctor/benchmarks/libero/settled.json.

    python scripts/libero_settled.py

Requires the versions that LIBERO's published results were made with.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path

from proctor.benchmarks.libero.benchmark import Libero, LiberoConfig
from proctor.benchmarks.libero.settling_check import settling_spec
from proctor.benchmarks.libero.sim import LiberoSim
from proctor.benchmarks.libero.tasks import SUITES

TABLE = Path(__file__).parents[1] / "src" / "proctor" / "benchmarks" / "libero" / "settled.json"


def main() -> None:
    """Settle every task and write the table."""
    os.environ["MUJOCO_GL"] = "disable"
    benchmark = Libero(LiberoConfig(task=",".join(SUITES)))
    tasks: dict[str, dict[str, dict[str, list[float]]]] = {}
    for task in benchmark.tasks():
        sim = benchmark.make_sim(task)
        assert isinstance(sim, LiberoSim)
        sim.reset(settling_spec(task))
        positions = {n: [round(float(x), 4) for x in p] for n, p in sim.object_positions().items()}
        tasks.setdefault(task.suite, {})[task.name] = positions
        print(task.suite, task.task_id, positions, flush=True)
        sim.close()
    table = {"versions": {n: version(n) for n in ("mujoco", "robosuite")}, "tasks": tasks}
    # One line per task: easy to compare.
    text = json.dumps(table).replace('}, "', '},\n "')
    TABLE.write_text(text + "\n")


if __name__ == "__main__":
    main()
