"""Every command of Proctor as a case: its words, how it is completed, and what its result is."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.runs.journal import read_journal

PROCTOR = [sys.executable, "-m", "proctor.cli"]
Words = Callable[[Path], list[str]]


def _nothing(home: Path) -> Any:
    return None


@dataclass(frozen=True)
class Case:
    """A command, in a folder ``home`` with copies of the inputs; its output is ``home/out``."""

    words: Words
    resume: Words | None = None
    """How an interrupted command is completed; None: by the same words."""
    result: Callable[[Path], Any] = _nothing
    """What must be equal without a disturbance."""
    inputs: Sequence[str] = ()
    """Folders of ``make_inputs`` that it reads, and must not change."""
    ends: bool = True
    """Whether it ends by itself."""
    codes: Sequence[int] = (0,)
    """Exit codes of an undisturbed command."""
    arms: Sequence[str] = ()
    """Emulated arms whose motors must be off at the end."""


def _digests(home: Path) -> dict[Any, Any]:
    return {row.key: (row.outcome.value, row.digest) for row in read_journal(home / "out").rows}


def _dataset(home: Path) -> dict[str, Any]:
    from tests.recordings import columns

    return {name: value.tolist() for name, value in columns(home / "out").items() if name != "from"}


def _n_episodes(home: Path) -> int:
    from proctor.datasets.format.info_file import read_info

    return read_info(home / "out").total_episodes


def _weights(home: Path) -> list[str]:
    return [content_of(home / "out/checkpoints/last/pretrained_model")]


def _is_learned(home: Path) -> bool:
    return (home / "out/checkpoints/last/pretrained_model/model.safetensors").exists()


def _page(home: Path) -> bool:
    return (home / "run/report.html").stat().st_size > 0


def content_of(folder: Path) -> str:
    """Return a hash of all names and bytes in a folder, without pages."""
    found = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if file.name != ".lock" and file.suffix != ".html":
            found.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    return found.hexdigest()


_FAKE = ["--policy.type=random", "--env.type=fake"]
_EVAL = [*_FAKE, "--env.n_tasks=2", "--env.step_ms=5", "--eval.n_episodes=8", "--eval.batch_size=2"]
_ACT = [
    "--policy.type=act", "--policy.chunk_size=4", "--policy.n_action_steps=4",
    "--policy.dim_model=16", "--policy.n_heads=2", "--policy.dim_feedforward=24",
    "--policy.n_encoder_layers=1", "--policy.n_vae_encoder_layers=1", "--policy.latent_dim=4",
    "--policy.device=cpu", "--policy.push_to_hub=false", "--steps=60", "--batch_size=4",
    "--save_freq=10", "--log_freq=10", "--num_workers=0",
]  # fmt: skip
_ONLINE = [
    "--env.type=fake", "--policy.type=gaussian_actor", "--policy.device=cpu",
    "--policy.online_steps=150", "--save_freq=50",
]  # fmt: skip


def _follower(home: Path) -> list[str]:
    arms = home / "arms"
    place = [f"--robot.port={arms / 'so_follower.port'}", f"--robot.calibration_dir={arms}"]
    return ["--robot.type=so101_follower", "--robot.id=follower", *place]


def _leader(home: Path) -> list[str]:
    arms = home / "arms"
    place = [f"--teleop.port={arms / 'so_leader.port'}", f"--teleop.calibration_dir={arms}"]
    return ["--teleop.type=so101_leader", "--teleop.id=leader", *place]


def _recorded_by_hand(home: Path) -> list[str]:
    return [
        "record", *_follower(home), *_leader(home), f"--dataset.root={home / 'out'}",
        "--dataset.single_task=wave", "--dataset.fps=10", "--dataset.episode_time_s=0.5",
        "--dataset.reset_time_s=0.1", "--dataset.num_episodes=3",
    ]  # fmt: skip


def _claim(home: Path) -> list[str]:
    claims = f"--claims={home / 'claims/claims.yaml'}"
    return ["reproduce", "solved", claims, f"--output_dir={home / 'out'}"]


def _out(*words: str, flag: str = "output_dir") -> Words:
    return lambda home: [*words, f"--{flag}={home / 'out'}"]


def _plain(*words: str, codes: Sequence[int] = (0,)) -> Case:
    return Case(lambda home: list(words), codes=codes)


def _driving(*words: str, arms: Sequence[str] = ("so_follower",), ends: bool = True) -> Case:
    def with_arms(home: Path) -> list[str]:
        leader = _leader(home) if "so_leader" in arms else []
        return [words[0], *_follower(home), *leader, *words[1:]]

    return Case(with_arms, arms=arms, ends=ends)


CLAIMS = "solved: {policy: expert, benchmark: fake, episodes: 8, published: 99, source: a test}\n"
_BOTH = ("so_follower", "so_leader")
CASES = {
    "eval": Case(_out("eval", *_EVAL), _out("eval", "--resume"), _digests),
    "record": Case(
        _out(
            "record", "--policy.type=expert", "--env.type=fake", "--record.n_episodes=6",
            "--record.images=false", "--eval.batch_size=2", flag="dataset.root",
        ),
        _out("record", "--resume", flag="dataset.root"),
        _dataset,
    ),
    "record on a robot": Case(
        _recorded_by_hand,
        lambda home: [*_recorded_by_hand(home), "--resume"],
        _n_episodes,
        arms=_BOTH,
    ),
    "replay": Case(
        lambda home: [
            "replay", *_follower(home), f"--dataset.root={home / 'moves'}", "--dataset.episode=0",
        ],
        inputs=("moves",),
        arms=("so_follower",),
    ),
    "report": Case(lambda home: ["report", str(home / "run")], result=_page, inputs=("run",)),
    "audit": Case(lambda home: ["audit", str(home / "run"), "--episodes=4"], inputs=("run",)),
    "compare": Case(
        lambda home: ["compare", str(home / "run"), str(home / "run2")], inputs=("run", "run2")
    ),
    "reproduce": Case(
        lambda home: [*_claim(home), "--eval.batch_size=2"],
        lambda home: [*_claim(home), "--resume"],
        _digests,
        inputs=("claims",),
    ),
    "data view": Case(
        lambda home: ["data", "view", str(home / "numbers"), f"--html={home / 'p.html'}"],
        result=lambda home: (home / "p.html").stat().st_size > 0,
        inputs=("numbers",),
    ),
    "plan": _plain("plan", "--difference=0.05"),
    "view": Case(
        lambda home: ["view", str(home / "run"), "--port=0"], inputs=("run",), ends=False
    ),
    "train": Case(
        lambda home: [
            "train", *_ACT, f"--dataset.root={home / 'numbers'}", "--dataset.repo_id=a/b",
            f"--output_dir={home / 'out'}",
        ],
        _out("train", "--resume"),
        _weights,
        inputs=("numbers",),
    ),
    "train-online": Case(
        _out("train-online", *_ONLINE), _out("train-online", "--resume"), _is_learned
    ),
    "serve": Case(
        lambda home: ["serve", *_FAKE, "--policy.inputs=[observation.state]", "--port=0"],
        ends=False,
    ),
    "teleoperate": _driving("teleoperate", "--teleop_time_s=1", arms=_BOTH),
    "rollout": _driving("rollout", "--policy.type=zero", "--duration=1", "--fps=10"),
    "robot-host": _driving(
        "robot-host", "--host.port_zmq_cmd=0", "--host.port_zmq_observations=0", ends=False
    ),
    "calibrate": _driving("calibrate", ends=False),
    "setup-motors": _driving("setup-motors", ends=False),
    "find-port": _plain("find-port"),
    "find-cameras": _plain("find-cameras", "opencv", codes=(0, 1)),
    "data": Case(
        lambda home: [
            "data", "delete", str(home / "numbers"), "--episodes=[1]", f"--output={home / 'out'}",
        ],
        result=_dataset,
        inputs=("numbers",),
    ),
    "benchmarks": _plain("benchmarks", "list"),
    "list": _plain("list", "benchmarks"),
    "doctor": _plain("doctor", codes=(0, 1)),
    "info": _plain("info"),
    "completion": _plain("completion", "bash"),
}  # fmt: skip


def make_inputs(base: Path, names: set[str]) -> None:
    """Write the folders of ``names`` that commands read."""
    from tests.unit.training.builders import write_numbers

    if "numbers" in names:
        write_numbers(base / "numbers")
    if "claims" in names:
        (base / "claims").mkdir()
        (base / "claims/claims.yaml").write_text(CLAIMS)
    for name in names & {"run", "run2"}:
        run(["eval", *_FAKE, "--eval.n_episodes=8", f"--output_dir={base / name}"])
    if "moves" in names:
        run([
            "record", "--robot.type=so101_follower", "--robot.port=sim", "--teleop.port=sim",
            "--teleop.type=so101_leader", f"--dataset.root={base / 'moves'}", "--dataset.fps=10",
            "--dataset.single_task=wave", "--dataset.episode_time_s=0.5",
            "--dataset.reset_time_s=0.1", "--dataset.num_episodes=1",
        ])  # fmt: skip


def run(words: list[str]) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(
        [*PROCTOR, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}: {done.stderr[-2000:]}"
