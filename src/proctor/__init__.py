"""Proctor records demonstrations, trains robot policies and evaluates them in simulation.

``evaluate``, ``record`` and ``train`` do what the commands do, ``load_run``, ``compare`` and
``load_dataset`` read what they wrote, and ``make_env`` creates gymnasium environments. The command
line is ``proctor --help``. Importing this package imports no heavy dependencies.
"""

from __future__ import annotations

from importlib import import_module

from proctor.version import __version__

TYPE_CHECKING = False  # ``typing`` is slow to import
if TYPE_CHECKING:
    from typing import Any

    from proctor.api.datasets import load_dataset
    from proctor.api.evaluation import evaluate
    from proctor.api.recording import record
    from proctor.api.results import compare, load_run
    from proctor.api.training import train
    from proctor.callbacks.progress_updates import ProgressUpdate
    from proctor.errors import ProctorNote, ProctorWarning
    from proctor.evaluation.gym.vector import make_env
    from proctor.policies.callable_policy import PolicyFunction

__all__ = [
    "PolicyFunction",
    "ProctorNote",
    "ProctorWarning",
    "ProgressUpdate",
    "__version__",
    "compare",
    "evaluate",
    "load_dataset",
    "load_run",
    "make_env",
    "record",
    "train",
]

_MODULES = {
    "PolicyFunction": "proctor.policies.callable_policy",
    "ProctorNote": "proctor.errors",
    "ProctorWarning": "proctor.errors",
    "ProgressUpdate": "proctor.callbacks.progress_updates",
    "compare": "proctor.api.results",
    "evaluate": "proctor.api.evaluation",
    "load_dataset": "proctor.api.datasets",
    "load_run": "proctor.api.results",
    "make_env": "proctor.evaluation.gym.vector",
    "record": "proctor.api.recording",
    "train": "proctor.api.training",
}
"""The module of each exported name, which is imported on first use."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'proctor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
