"""Proctor examines robot policies in simulation.

``evaluate`` runs an evaluation from Python, ``make_env`` gives gymnasium vector environments;
the command line is ``proctor --help``. Importing this package imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proctor.version import __version__

if TYPE_CHECKING:
    from proctor.api import evaluate
    from proctor.evaluation.vector import make_env

__all__ = ["__version__", "evaluate", "make_env"]


def __getattr__(name: str) -> Any:
    if name == "evaluate":
        from proctor.api import evaluate

        return evaluate
    if name == "make_env":
        from proctor.evaluation.vector import make_env

        return make_env
    raise AttributeError(f"module 'proctor' has no attribute {name!r}")
