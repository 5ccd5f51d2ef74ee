"""CPU time of one Meta-World picture when nothing else is done, with shadows and without.

    python measurements/bare_pictures.py SIZE

Prints both, in milliseconds: the least of several, which other work on the machine spoils least.
"""

from __future__ import annotations

import os
import sys
import time

from proctor.benchmarks.metaworld.benchmark import Metaworld, MetaworldConfig
from proctor.machine.gl import gl_variables


def picture_ms(size: int, *, shadows: bool, repeats: int = 6) -> float:
    """Return the CPU time of the cheapest of ``repeats`` pictures; the first of all is left out."""
    config = MetaworldConfig(task="reach-v3", observation_height=size, observation_width=size)
    config.shadow_map = None if shadows else 0
    benchmark = Metaworld(config)
    task = benchmark.tasks()[0]
    sim = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 1000))
    spent = []
    for _ in range(repeats + 1):
        start = time.process_time()
        sim.observe(["observation.image"])
        spent.append(time.process_time() - start)
    sim.close()
    return 1000 * min(spent[1:])


def main() -> None:
    os.environ.update(gl_variables(needed=True))
    size = int(sys.argv[1])
    print(picture_ms(size, shadows=True), picture_ms(size, shadows=False))


if __name__ == "__main__":
    main()
