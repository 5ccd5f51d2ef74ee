"""What an evaluation costs as it grows: episodes, workers, tasks, image size, chunk length.

    python measurements/scaling.py [episodes workers metaworld tasks pixels chunks]
        [--output=FOLDER]

Every part prints a table and leaves scaling-PART.json (the figures) and scaling-PART.svg (a plot)
in FOLDER, outputs/scaling unless told otherwise. docs/performance.md shows them with command,
commit and machine. CPU times are of the parent process alone; a busy machine spoils them least.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from command import machine
from plot import Panel, draw
from scaling_parts import (
    Figures,
    episodes,
    episodes_panels,
    metaworld,
    metaworld_panels,
    tasks,
    tasks_panels,
    workers,
    workers_panels,
)
from scaling_pictures import chunks, chunks_panels, pixels, pixels_panels


@dataclass(frozen=True)
class Part:
    """One thing that grows."""

    about: str
    measure: Callable[[Path], list[Figures]]
    panels: Callable[[list[Figures]], list[Panel]]


PARTS = {
    "episodes": Part("cost against the number of episodes", episodes, episodes_panels),
    "workers": Part("cost against the number of workers", workers, workers_panels),
    "metaworld": Part("Meta-World against the number of workers", metaworld, metaworld_panels),
    "tasks": Part("cost against the number of tasks", tasks, tasks_panels),
    "pixels": Part("cost against the size of pictures", pixels, pixels_panels),
    "chunks": Part("cost against the length of action chunks", chunks, chunks_panels),
}


def print_table(table: Sequence[Figures]) -> None:
    widths = {name: max(10, len(name) + 2) for name in table[0]}
    print("".join(f"{name:>{width}}" for name, width in widths.items()))
    for row in table:
        print("".join(f"{_text(row[name]):>{width}}" for name, width in widths.items()), flush=True)


def _text(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"


def run_part(name: str, folder: Path, output: Path) -> None:
    part = PARTS[name]
    load = os.getloadavg()[0]
    print(f"\n{name}: {part.about} (load before: {load:.1f})")
    table = part.measure(folder)
    print_table(table)
    about = {"part": name, "machine": json.loads(machine()), "load_before": load}
    text = json.dumps({**about, "figures": table}, indent=1)
    (output / f"scaling-{name}.json").write_text(text + "\n")
    (output / f"scaling-{name}.svg").write_text(draw(part.about, part.panels(table)))


def main() -> None:
    output = Path("outputs", "scaling")
    names = []
    for word in sys.argv[1:]:
        if word.startswith("--output="):
            output = Path(word.removeprefix("--output="))
        elif word in PARTS:
            names.append(word)
        else:
            raise SystemExit(f"no part {word!r} (choose from: {', '.join(PARTS)})")
    output.mkdir(parents=True, exist_ok=True)
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        for name in names or PARTS:
            run_part(name, Path(folder), output)
    print(f"\nfigures and plots: {output}")


if __name__ == "__main__":
    main()
