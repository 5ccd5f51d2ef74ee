"""Updates per second of SAC compared with LeRobot's learner.

    python -m measurements online_speed [state images gripper wide] [--device=cpu|cuda] [--ours]
        [--rounds=3] [--peer=PYTHON] [--tiny]

Networks and batches have LeRobot's default sizes: 256-wide layers, two critics, batches of 8, one
critic step per update; ``images`` adds two cameras of 128x128 and a gripper, ``gripper`` a gripper
and two critic steps per update, ``wide`` batches of 256. Both sides update in turn on one thread,
on random batches that are in memory already. On a CPU the clock is the process's CPU time, since
other processes may run; on CUDA it is the wall clock, and Proctor's update is one CUDA graph.
LeRobot runs in ``--peer``, or in PROCTOR_PEER_VENV (`make bench-peers` installs it).
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from measurements.command import Part, make_parser, run_parts
from measurements.peers.install import peer_python, require_lerobot

if TYPE_CHECKING:
    import torch

    from proctor.rl.transitions import TransitionBatch

COLUMNS = ("", "LeRobot", "Proctor", "ratio", "target")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
SIDE = Path(__file__).parent / "peers" / "sac_side.py"
"""LeRobot's side, which runs in its environment."""
TARGETS = {"cpu": ">= 3x", "cuda": ">= 2x"}


@dataclass(frozen=True)
class Case:
    """Sizes of a learner, and how many updates are timed."""

    name: str
    device: str = "cpu"
    batch: int = 8
    state: int = 18
    cameras: int = 0
    image: int = 128
    actions: int = 3
    grippers: int | None = None
    """Gripper commands; None: no gripper critic."""
    utd: int = 1
    warm_up: int = 10
    updates: int = 40
    blocks: int = 3
    """Timed blocks of updates; the median counts."""


CASES = {
    "state": Case("state"),
    "images": Case("two cameras and a gripper", cameras=2, grippers=3, updates=8, warm_up=4),
    "gripper": Case("state and a gripper, utd 2", grippers=3, utd=2, updates=20),
    "wide": Case("state, batches of 256", batch=256, updates=10, warm_up=4),
}


def ours(case: Case) -> float:
    """Return the updates per second of Proctor's SAC, measured in this process."""
    import torch

    from proctor.config.sections.online import SacSettings
    from proctor.policies.gaussian_actor.config import GaussianActorConfig
    from proctor.policies.gaussian_actor.network import GaussianActorNetwork
    from proctor.policies.lerobot.config.config import decode_config
    from proctor.rl.algorithms.sac import Sac

    torch.set_num_threads(1)
    inputs = {"observation.state": {"type": "STATE", "shape": [case.state]}}
    for camera in range(case.cameras):
        shape = [3, case.image, case.image]
        inputs[f"observation.images.{camera}"] = {"type": "VISUAL", "shape": shape}
    raw = {
        "type": "gaussian_actor",
        "input_features": inputs,
        "output_features": {"action": {"type": "ACTION", "shape": [case.actions]}},
        "num_discrete_actions": case.grippers,
    }
    network = GaussianActorNetwork(decode_config(raw, GaussianActorConfig, "measurement"))
    network.to(case.device).begin_training()
    learner = Sac(network, SacSettings(utd_ratio=case.utd), torch.Generator(case.device))
    batches = random_batches(case)
    is_cuda = case.device == "cuda"
    clock = time.perf_counter if is_cuda else time.process_time
    for _ in range(case.warm_up):
        learner.update(batches)
    blocks = []
    for _ in range(case.blocks):
        start = clock()
        for _ in range(case.updates):
            learner.update(batches)
        if is_cuda:
            torch.cuda.synchronize()
        blocks.append(clock() - start)
    return case.updates / median(blocks)


def random_batches(case: Case) -> Iterator[TransitionBatch]:
    """Yield two random batches on the device by turns."""
    import torch

    from proctor.rl.transitions import TransitionBatch

    def observation() -> dict[str, torch.Tensor]:
        found = {"observation.state": torch.randn(case.batch, case.state)}
        for camera in range(case.cameras):
            shape = case.batch, 3, case.image, case.image
            found[f"observation.images.{camera}"] = torch.randn(shape)
        return {name: value.to(case.device) for name, value in found.items()}

    def batch() -> TransitionBatch:
        action = torch.rand(case.batch, case.actions) * 2 - 1
        if case.grippers:
            command = torch.randint(0, case.grippers, (case.batch, 1))
            action = torch.cat([action, command], 1)
        zeros = torch.zeros(case.batch, device=case.device)
        return TransitionBatch(
            observation(),
            action.to(case.device),
            torch.rand(case.batch).to(case.device),
            observation(),
            zeros,
            zeros,
            {"discrete_penalty": zeros},
        )

    return itertools.cycle([batch(), batch()])


def theirs(case: Case, python: Path) -> float:
    """Return the updates per second of LeRobot's SAC."""
    command = [str(python), str(SIDE), json.dumps(asdict(case))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)  # noqa: S603
    if done.returncode:
        raise SystemExit(done.stderr)
    blocks: list[float] = json.loads(done.stdout.splitlines()[-1])
    return case.updates / median(blocks)


def ours_in_a_process(case: Case) -> float:
    """Return the updates per second of Proctor's SAC, measured in a new process."""
    command = [sys.executable, "-m", "measurements.online_speed", json.dumps(asdict(case))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)  # noqa: S603
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.splitlines()[-1])


def measure(case: Case, rounds: int, python: Path | None, _scratch: Path) -> None:
    """Update by turns, and print a row."""
    their: list[float] = []
    our: list[float] = []
    for _ in range(rounds):
        if python is not None:
            their.append(theirs(case, python))
        our.append(ours_in_a_process(case))
    ratio = "n/a"
    if their:
        ratio = f"**{median(o / t for o, t in zip(our, their, strict=True)):.1f}x**"
    cells = [case.name, rates(their), rates(our), ratio, TARGETS[case.device]]
    print(f"| {' | '.join(cells)} |", flush=True)


def rates(found: Sequence[float]) -> str:
    """Return the range of updates per second."""
    return f"{min(found):,.1f} to {max(found):,.1f}/s" if found else "n/a"


def main(words: Sequence[str]) -> None:
    """Measure the named cases, or all."""
    parser = make_parser("online_speed", __doc__, tuple(CASES))
    parser.add_argument("--device", choices=tuple(TARGETS), default="cpu")
    parser.add_argument("--ours", action="store_true", help="measure Proctor alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", type=Path, help="Python of LeRobot's environment")
    asked = parser.parse_args(words)
    if not asked.ours and asked.peer is None:
        require_lerobot()
    python = None if asked.ours else asked.peer or peer_python()
    parts: dict[str, Part] = {}
    for name, case in CASES.items():
        told = replace(case, device=asked.device)
        if asked.device == "cuda":
            told = replace(told, warm_up=20, updates=200)
        if asked.tiny:
            told = replace(told, warm_up=1, updates=1, blocks=1)
        parts[name] = partial(measure, told, asked.rounds, python)
    run_parts(asked.parts, parts, HEAD)


if __name__ == "__main__":
    print(ours(Case(**json.loads(sys.argv[1]))))
