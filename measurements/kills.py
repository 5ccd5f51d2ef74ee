"""SIGKILL recordings, edits and trainings at random moments, resume them, count lost episodes.

    python -m measurements kills [writer record train] [--kills=25] [--seed=0] [--lerobot=PYTHON]

``writer`` kills a child that writes a dataset or edits one in place; with ``--lerobot`` that
interpreter's LeRobot opens the dataset after each kill. ``record`` and ``train`` kill and resume
the commands until they are complete, and compare the result with an undisturbed one. Exit code 1:
an episode was lost or a result differs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from measurements.command import machine, make_parser
from measurements.dataset_kills import kill_writers
from measurements.recording_kills import kill_record
from measurements.training_kills import kill_train

PARTS = ("writer", "record", "train")


def main(words: Sequence[str]) -> None:
    """Run the named parts, or all."""
    parser = make_parser("kills", __doc__, PARTS)
    parser.add_argument("--kills", type=int, default=25, help="kills of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lerobot", metavar="PYTHON", help="an interpreter with LeRobot")
    asked = parser.parse_args(words)
    kills = 1 if asked.tiny else asked.kills
    parts = {
        "writer": lambda: kill_writers(kills, kills, asked.lerobot, asked.seed),
        "record": lambda: kill_record(kills, asked.seed),
        "train": lambda: kill_train(kills, asked.seed, steps=20 if asked.tiny else 200),
    }
    print(machine())
    results = [parts[name]() for name in asked.parts or PARTS]
    if not all(results):
        sys.exit(1)
