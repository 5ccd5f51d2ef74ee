"""Datasets of demonstrations in LeRobot's format: reading, recording, checking and editing.

``proctor.datasets.open`` opens one for reading. Importing this package imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proctor.datasets.reader import open

__all__ = ["open"]


def __getattr__(name: str) -> Any:
    if name == "open":
        from proctor.datasets.reader import open

        return open
    raise AttributeError(f"module 'proctor.datasets' has no attribute {name!r}")
