"""What a smaller shadow map gains in pictures per second, and what it changes in them.

    python measurements/shadow_maps.py [--workers=N] [--seconds=S] [--sizes=480,128]

Meta-World's basketball-v3, drawn by N processes that do nothing else. The baseline of every ratio
is the world's own map (4096) in the same run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from dataclasses import dataclass

from command import machine

from proctor.benchmarks.metaworld.benchmark import Metaworld, MetaworldConfig
from proctor.features import IMAGE, Array
from proctor.machine.gl import gl_variables
from proctor.machine.system import usable_cores

MAPS = (4096, 2048, 1024, 512, 0)


@dataclass(frozen=True)
class Drawing:
    """What one process is to draw, and for how long."""

    size: int
    shadow_map: int
    seconds: float


def draw(what: Drawing) -> tuple[float, Array]:
    """Return pictures per second, and the first of them."""
    side = what.size
    config = MetaworldConfig(task="basketball-v3", observation_height=side, observation_width=side)
    config.shadow_map = what.shadow_map
    benchmark = Metaworld(config)
    (task,) = benchmark.tasks()
    sim = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 1000))
    first = sim.observe([IMAGE])[IMAGE]
    drawn, start = 0, time.perf_counter()
    while time.perf_counter() - start < what.seconds:
        sim.observe([IMAGE])
        drawn += 1
    rate = drawn / (time.perf_counter() - start)
    sim.close()
    return rate, first


def main() -> None:
    parser = argparse.ArgumentParser(description="Pictures per second by the size of shadow maps.")
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sizes", default="480,128")
    asked = parser.parse_args()
    os.environ.update(gl_variables(needed=True))
    print(machine())
    print(" size shadow map  frames/s  ratio   pixels mean of 255")
    with multiprocessing.get_context("spawn").Pool(asked.workers) as pool:
        for size in map(int, asked.sizes.split(",")):
            own_rate, own = 0.0, None
            for side in MAPS:
                work = [Drawing(size, side, asked.seconds)] * asked.workers
                done = pool.map(draw, work, chunksize=1)
                rate, first = sum(rate for rate, _ in done), done[0][1].astype(int)
                if own is None:
                    own_rate, own = rate, first
                changed = abs(first - own)
                print(
                    f"{size:>5} {side or 'none':>10} {rate:>9.1f} {rate / own_rate:>5.2f}x "
                    f"{100 * (changed.max(axis=-1) > 0).mean():>7.2f}% {changed.mean():>11.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
