"""Environment variables that are set, or hidden from child processes, for a block."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

DRAWER_VARIABLE = "PROCTOR_SESSION_DRAWER"
"""Address of the run's drawing process (``--env.renderer=warp``), for its workers."""
_KEYS = ("PROCTOR_API_KEY", "WANDB_API_KEY")
_hidden: dict[str, str] = {}
RENDERER_VARIABLE = "PROCTOR_RENDERER"
"""What draws instead of GL: versions and device. Part of a run's fingerprint."""


def lasting_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that define episodes, without those of one session only."""
    return {name: value for name, value in variables.items() if name != DRAWER_VARIABLE}


@contextmanager
def hidden_keys() -> Iterator[None]:
    """Keep API keys out of the environment of child processes; ``key_variable`` returns them."""
    found = {name: os.environ.pop(name) for name in _KEYS if name in os.environ}
    _hidden.update(found)
    try:
        yield
    finally:
        os.environ.update(found)
        for name in found:
            del _hidden[name]


def key_variable(name: str) -> str | None:
    """Return the value of a variable that holds a key; None if it is unset or empty."""
    return os.environ.get(name) or _hidden.get(name)


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
