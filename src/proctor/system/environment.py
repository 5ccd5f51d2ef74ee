"""Environment variables that are set for the duration of a block."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

DRAWER_VARIABLE = "PROCTOR_SESSION_DRAWER"
"""Address of the run's drawing process (``--env.renderer=warp``), for its workers."""
RENDERER_VARIABLE = "PROCTOR_RENDERER"
"""What draws instead of GL: versions and device. Part of a run's fingerprint."""


def lasting_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that define episodes, without those of one session only."""
    return {name: value for name, value in variables.items() if name != DRAWER_VARIABLE}


@contextmanager
def temporary_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables and restore their earlier values at the end."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
