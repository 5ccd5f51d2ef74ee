"""Versions of MuJoCo and robosuite that LIBERO runs with, and those of published results."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version

from proctor.benchmarks.libero.tasks import (
    not_installed,
)
from proctor.errors import UsageError

_MUJOCO_AS_PUBLISHED = ((3, 1, 6), (3, 3, 2))
_MUJOCO_BREAKS = (3, 10, 0)


def _installed(distribution: str) -> tuple[int, ...]:
    try:
        text = version(distribution)
    except PackageNotFoundError:
        raise not_installed() from None
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


def check_versions() -> None:
    """Refuse versions that LIBERO does not run with."""
    robosuite, mujoco = _installed("robosuite"), _installed("mujoco")
    if robosuite[:2] != (1, 4):
        raise UsageError(
            f"LIBERO runs with robosuite 1.4, not {'.'.join(map(str, robosuite))}; "
            "run: pip install robosuite==1.4.0",
            code="env.unsupported-version",
        )
    if mujoco >= _MUJOCO_BREAKS:
        raise UsageError(
            f"LIBERO does not run with MuJoCo {'.'.join(map(str, mujoco))} (robosuite 1.4 crashes "
            "from 3.10 on); run: pip install mujoco==3.3.0",
            code="env.unsupported-version",
        )
    if importlib.util.find_spec("bddl") is None:
        raise not_installed()


def version_warnings() -> tuple[str, ...]:
    """Return warnings on versions that change results."""
    mujoco, (first, last) = _installed("mujoco"), _MUJOCO_AS_PUBLISHED
    if first <= mujoco <= last:
        return ()
    return (
        f"with MuJoCo {'.'.join(map(str, mujoco))}, LIBERO's images or contacts differ from those "
        "of published results (3.1.6 to 3.3.2); run: pip install mujoco==3.3.0",
    )
