"""Imports of optional packages: tell a package that is missing from one that fails to load."""

from __future__ import annotations

import sys

from proctor.errors import FailedToLoad, MissingExtra, UsageError, strip_control_codes

LOAD_ERRORS = (ImportError, MemoryError, OSError)
"""Errors that an import raises; the last two if memory is short or a shared library fails."""


def import_failure(error: BaseException, package: str, extra: str, name: str = "") -> UsageError:
    """Return the error for a package whose import raised one of ``LOAD_ERRORS``.

    ``name`` is the package's usual name. A package is missing only if Python did not find the
    module.
    """
    missing = (getattr(error, "name", None) or package).partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and sys.modules.get(missing) is None:
        return MissingExtra((name or package) if missing == package else missing, extra)
    reason = strip_control_codes(str(error), 300) or type(error).__name__
    return FailedToLoad(name or package, reason, extra)
