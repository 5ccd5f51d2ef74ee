"""Keeps the results of GL probes for a day, since a probe takes a second of CPU time.

A result counts while nothing that may change it has changed: the machine's boot, the variables and
folders of GL's libraries and devices, and the interpreter's MuJoCo. Only results with a backend
that works are kept: a machine on which nothing renders is probed each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proctor.system.caches import JsonCache

_LONGEST_S = 24 * 3600
_CACHE = JsonCache("gl_probes", most_entries=32)
_VARIABLES = (
    *("MUJOCO_", "PYOPENGL", "EGL_", "__EGL", "__GL", "LIBGL_", "MESA_", "GALLIUM_", "LP_"),
    *("DISPLAY", "WAYLAND_DISPLAY", "LD_", "DRI_", "CUDA_", "NVIDIA_", "VK_"),
)
"""Beginnings of the names of variables that GL libraries read."""
_PLACES = (
    "/usr/lib",
    f"/usr/lib/{os.uname().machine}-linux-gnu",
    f"/usr/lib/{os.uname().machine}-linux-gnu/dri",
    "/usr/lib64",
    "/usr/lib64/dri",
    "/usr/local/lib",
    "/usr/share/glvnd/egl_vendor.d",
    "/etc/glvnd/egl_vendor.d",
    "/dev/dri",
    "/dev/nvidia0",
)
"""Folders of GL libraries, their configuration and devices: installing a driver changes one."""

Probes = list[dict[str, Any]]


def read_probes(what: str) -> Probes | None:
    """Return the kept results of the probes ``what``; None: there are none that count."""
    try:
        entry = _CACHE.read()[_key(what)]
        age_s = time.time() - float(entry["time"])
        probes: Probes = [dict(probe) for probe in entry["probes"]]
    except (ValueError, KeyError, TypeError):
        return None
    return probes if 0 <= age_s < _LONGEST_S else None


def keep_probes(what: str, probes: Probes) -> None:
    """Keep results for the next process; where the disk refuses, it probes again."""
    entries = _CACHE.read()
    entries.pop(_key(what), None)
    _CACHE.write({**entries, _key(what): {"time": time.time(), "probes": probes}})


def _key(what: str) -> str:
    return hashlib.sha256("\n".join([what, *_circumstances()]).encode()).hexdigest()


def _circumstances() -> Iterator[str]:
    """Yield everything that may change a probe's result."""
    with contextlib.suppress(OSError):
        yield Path("/proc/sys/kernel/random/boot_id").read_text()
    yield sys.prefix
    for name, value in sorted(os.environ.items()):
        if name.startswith(_VARIABLES):
            yield f"{name}={value}"
    packages = [importlib.util.find_spec(name) for name in ("mujoco", "OpenGL")]
    origins = [str(getattr(spec, "origin", "")) for spec in packages]
    for place in (*_PLACES, *origins):
        with contextlib.suppress(OSError):
            found = os.stat(place)  # noqa: PTH116  plain strings
            yield f"{place} {found.st_ino} {found.st_mtime_ns}"
