"""Facts about this interpreter that define episodes: its version and installed distributions."""

import platform
from importlib import metadata
from typing import Any, Dict, Iterable


def interpreter_facts(distributions: Iterable[str]) -> Dict[str, Any]:
    """Return the Python version (major and minor), the machine, and the distributions' versions.

    Distributions that are not installed are left out.
    """
    found: Dict[str, str] = {}
    for name in sorted({*distributions, "numpy"}):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, "machine": platform.machine(), "distributions": found}
