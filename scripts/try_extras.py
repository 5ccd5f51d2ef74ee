"""`make test-extras`: every extra alone, in an empty venv, from the built wheel, runs one episode.

    python scripts/try_extras.py [--only=EXTRA | --by-commit]

Each extra is tried with the versions of constraints.txt and with the newest that pip finds, as
`pip install 'proctor[metaworld]'` would. torch is always the pinned one: the newest may come with
gigabytes of CUDA. --by-commit tries the one extra that the commit's hash chooses, for CI.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINS = ROOT / "constraints.txt"
_INSTALL_LIMIT_S = 1800
_EPISODE_LIMIT_S = 600
_TAIL_LINES = 15
_FAKE = ("--policy.type=random", "--env.type=fake")

EPISODES: dict[str, tuple[str, ...]] = {
    "metaworld": (
        *("--policy.type=random", "--policy.inputs=observation.image"),
        *("--env.type=metaworld", "--env.task=reach-v3", "--env.episode_length=10"),
    ),
    "libero": (
        *("--policy.type=random", "--policy.inputs=observation.images.image"),
        *("--env.type=libero", "--env.task_ids=[0]", "--env.episode_length=10"),
    ),
    "pusht": (
        *("--policy.type=random", "--policy.inputs=observation.image"),
        *("--env.type=pusht", "--env.episode_length=10"),
    ),
    "aloha": (
        *("--policy.type=random", "--policy.inputs=observation.images.top"),
        *("--env.type=aloha", "--env.episode_length=10"),
    ),
    "so101": (
        *("--policy.type=random", "--policy.inputs=observation.images.front"),
        *("--env.type=so101", "--env.episode_length=10"),
    ),
    "hil": (
        *("--policy.type=random", "--policy.inputs=observation.images.front"),
        *("--env.type=gym_hil", "--env.episode_length=10"),
    ),
    "gym": (
        *("--policy.type=random", "--env.type=gym"),
        *("--env.id=MountainCar-v0", "--env.success=terminated"),
    ),
    "hub": (
        *("--policy.type=random", "--env.type=hub", "--trust_remote_code"),
        *("--env.path=env.py", "--env.success=terminated"),
    ),
    "torch": ("--policy.type=act", "--env.type=fake"),
    "video": (*_FAKE, "--video.episodes=1", "--video.which=all"),
    "wandb": (*_FAKE, "--wandb.enable", "--wandb.mode=offline"),
    "dataset": (*_FAKE, "--record=run/rollouts"),
    "ray": (*_FAKE, "--cluster=local"),
}
"""The flags of one episode that uses the extra."""
TWO_COMMANDS = ("libero", "hil")
"""Extras that leave out packages, which are installed with --no-deps."""
LEAVES = {
    "video": "videos/**/*.mp4",
    "wandb": "wandb/offline-run-*",
    "dataset": "rollouts/videos/*/*/*.mp4",
}
"""Files that the run folder must contain besides a result."""
IMPORTS = {
    "browser": "selenium.webdriver, axe_core_python",
    "dev": "hypothesis, pytest",
    "docs": "sphinx, furo, myst_parser, sphinx_copybutton",
    "gamepad": "proctor.robots.teleoperators.gamepad, pygame",
    "pandas": "pandas, proctor.report.run.results",
    "peft": "peft, proctor.policies.lerobot.adapter",
    "rerun": "av, pyarrow, rerun",
    "robot": "serial, proctor.robots.cameras.opencv, cv2",
    "so101": "mujoco, proctor.benchmarks.so101.world",
    "vla": "tokenizers, proctor.policies.smolvla.network",
    "wire": "grpc, PIL, websockets, zmq, proctor.policies.remote.websocket",
}
"""Extras for working on Proctor or training, which no episode uses."""
_HUB_FILE = """
import gymnasium
def make_env(n_envs=1, use_async_envs=False, cfg=None):
    return gymnasium.make("MountainCar-v0", render_mode="rgb_array")
"""


class TrialFailed(Exception):
    """The failed command, and the end of its output."""


@dataclass(frozen=True)
class Trial:
    """One extra with one set of versions."""

    extra: str
    pinned: bool

    @property
    def versions(self) -> str:
        """Return which versions are installed, as text."""
        newest = "newest, torch pinned" if self.extra in ("torch", "peft") else "newest"
        return "constraints.txt" if self.pinned else newest

    def constraints(self, folder: Path) -> Path:
        """Return the constraints file for pip."""
        if self.pinned:
            return PINS
        file = folder / "torch.txt"
        lines = PINS.read_text().splitlines()
        file.write_text("".join(f"{line}\n" for line in lines if line.startswith("torch==")))
        return file


def main() -> int:
    """Try the chosen extras, print a row for each trial, and return 1 if one failed."""
    extras = chosen(all_extras(), sys.argv[1:])
    failed = []
    with tempfile.TemporaryDirectory(prefix="proctor-extras-") as temporary:
        wheel = build_wheel(Path(temporary))
        print(f"{wheel.name}, each extra alone in an empty venv", flush=True)
        print(row(("extra", "versions", "packages", "install", "episode", "result")), flush=True)
        for trial in (Trial(extra, pinned) for extra in extras for pinned in (True, False)):
            try:
                print(row(tried(trial, wheel, Path(temporary) / "trial")), flush=True)
            except TrialFailed as error:
                print(row((trial.extra, trial.versions, "", "", "", "FAILED")), flush=True)
                print(error, flush=True)
                failed.append(trial)
    print(f"{2 * len(extras) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def all_extras() -> list[str]:
    """Return the names of all extras.

    Raises:
        SystemExit: an extra has no test.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = list(project["optional-dependencies"])
    untried = set(extras) ^ (EPISODES.keys() | IMPORTS.keys())
    if untried:
        raise SystemExit(f"{', '.join(untried)}: change EPISODES or IMPORTS in {__file__}")
    return extras


def chosen(extras: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the extras that the command line asks for."""
    parser = argparse.ArgumentParser(description="Try every extra alone, in an empty venv.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", choices=extras, help="this extra alone")
    which.add_argument("--by-commit", action="store_true", help="one, by the commit's hash")
    arguments = parser.parse_args(words)
    if arguments.by_commit:
        commit = finished(["git", "-C", str(ROOT), "rev-parse", "HEAD"], ROOT, 60).strip()
        return [extras[int(commit, 16) % len(extras)]]
    return [arguments.only] if arguments.only else list(extras)


def build_wheel(folder: Path) -> Path:
    """Build the project's wheel."""
    words = ["wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    finished([sys.executable, "-m", "pip", *words], folder, _INSTALL_LIMIT_S)
    (wheel,) = folder.glob("proctor-*.whl")
    return wheel


def tried(trial: Trial, wheel: Path, folder: Path) -> tuple[str, ...]:
    """Install the extra into an empty venv, run its episode, and return the table's row."""
    folder.mkdir()
    try:
        started = time.monotonic()
        finished([sys.executable, "-m", "venv", str(folder / "venv")], folder, _INSTALL_LIMIT_S)
        python = folder / "venv" / "bin" / "python"
        words = ["-c", str(trial.constraints(folder)), f"{wheel}[{trial.extra}]"]
        pip_install(python, words)
        if trial.extra in TWO_COMMANDS:
            pip_install(python, second_command(trial.extra, folder))
        installed = time.monotonic()
        run_episode(trial.extra, folder)
        ended = time.monotonic()
        n_packages = len(finished([str(python), "-m", "pip", "freeze"], folder, 60).splitlines())
    finally:
        shutil.rmtree(folder)
    times = (f"{installed - started:.0f} s", f"{ended - installed:.0f} s")
    return (trial.extra, trial.versions, str(n_packages), *times, "ok")


def pip_install(python: Path, words: Iterable[str]) -> None:
    """Install into the venv of ``python``."""
    command = [str(python), "-m", "pip", "install", "--no-compile", *words]
    finished(command, python.parent, _INSTALL_LIMIT_S)


def second_command(extra: str, folder: Path) -> list[str]:
    """Return the packages that the error after `pip install 'proctor[EXTRA]'` names."""
    command = [str(folder / "venv" / "bin" / "proctor"), "eval", *EPISODES[extra]]
    try:
        finished(command, folder, _EPISODE_LIMIT_S)
    except TrialFailed as error:
        told = re.search(r"&& pip install (--no-deps .*)", str(error))
        if told is not None:
            return told[1].split()
        raise
    raise TrialFailed(f"{extra} ran without the packages that the extra leaves out")


def run_episode(extra: str, folder: Path) -> None:
    """Run one episode, and check that it has a result."""
    if extra in IMPORTS:
        command = [str(folder / "venv" / "bin" / "python"), "-c", f"import {IMPORTS[extra]}"]
        finished(command, folder, _EPISODE_LIMIT_S)
        return
    (folder / "env.py").write_text(_HUB_FILE)
    run = folder / "run"
    # A first start compiles what it imports, which may take minutes on a busy machine.
    patience = f"--eval.watchdog_s={_EPISODE_LIMIT_S}"
    words = ["eval", *EPISODES[extra], "--eval.n_episodes=1", patience, f"--output_dir={run}"]
    said = finished([str(folder / "venv" / "bin" / "proctor"), *words], folder, _EPISODE_LIMIT_S)
    if not re.search(r"^success \d+\.\d% .* n=1$", said, re.MULTILINE):
        raise TrialFailed(f"no result of one episode in:\n{tail(said)}")
    if extra in LEAVES and not list(run.glob(LEAVES[extra])):
        raise TrialFailed(f"the run folder holds no {LEAVES[extra]}:\n{tail(said)}")


def finished(command: Sequence[str], folder: Path, limit_s: float) -> str:
    """Run a command that sees only its own Python; return its output.

    Raises:
        TrialFailed: it failed, or timed out.
    """
    ours = ("PYTHON", "VIRTUAL_ENV")
    variables = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    variables |= {"PYTHONNOUSERSITE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        ended = subprocess.run(  # noqa: S603  our own command
            command,
            cwd=folder,
            env=variables,
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise TrialFailed(f"{' '.join(command)}: not finished after {limit_s:.0f} s") from None
    if ended.returncode:
        raise TrialFailed(f"{' '.join(command)}: exit {ended.returncode}\n{tail(ended.stdout)}")
    return ended.stdout


def tail(text: str) -> str:
    """Return the end of a long text, indented."""
    return "\n".join("    " + line for line in text.splitlines()[-_TAIL_LINES:])


def row(cells: Sequence[str]) -> str:
    """Return one line of the table."""
    extra, versions, packages, install, episode, result = cells
    return f"{extra:<10} {versions:<21} {packages:>8} {install:>8} {episode:>8}  {result}"


if __name__ == "__main__":
    sys.exit(main())
