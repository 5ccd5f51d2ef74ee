"""Part of `make dist`: check the wheel and the sdist, and use the wheel in an empty venv.

    .venv/bin/python scripts/try_dist.py dist

The wheel must hold every file of src/proctor and src/proctor_worker and nothing else; the sdist
must build the same packages; the command installed from the wheel must evaluate in an empty folder.
"""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LIMIT_S = 900
_EVALUATION = ("eval", "--policy.type=expert", "--env.type=fake", "--eval.n_episodes=2")


def main(words: list[str]) -> int:
    """Check the distributions in a folder; print what is wrong, and return the exit code."""
    folder = Path(words[0])
    (wheel,), (sdist,) = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    faults = [*wheel_faults(wheel), *sdist_faults(sdist, wheel)]
    for fault in faults:
        print(fault)
    if faults:
        return 1
    use(wheel)
    print(f"{wheel.name} and {sdist.name} are ready to be uploaded")
    return 0


def packaged_files() -> set[str]:
    """Return the committed files of the package, as a wheel names them."""
    listed = subprocess.run(  # noqa: S603  our own command
        [shutil.which("git") or "git", "ls-files", "src/proctor", "src/proctor_worker"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.removeprefix("src/") for name in listed.stdout.splitlines()}


def wheel_faults(wheel: Path) -> list[str]:
    """Return what is missing in the wheel or too much."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = email.message_from_bytes(archive.read(metadata))
    held = {name for name in names if not name.startswith(metadata.partition("/")[0])}
    wanted = packaged_files()
    faults = [f"the wheel lacks {name}" for name in sorted(wanted - held)]
    faults += [f"the wheel holds {name}, which is not committed" for name in sorted(held - wanted)]
    for field in ("Summary", "Requires-Python", "License-Expression", "Keywords", "Classifier"):
        if not fields[field]:
            faults.append(f"the wheel's metadata has no {field}")
    if "Proctor" not in str(fields.get_payload()):
        faults.append("the wheel's metadata has no description")
    return faults


def sdist_faults(sdist: Path, wheel: Path) -> list[str]:
    """Return package files that the sdist lacks, and files outside its own folder."""
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    top = sdist.name.removesuffix(".tar.gz")
    held = {name.removeprefix(f"{top}/") for name in names}
    faults = [f"{sdist.name} has {name}" for name in names if not name.startswith(f"{top}/")]
    with zipfile.ZipFile(wheel) as built:
        inside = {
            name for name in built.namelist() if name.startswith(("proctor/", "proctor_worker/"))
        }
    wanted = [*(f"src/{name}" for name in sorted(inside)), "LICENSE", "README.md"]
    faults += [f"the sdist lacks {name}" for name in wanted if name not in held]
    return faults


def use(wheel: Path) -> None:
    """Install the wheel into an empty venv, and evaluate with it in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="proctor-dist-") as name:
        folder = Path(name)
        run([sys.executable, "-m", "venv", str(folder / "venv")], folder)
        pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        constraints = str(ROOT / "constraints.txt")
        run([*pip, "-c", constraints, str(wheel.resolve())], folder)
        program = str(folder / "venv" / "bin" / "proctor")
        for words in (("--version",), ("--help",), _EVALUATION, ("list",)):
            run([program, *words], folder)


def run(command: list[str], folder: Path) -> None:
    """Run a command in a folder; end with its output if it fails."""
    done = subprocess.run(  # noqa: S603  our own commands
        command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
