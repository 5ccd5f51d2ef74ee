"""Run each side, and extract the results that can be compared."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from measurements.command import PROCTOR, total
from measurements.peers.cases import LEROBOTS_VIDEOS, SEED, Case, Peer
from measurements.peers.install import ROOT, peer_python, vla_python
from measurements.peers.resource_usage import Usage, measure
from proctor.benchmarks.libero.assets import find_assets
from proctor.runs.journal import read_journal
from proctor.system.graphics.gl import gl_variables

STUB = ROOT / "tests" / "parity" / "stub"
_LIBERO_PARTS = ("hf-libero", "robosuite", "mujoco", "numpy")


@dataclass(frozen=True)
class Episode:
    """Results of an episode that both sides report."""

    success: bool
    sum_reward: float
    max_reward: float
    digest: str | None = None
    """Hash of rewards, success and final physics, where both executed the same actions."""


@dataclass(frozen=True)
class Outcome:
    """One evaluation by one side."""

    usage: Usage
    steps: int
    renders: int
    start_up_s: float
    """From the command to the start of its first episode."""
    first_step_s: float
    """From the command to the end of the first step. For Proctor, of the first episode: the same if
    episodes have one step."""
    episodes: list[Episode]

    @property
    def past_start_s(self) -> float:
        """Time that grows with the number of episodes: from the first one's start to the end."""
        return self.usage.wall_s - self.start_up_s


def run_proctor(case: Case, checkpoint: Path | None, folder: Path) -> Outcome:
    """Evaluate with ``proctor eval``; without a checkpoint, with the fixed actions."""
    policy = case.checkpoint_flags(checkpoint) if checkpoint else given_actions(case)
    command = [*PROCTOR, "eval", *policy, *case.shared_flags]
    command += [f"--output_dir={folder}", *([] if case.video else ["--video.episodes=0"])]
    usage = measure(command, os.environ, folder.with_suffix(".log"))
    rows = sorted(read_journal(folder).rows, key=lambda row: row.episode_index)
    return Outcome(
        usage=usage,
        steps=int(total(rows, "steps")),
        renders=int(total(rows, "renders")),
        start_up_s=min(row.start_time for row in rows) - usage.started_at,
        first_step_s=min(row.end_time for row in rows) - usage.started_at,
        episodes=[
            Episode(
                bool(row.success_once),
                row.sum_reward or 0.0,
                row.max_reward or 0.0,
                None if checkpoint else row.digest,
            )
            for row in rows
        ],
    )


def given_actions(case: Case) -> list[str]:
    """Return the flags of the policy that executes the same actions as vla-eval's model."""
    name = "measurements.peers.fixed_action_policy:FixedActionPolicy"
    return [f"--policy.type={name}", f"--policy.n_action_steps={case.n_action_steps}"]


def run_lerobot(case: Case, checkpoint: Path, folder: Path) -> Outcome:
    """Evaluate with LeRobot's own command, in its own venv."""
    seen_file = folder.with_suffix(".json")
    horizon = case.horizon if case.benchmark == "metaworld" else 0
    assets = str(find_assets(None)) if case.benchmark == "libero" else ""
    videos = LEROBOTS_VIDEOS if case.video else 0
    command = [str(peer_python()), str(Path(__file__).with_name("lerobot_side.py"))]
    command += [str(seen_file), str(horizon), str(videos), assets]
    command += [*case.checkpoint_flags(checkpoint), *_understood(case), f"--output_dir={folder}"]
    usage = measure(command, lerobot_environment(), folder.with_suffix(".log"))
    seen = json.loads(seen_file.read_text())
    (task,) = json.loads((folder / "eval_info.json").read_text())["per_task"]
    metrics = task["metrics"]
    episodes = [
        Episode(bool(success), total_reward, most)
        for success, total_reward, most in zip(
            metrics["successes"], metrics["sum_rewards"], metrics["max_rewards"], strict=True
        )
    ]
    return _outcome(usage, seen, episodes)


def run_vla_eval(case: Case, folder: Path) -> Outcome:
    """Evaluate with vla-eval, without a container, the model in the same process."""
    seen_file = folder.with_suffix(".json")
    command = [str(vla_python()), str(Path(__file__).with_name("vla_side.py"))]
    command += [str(seen_file), str(folder), str(find_assets(None)), case.task]
    command += [str(case.n_episodes), str(case.horizon), str(case.n_action_steps), str(SEED)]
    usage = measure(command, peer_environment(), folder.with_suffix(".log"))
    seen = json.loads(seen_file.read_text())
    return _outcome(usage, seen, [Episode(**episode) for episode in seen["episodes"]])


def _outcome(usage: Usage, seen: Mapping[str, Any], episodes: list[Episode]) -> Outcome:
    """Return a peer's outcome, from the counters inside its process."""
    return Outcome(
        usage=usage,
        steps=seen["steps"],
        renders=seen["renders"],
        start_up_s=seen["began_at"] - usage.started_at,
        first_step_s=seen["first_step_at"] - usage.started_at,
        episodes=episodes,
    )


def peer_environment() -> dict[str, str]:
    """Return the variables for both peers: our GL backend, and no network."""
    return {**os.environ, **gl_variables(needed=True), "HF_HUB_OFFLINE": "1"}


def _understood(case: Case) -> list[str]:
    """Return the flags in the form that LeRobot accepts.

    LeRobot ignores Meta-World's episode length. LeRobot 0.6 runs a batch in workers by default, and
    PushT's fail there: they have not imported gym-pusht, so its id is unknown to them.
    """
    if case.benchmark == "metaworld":
        return [flag for flag in case.shared_flags if "episode_length" not in flag]
    in_process = ["--eval.use_async_envs=false"] if case.benchmark == "pusht" else []
    return [*case.shared_flags, *in_process]


def lerobot_environment() -> Mapping[str, str]:
    """Return further variables for LeRobot: a torchvision."""
    environment = peer_environment()
    if not has_torchvision():
        environment["PYTHONPATH"] = os.pathsep.join([str(STUB), str(ROOT / "src")])
    return environment


@cache
def has_torchvision() -> bool:
    """Return whether the peer's torchvision loads; otherwise ours replaces its ResNet."""
    tried = subprocess.run([peer_python(), "-c", "import torchvision"], capture_output=True)  # noqa: S603  our own command
    return tried.returncode == 0


def peer_versions(peer: Peer) -> str:
    """Return the peer's versions in one line."""
    if peer is Peer.VLA_EVAL:
        return _versions(vla_python(), ["vla-eval", "torch", *_LIBERO_PARTS])
    parts = ["lerobot", "torch", "metaworld", "gymnasium", *_LIBERO_PARTS]
    ours = "" if has_torchvision() else ", with our stand-in for torchvision"
    return _versions(peer_python(), parts) + ours


def _versions(python: Path, distributions: Sequence[str]) -> str:
    """Return the versions of installed packages; a group of cases needs only some of them."""
    asked = (
        "import sys; from importlib.metadata import distributions; "
        "found = {d.metadata['Name']: d.version for d in distributions()}; "
        f"print(*(f'{{name}} {{found[name]}}' for name in {list(distributions)!r} "
        "if name in found), 'Python', sys.version.split()[0])"
    )
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)  # noqa: S603  our own command
    return done.stdout.strip()
