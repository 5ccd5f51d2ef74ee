"""Proctor records demonstrations, trains robot policies and evaluates them in simulation.

``evaluate`` runs an evaluation from Python, ``load_run`` reads its results, and ``make_env``
creates gymnasium environments. The command line is ``proctor --help``. Importing this package
imports no heavy dependencies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proctor.version import __version__

if TYPE_CHECKING:
    from proctor.api import evaluate
    from proctor.errors import ProctorNote, ProctorWarning
    from proctor.evaluation.vector import make_env
    from proctor.policies.callable_policy import PolicyFunction
    from proctor.report.run import load_run

__all__ = [
    "PolicyFunction",
    "ProctorNote",
    "ProctorWarning",
    "__version__",
    "evaluate",
    "load_run",
    "make_env",
]


def __getattr__(name: str) -> Any:
    if name == "evaluate":
        from proctor.api import evaluate

        return evaluate
    if name == "load_run":
        from proctor.report.run import load_run

        return load_run
    if name == "make_env":
        from proctor.evaluation.vector import make_env

        return make_env
    if name == "PolicyFunction":
        from proctor.policies.callable_policy import PolicyFunction

        return PolicyFunction
    if name in ("ProctorNote", "ProctorWarning"):
        from proctor import errors

        return getattr(errors, name)
    raise AttributeError(f"module 'proctor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
