"""LeRobot in a venv of its own: 0.6.1 where Python 3.12 is found, else 0.4.4 on Python 3.11.

    python benchmarks/peers/install.py

PROCTOR_PEER_VENV is where it is or goes (default: .venv-peers); PROCTOR_PEER_PYTHON names a Python
that is found neither by its name nor among pyenv's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The newest for aarch64 without CUDA packages, and both LeRobots take them.
TORCH = ("torch==2.10.0", "torchvision==0.25.0")
# The physics of constraints.txt: another one gives other episodes.
PHYSICS = "mujoco==3.3.0"
LEROBOT = {
    "3.12": "lerobot[metaworld,pusht,aloha,training,diffusion,evaluation]==0.6.1",
    "3.11": "lerobot[metaworld,pusht,aloha]==0.4.4",
}


def peer_venv() -> Path:
    """Return the folder of the peer's venv."""
    return Path(os.environ.get("PROCTOR_PEER_VENV") or ROOT / ".venv-peers")


def peer_python() -> Path:
    """Return the Python of the peer's venv, whether it is there or not."""
    return peer_venv().absolute() / "bin" / "python"


def find_python() -> tuple[str, str]:
    """Return a Python that LeRobot runs on and its version, 3.12 before 3.11.

    Raises:
        SystemExit: there is none.
    """
    for candidate in _candidates():
        version = version_of(candidate)
        if version in LEROBOT:
            return candidate, version
    raise SystemExit("LeRobot needs Python 3.12 or 3.11; set PROCTOR_PEER_PYTHON to one of them")


def _candidates() -> Iterator[str]:
    given = os.environ.get("PROCTOR_PEER_PYTHON")
    if given:
        yield given
        return
    installed = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for version in LEROBOT:
        yield f"python{version}"
        yield from (str(python) for python in installed.glob(f"{version}.*/bin/python"))


def version_of(python: str) -> str | None:
    """Return "3.12" and the like; None for what does not run (pyenv leaves such names)."""
    if shutil.which(python) is None:
        return None
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True)  # noqa: S603  our own words
    return done.stdout.strip() if done.returncode == 0 else None


def install() -> None:
    """Make the venv unless it is there and whole."""
    if peer_python().exists() and _runs("import lerobot, metaworld, gym_pusht"):
        print(f"the peer is in {peer_venv()}")
        return
    python, version = find_python()
    print(f"installing {LEROBOT[version]} into {peer_venv()}", flush=True)
    subprocess.run([python, "-m", "venv", "--clear", peer_venv()], check=True)  # noqa: S603  our own words
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join([*TORCH, PHYSICS]))
        constraints.flush()
        _pip("install", *TORCH)
        _pip("install", "--constraint", constraints.name, LEROBOT[version])
    # It needs FFmpeg libraries of the system; without it LeRobot reads videos by PyAV.
    _pip("uninstall", "--yes", "torchcodec")


def _pip(*arguments: str) -> None:
    subprocess.run([peer_python(), "-m", "pip", *arguments, "--quiet"], check=True)  # noqa: S603  our own words


def _runs(code: str) -> bool:
    return subprocess.run([peer_python(), "-c", code], capture_output=True).returncode == 0  # noqa: S603  our own words


if __name__ == "__main__":
    install()
