"""The cost of an evaluation as it grows: episodes, workers, tasks, image size, chunk length.

    python -m measurements scaling [episodes workers metaworld tasks pixels chunks]
        [--output=FOLDER]

Every part prints a table and writes scaling-PART.json (the figures) and scaling-PART.svg (a plot)
to FOLDER, by default outputs/scaling. docs/measurements.md shows them with command, commit and
machine. CPU times are of the parent process alone; they depend least on other load.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from measurements.command import machine, make_parser
from measurements.plot import Panel, draw
from measurements.scaling_parts import (
    Figures,
    chunks,
    chunks_panels,
    episodes,
    episodes_panels,
    metaworld,
    metaworld_panels,
    pixels,
    pixels_panels,
    tasks,
    tasks_panels,
    workers,
    workers_panels,
)


class Measure(Protocol):
    """Measures one thing in a folder."""

    def __call__(self, folder: Path, *, tiny: bool) -> list[Figures]:
        """Return the rows of its table."""


@dataclass(frozen=True)
class Part:
    """One varied quantity."""

    about: str
    measure: Measure
    panels: Callable[[list[Figures]], list[Panel]]


PARTS = {
    "episodes": Part("cost against the number of episodes", episodes, episodes_panels),
    "workers": Part("cost against the number of workers", workers, workers_panels),
    "metaworld": Part("Meta-World against the number of workers", metaworld, metaworld_panels),
    "tasks": Part("cost against the number of tasks", tasks, tasks_panels),
    "pixels": Part("cost against the size of images", pixels, pixels_panels),
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


def run_part(name: str, folder: Path, output: Path, *, tiny: bool) -> None:
    part = PARTS[name]
    load = os.getloadavg()[0]
    print(f"\n{name}: {part.about} (load before: {load:.1f})")
    table = part.measure(folder, tiny=tiny)
    print_table(table)
    about = {"part": name, "machine": json.loads(machine()), "load_before": load}
    text = json.dumps({**about, "figures": table}, indent=1)
    (output / f"scaling-{name}.json").write_text(text + "\n")
    (output / f"scaling-{name}.svg").write_text(draw(part.about, part.panels(table)))


def main(words: Sequence[str]) -> None:
    """Run the named parts, or all."""
    parser = make_parser("scaling", __doc__, list(PARTS))
    parser.add_argument("--output", type=Path, default=Path("outputs", "scaling"))
    given = parser.parse_args(words)
    given.output.mkdir(parents=True, exist_ok=True)
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        for name in given.parts or PARTS:
            run_part(name, Path(folder), given.output, tiny=given.tiny)
    print(f"\nfigures and plots: {given.output}")
