"""Search for an interpreter of a given version: this one, PATH, pyenv, uv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from proctor.errors import UsageError

_LIMIT_S = 60
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def find_python(versions: Sequence[str], name: str) -> Path:
    """Return an interpreter of the first of ``versions`` ("3.10") that is installed.

    Args:
        versions: accepted versions, the preferred first.
        name: the benchmark, for the error's text.
    """
    for version in versions:
        for candidate in _candidates(version):
            if _version_of(candidate) == version:
                return candidate
    wanted, first = " or ".join(versions), versions[0]
    tool = "uv python install" if shutil.which("uv") else "pyenv install"
    raise UsageError(
        f"{name} needs Python {wanted}, which is neither on PATH nor in pyenv or uv; "
        f"run: {tool} {first}",
        code="benchmark.no-python",
    )


def _candidates(version: str) -> Iterator[Path]:
    """Yield interpreters that may have the version, without starting one."""
    if "{}.{}".format(*sys.version_info) == version:
        yield Path(sys.executable)
    for folder in os.get_exec_path():
        yield Path(folder) / f"python{version}"
    root = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    found = (root / "versions").glob(f"{version}.*/bin/python{version}")
    yield from sorted(found, key=lambda path: _patch_number(path.parents[1].name), reverse=True)
    uv = shutil.which("uv")
    if uv is not None:
        said = _output([uv, "python", "find", version])
        if said:
            yield Path(said)


def _patch_number(version: str) -> int:
    """Return the last number of "3.10.13"; -1 for anything else, such as 3.13.0t."""
    last = version.rpartition(".")[2]
    return int(last) if last.isdecimal() else -1


def _version_of(python: Path) -> str | None:
    """Return the interpreter's version; None if it does not start, as a shim of pyenv may."""
    return _output([str(python), "-c", _VERSION]) if python.is_file() else None


def _output(words: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603  an interpreter that the user has installed
            words,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
