"""The dataset card of a merged dataset, which quotes the cards of its sources."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from proctor.datasets.edit.edit_plan import EditPlan
from proctor.datasets.format.info import VERSION
from proctor.datasets.hub import CARD_FILE, card_head
from proctor.system.files import read_regular_file
from proctor.version import __version__

_MOST_BYTES = 2**16
"""Largest card that is quoted, in bytes."""
_EDGE = "---\n"
"""Delimiter of the YAML block at the top of a card."""


def merged_card(edit_plan: EditPlan, name: str) -> str:
    """Return the card of the dataset ``name`` that ``edit_plan`` merges."""
    return f"""\
{card_head(name)}
Put together by Proctor {__version__} of these datasets, in this order, as LeRobotDataset {VERSION}:

{chr(10).join(_parts(edit_plan))}
"""


def _parts(edit_plan: EditPlan) -> Iterator[str]:
    """Yield lines for every source: its number of episodes, and its quoted card."""
    for source, kept in itertools.groupby(edit_plan.kept, lambda kept: kept.source):
        yield f"- `{source.root.name}`, {len(list(kept))} episodes"
        for line in _own_words(source.root / CARD_FILE):
            yield f"  > {line}".rstrip()


def _own_words(path: Path) -> list[str]:
    """Return the lines of a card without its YAML block; empty if there is no card."""
    try:
        said = read_regular_file(path, _MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return []
    if said.startswith(_EDGE):
        said = said.partition(f"\n{_EDGE}")[2]
    return said.strip().splitlines()
