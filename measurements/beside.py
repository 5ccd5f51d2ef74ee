"""The frame of a measurement beside LeRobot: its parts by name, the machine's load around them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from measurements.command import machine
from measurements.peers.install import peer_python

Part = Callable[[Path], None]
"""Measures one thing in a folder of its own and prints the rows of its table."""


def measure_parts(names: Sequence[str], parts: Mapping[str, Part], head: str) -> None:
    """Run the parts that were named, or all, below the ``head`` of their table.

    Raises:
        SystemExit: there is no such part, or no LeRobot to compare with.
    """
    unknown = [name for name in names if name not in parts]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)} (choose from: {', '.join(parts)})")
    if not peer_python().exists():
        raise SystemExit(f"LeRobot is not in {peer_python().parents[1]}; run: make bench-peers")
    print(machine())
    print(f"load before: {os.getloadavg()[0]:.2f}\n\n{head}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names or parts:
            parts[name](Path(folder))
    print(f"\nload after: {os.getloadavg()[0]:.2f}")
