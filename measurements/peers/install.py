"""Install the peers, each in its own venv, with LIBERO's dependencies.

    python -m measurements peers --install

LeRobot is 0.6.1 if Python 3.12 is found, else 0.4.4 on Python 3.11; vla-eval is 0.8.0.
PROCTOR_PEER_VENV and PROCTOR_VLA_VENV name their folders (default: .venv-peers and
.venv-peers-vla); PROCTOR_PEER_PYTHON names a Python that is found neither by its name nor among
pyenv's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The newest for aarch64 without CUDA packages, and both LeRobots take them.
TORCH = ("torch==2.10.0", "torchvision==0.25.0")
# The physics of constraints.txt: another one gives other episodes.
PHYSICS = "mujoco==3.3.0"
BESIDE_LEROBOT = (*TORCH, PHYSICS)
LEROBOT = {
    "3.12": "lerobot[metaworld,pusht,aloha,training,diffusion,evaluation,feetech,pyzmq-dep]==0.6.1",
    "3.11": "lerobot[metaworld,pusht,aloha]==0.4.4",
}
VLA_EVAL = "vla-eval==0.8.0"
# Without what their metadata asks for; the rest is the extra `libero` of pyproject.toml.
LIBERO_BARE = ("hf-libero==0.1.4", "bddl==1.0.1")


def peer_venv() -> Path:
    """Return the folder of the peer's venv."""
    return Path(os.environ.get("PROCTOR_PEER_VENV") or ROOT / ".venv-peers")


def peer_python() -> Path:
    """Return the Python of the peer's venv, which may not exist."""
    return peer_venv().absolute() / "bin" / "python"


def require_lerobot() -> None:
    """Stop if LeRobot is not installed.

    Raises:
        SystemExit: with the command that installs it.
    """
    if not peer_python().exists():
        raise SystemExit(f"LeRobot is not in {peer_venv()}; run: make bench-peers")


def vla_venv() -> Path:
    """Return the folder of vla-eval's venv."""
    return Path(os.environ.get("PROCTOR_VLA_VENV") or ROOT / ".venv-peers-vla")


def vla_python() -> Path:
    """Return the Python of vla-eval's venv, which may not exist."""
    return vla_venv().absolute() / "bin" / "python"


def find_python() -> tuple[str, str]:
    """Return a Python that LeRobot runs on and its version, 3.12 before 3.11.

    Raises:
        SystemExit: there is none.
    """
    for candidate in _candidates():
        version = version_of(candidate)
        if version in LEROBOT:
            return candidate, version
    raise SystemExit("the peers need Python 3.12 or 3.11; set PROCTOR_PEER_PYTHON to one of them")


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
    """Return "3.12" or similar; None if it does not run (pyenv leaves such names)."""
    if shutil.which(python) is None:
        return None
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True)  # noqa: S603  our own command
    return done.stdout.strip() if done.returncode == 0 else None


def install() -> None:
    """Create LeRobot's venv, and vla-eval's if possible, unless they are complete."""
    if not _runs(peer_python(), "import lerobot, metaworld, gym_pusht"):
        _install_lerobot()
    _add_libero(peer_python(), BESIDE_LEROBOT)
    print(f"LeRobot is in {peer_venv()}")
    try:
        if not _runs(vla_python(), "import torch, vla_eval"):
            _install_vla_eval()
        _add_libero(vla_python(), our_versions())
        print(f"vla-eval is in {vla_venv()}")
    except subprocess.CalledProcessError as failed:
        shutil.rmtree(vla_venv(), ignore_errors=True)
        print(f"vla-eval cannot be installed here and is left out: {failed}")


def _install_lerobot() -> None:
    python, version = find_python()
    _make_venv(python, peer_venv(), LEROBOT[version])
    _pip(peer_python(), "install", *TORCH)
    _pip_constrained(peer_python(), BESIDE_LEROBOT, LEROBOT[version])
    # It needs FFmpeg libraries of the system; without it LeRobot reads videos by PyAV.
    _pip(peer_python(), "uninstall", "--yes", "torchcodec")


def _install_vla_eval() -> None:
    python, _ = find_python()
    _make_venv(python, vla_venv(), VLA_EVAL)
    # Its LIBERO reads init states with torch.
    _pip_constrained(vla_python(), our_versions(), VLA_EVAL, "torch")


def our_versions() -> list[str]:
    """Return the pins of constraints.txt; another numpy or scipy gave other last bits."""
    return (ROOT / "constraints.txt").read_text().splitlines()


def _add_libero(python: Path, constraints: Sequence[str]) -> None:
    """Install the same LIBERO as ours, unless it is there."""
    needed = libero_requirements()
    names = [_name(requirement) for requirement in (*needed, *LIBERO_BARE)]
    asked = f"from importlib.metadata import version; [version(name) for name in {names!r}]"
    if _runs(python, asked):
        return
    print(f"installing {LIBERO_BARE[0]} into {python.parents[1]}", flush=True)
    _pip_constrained(python, constraints, *needed)
    _pip(python, "install", "--no-deps", *LIBERO_BARE)


def libero_requirements() -> list[str]:
    """Return the requirements of our own extra `libero`."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    return list(extras["libero"])


def _name(requirement: str) -> str:
    return re.split("[<>=]", requirement, maxsplit=1)[0]


def _make_venv(python: str, venv: Path, contents: str) -> None:
    print(f"installing {contents} into {venv}", flush=True)
    subprocess.run([python, "-m", "venv", "--clear", venv], check=True)  # noqa: S603  our own command


def _pip_constrained(python: Path, constraints: Sequence[str], *requirements: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(constraints))
        file.flush()
        _pip(python, "install", "--constraint", file.name, *requirements)


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", *arguments, "--quiet"], check=True)  # noqa: S603  our own command


def _runs(python: Path, code: str) -> bool:
    if not python.exists():
        return False
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0  # noqa: S603  our own command
