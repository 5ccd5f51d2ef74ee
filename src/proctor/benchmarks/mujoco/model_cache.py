"""Compiled MuJoCo models in the user's cache: loading one takes a tenth of compiling it.

A file holds a model in MuJoCo's binary format. Its key is a hash of everything that the compilation
reads: MuJoCo's version and the files of the assets folder, by size and time of change.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from proctor.system.caches import cache_folder, find, publish
from proctor.system.files import UNFINISHED

_SUFFIX = ".mjb"
_MOST_BYTES = 2 * 2**30
"""Size of the cache; the models that were not used for longest are removed first."""


def load_model(xml: Path, assets: Path) -> Any:
    """Return the ``MjModel`` of an XML file, which reads no file outside the folder ``assets``."""
    import mujoco

    key = _key(xml, assets)
    path = find(models_folder(), key, _SUFFIX)
    if path is not None:
        with contextlib.suppress(OSError, ValueError):  # another process made room meanwhile
            os.utime(path)  # used now
            return mujoco.MjModel.from_binary_path(str(path))
    model = mujoco.MjModel.from_xml_path(str(xml))
    binary = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, binary)
    with contextlib.suppress(OSError):  # a full or read-only disk: the next one compiles too
        _write(key, binary.tobytes())
    return model


def models_folder() -> Path:
    """Return the folder of the compiled models."""
    return cache_folder("models")


def _key(xml: Path, assets: Path) -> str:
    import mujoco

    named = f"{mujoco.__version__} {xml.relative_to(assets)} {_state(assets)}"
    return hashlib.sha256(named.encode()).hexdigest()[:32]


@cache
def _state(folder: Path) -> str:
    """Return path, size and time of change of all files in a folder."""
    found = []
    for file in sorted(folder.rglob("*")):
        stat = file.stat()
        found.append(f"{file} {stat.st_size} {stat.st_mtime_ns}")
    return "\n".join(found)


def _write(key: str, model: bytes) -> None:
    """Write a model; another process that reads or writes it sees whole files only.

    It need not survive a power loss, so it does not wait for the disk.
    """
    folder = models_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _make_room(folder, len(model))
    part = folder / f".{key}.{os.getpid()}{UNFINISHED}"
    try:
        part.write_bytes(model)
        publish(part, key, _SUFFIX)
    finally:
        part.unlink(missing_ok=True)


def _make_room(folder: Path, size: int) -> None:
    """Remove the models that were not used for longest until ``size`` more bytes fit."""
    stats = [(file, file.stat()) for file in folder.iterdir()]
    total = sum(stat.st_size for _, stat in stats) + size
    for file, stat in sorted(stats, key=lambda found: found[1].st_mtime):
        if total <= _MOST_BYTES:
            return
        file.unlink(missing_ok=True)
        total -= stat.st_size
