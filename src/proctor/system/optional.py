"""Imports of optional packages: whether one is not installed, or installed and fails to load."""

from __future__ import annotations

import sys

from proctor.errors import FailedToLoad, MissingExtra, UsageError, strip_control_codes

LOAD_ERRORS = (ImportError, MemoryError, OSError)
"""What an import raises: the last two where memory is short or a shared library does not load."""


def import_failure(error: BaseException, package: str, extra: str, name: str = "") -> UsageError:
    """Return the error for a package whose import raised one of ``LOAD_ERRORS``.

    ``name`` is what users call the package. Only a module that Python did not find is missing.
    """
    missing = (getattr(error, "name", None) or package).partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and sys.modules.get(missing) is None:
        return MissingExtra((name or package) if missing == package else missing, extra)
    reason = strip_control_codes(str(error), 300) or type(error).__name__
    return FailedToLoad(name or package, reason, extra)
