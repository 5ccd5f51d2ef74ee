"""Start-up: seconds to the end of the first step, beside the import of torch.

    python -m measurements start [PART ...] [--rounds=5] [--tiny]

Runs ``proctor eval`` for one step of one episode and ``python -c "import torch"`` by turns, so that
both see the same load. `metaworld` (480 x 480) and `pusht` (96 x 96) load an ACT checkpoint with
LeRobot's sizes. `expert` runs Meta-World's expert, for which torch is not imported. Prints the
medians of wall time and of the CPU time of the command's own process, without simulators.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from measurements.command import PROCTOR, machine, make_parser
from proctor.runs.journal import read_journal

FLAGS = {
    "metaworld": ["--env.type=metaworld", "--env.task=push-v3"],
    "pusht": ["--env.type=pusht"],
    "expert": ["--env.type=metaworld", "--env.task=push-v3", "--policy.type=expert"],
}
ONE_STEP = ["--env.episode_length=1", "--eval.n_episodes=1", "--eval.batch_size=1"]
HEAD = "| | first step | its CPU time | import torch | its CPU time | difference |\n|" + "---|" * 6


@dataclass(frozen=True)
class Start:
    """One start: seconds to the first step's end (or to the end of the import), and CPU time."""

    wall_s: float
    cpu_s: float


def import_torch() -> Start:
    """Time ``import torch`` in a new interpreter."""
    began = time.time()
    cpu_s = _run([sys.executable, "-c", "import torch"])
    return Start(time.time() - began, cpu_s)


def evaluate_one_step(flags: Sequence[str], folder: Path) -> Start:
    """Time ``proctor eval`` from the command to the end of its first step."""
    began = time.time()
    cpu_s = _run([*PROCTOR, "eval", *flags, "--video.episodes=0", f"--output_dir={folder}"])
    (row,) = read_journal(folder).rows
    return Start(row.end_time - began, cpu_s)


def _run(command: Sequence[str]) -> float:
    """Run a command; return the CPU time of its process, without its children's.

    Raises:
        SystemExit: the command failed; with its error output.
    """
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)  # noqa: S603  our own command
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise SystemExit(output.read())
    return used.ru_utime + used.ru_stime


def measure(part: str, checkpoints: Path, folder: Path, rounds: int) -> str:
    """Return the table row of one part."""
    flags = [*FLAGS[part], *ONE_STEP]
    if part != "expert":
        flags += [f"--policy.path={checkpoints / f'act-{part}'}", "--policy.device=cpu"]
    starts, imports = [], []
    for number in range(rounds):
        imports.append(import_torch())
        starts.append(evaluate_one_step(flags, folder / f"{part}-{number}"))
    ours, torch_s = median(s.wall_s for s in starts), median(i.wall_s for i in imports)
    cpu = median(s.cpu_s for s in starts), median(i.cpu_s for i in imports)
    cells = f"{ours:.2f} s", f"{cpu[0]:.2f} s", f"{torch_s:.2f} s", f"{cpu[1]:.2f} s"
    return f"| {part} | {' | '.join(cells)} | {ours - torch_s:+.2f} s |"


def main(words: Sequence[str]) -> None:
    """Measure the named parts, or all."""
    parser = make_parser("start", __doc__, tuple(FLAGS))
    parser.add_argument("--rounds", type=int, default=5, help="starts of each kind (default: 5)")
    args = parser.parse_args(words)
    print(machine())
    print(f"load before: {os.getloadavg()[0]:.2f}\n\n{HEAD}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        parts = args.parts or (["pusht"] if args.tiny else list(FLAGS))
        if set(parts) - {"expert"}:
            _write_checkpoints(Path(folder), parts)
        for part in parts:
            print(measure(part, Path(folder), Path(folder), 1 if args.tiny else args.rounds))
    print(f"\nload after: {os.getloadavg()[0]:.2f}")


def _write_checkpoints(folder: Path, parts: Sequence[str]) -> None:
    """Write the checkpoints in another process: this one stays small."""
    code = (
        "from pathlib import Path; from measurements.peers.checkpoints import write_act; "
        f"[write_act(Path({str(folder)!r}), part) for part in {list(parts)!r} if part != 'expert']"
    )
    _run([sys.executable, "-c", code])
