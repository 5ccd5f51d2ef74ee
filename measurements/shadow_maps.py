"""What a smaller shadow map gains in pictures per second, and what it changes in them.

    python measurements/shadow_maps.py [--workers=N] [--seconds=S] [--sizes=480,128]

Meta-World's basketball-v3, drawn by N processes that do nothing else: pictures of the best second
in which all draw. The baseline of every ratio is the world's own map (4096) in the same run.
"""

from __future__ import annotations

import argparse

from command import machine
from drawing import Scenes, drawn_together

from proctor.machine.system import usable_cores

MAPS = (4096, 2048, 1024, 512, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Pictures per second by the size of shadow maps.")
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sizes", default="480,128")
    asked = parser.parse_args()
    print(machine())
    print(" size shadow map  frames/s  ratio   pixels mean of 255")
    for size in map(int, asked.sizes.split(",")):
        scenes = [Scenes(("basketball-v3",), size, side, asked.seconds) for side in MAPS]
        own = None
        for what in scenes:
            drawn = drawn_together(what, asked.workers)
            own = own or drawn
            if not own.best:
                raise SystemExit("not one picture while all processes drew: raise --seconds")
            changed = abs(drawn.picture.astype(int) - own.picture)
            print(
                f"{size:>5} {what.shadow_map or 'none':>10} {drawn.best:>9.1f} "
                f"{drawn.best / own.best:>5.2f}x "
                f"{100 * (changed.max(axis=-1) > 0).mean():>7.2f}% {changed.mean():>11.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
