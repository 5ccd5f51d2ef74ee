"""A whole evaluation on a GPU host compared with the hardware limit, and where its time went.

    python -m measurements gpu_host [--workers=14] [--policy=act|diffusion|smolvla|random]
        [--tasks=mt50] [--episodes=4] [--every=20] [--dtype=float32] [--strict] [--rounds=1]

A policy of full size with random weights on Meta-World's 480x480 images. The result is a fraction
of the limit that gpu_limit.py defines: the largest of rendering (images / the best rate of as many
processes that only render), inference (the network's least time for its batches on an idle GPU) and
physics (simulator seconds / cores), over the time from the first episode to the last.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from measurements.command import evaluate, machine, make_parser, say, total
from measurements.gpu_limit import Limit, RunWork, limit_of
from measurements.inference import batch_for, fields_of, make, write_vlm
from measurements.rendering import Scenes, render_in_parallel
from proctor.config.base import STRICT_BATCH
from proctor.runs.sessions import read_session_totals
from proctor.system.platform.platform_info import usable_cores

IMAGES = "--policy.inputs=observation.image,observation.state"


@dataclass(frozen=True)
class Case:
    """The evaluation that is measured."""

    policy: str
    tasks: str
    episodes: int
    every: int
    """Actions executed per inference call."""
    dtype: str
    strict: bool
    size: int = 480
    steps: int = 500
    device: str = "cuda"
    network: dict[str, Any] = field(default_factory=dict)
    """The sizes of the policy's network."""

    @property
    def fields(self) -> dict[str, Any]:
        """The policy's settings."""
        fields: dict[str, Any] = {"n_action_steps": self.every}
        if self.policy == "random":
            return fields
        chunk = {"chunk_size": self.every} if self.policy == "act" else {}
        return fields | chunk | {"dtype": self.dtype} | self.network

    @property
    def flags(self) -> list[str]:
        """The flags of ``proctor eval``."""
        device = IMAGES if self.policy == "random" else f"--policy.device={self.device}"
        return [
            f"--policy.type={self.policy}",
            device,
            *(f"--policy.{name}={value}" for name, value in self.fields.items()),
            "--env.type=metaworld",
            f"--env.task={self.tasks}",
            f"--env.episode_length={self.steps}",
            f"--env.observation_height={self.size}",
            f"--env.observation_width={self.size}",
            f"--eval.n_episodes={self.episodes}",
            f"--eval.strict={str(self.strict).lower()}",
        ]


def idle_batch_s(case: Case, most: int) -> dict[int, float]:
    """Return the least seconds of the network for batches of 1 to ``most`` on an idle GPU."""
    if case.policy == "random":
        return dict.fromkeys(range(1, most + 1), 0.0)
    fields = case.fields | ({"pad_to": STRICT_BATCH} if case.strict else {})
    policy, benchmark = make(case.policy, case.device, case.size, **fields)
    runner, replay_s = policy.runner, dict[int, float]()
    features = benchmark.features()
    for _ in policy.warm_up({key: features[key] for key in policy.spec.inputs}, most):
        pass  # captures all graphs
    graphs = {size: graph for (size, *_), graph in getattr(runner, "graphs", {}).items()}
    for size in range(1, most + 1):
        left, pieces = size, []
        while left > 0:
            pieces.append(runner.size_for(left))
            left -= pieces[-1]
        for piece in {*pieces} - {*replay_s}:
            if piece in graphs:
                replay_s[piece] = _least_replay_s(graphs[piece], runner.stream)
            else:  # on a CPU there are no graphs
                start = time.perf_counter()
                policy.act(batch_for(policy, benchmark, piece))
                replay_s[piece] = time.perf_counter() - start
        replay_s[size] = sum(replay_s[piece] for piece in pieces)
    return {size: replay_s[size] for size in range(1, most + 1)}


def _least_replay_s(graph: Any, stream: Any, tries: int = 50) -> float:
    """Return the shortest of many replays on an idle GPU, by CUDA events."""
    import torch

    event: Any = torch.cuda.Event
    times: list[float] = []
    with torch.cuda.stream(stream):
        for _ in range(tries):
            begin, end = (event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record(stream)
            graph.graph.replay()
            end.record(stream)
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1000)
    return min(times)


class GpuLoad:
    """Samples nvidia-smi in a thread while the block runs."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._percents: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> GpuLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()

    def between(self, begin: float, end: float) -> float | None:
        """Return the mean utilisation in percent between two moments."""
        inside = [percent for moment, percent in self._percents if begin <= moment <= end]
        return sum(inside) / len(inside) if inside else None

    def _sample(self) -> None:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        while shutil.which(command[0]) and not self._over.wait(0.5):
            answer = subprocess.run(command, capture_output=True, text=True)  # noqa: S603  our own
            if answer.returncode == 0:
                self._percents.append((time.time(), int(answer.stdout.split()[0])))


@dataclass(frozen=True)
class MeasuredRun:
    """One evaluation: its work, and the wall time of the whole command."""

    work: RunWork
    wall_s: float


def one_run(case: Case, workers: int) -> MeasuredRun:
    """Evaluate once, and print where the time went."""
    with tempfile.TemporaryDirectory() as folder, GpuLoad() as load:
        began = time.time()
        run = Path(folder) / "run"
        wall_s, rows = evaluate(run, *case.flags, f"--eval.batch_size={workers}")
        effort = read_session_totals(run)
    first = min(row.start_time for row in rows)
    last = max(row.end_time for row in rows)
    span_s = last - first
    name = f"{case.policy}, {case.tasks} x {case.episodes}, n_action_steps={case.every}"
    name += ", strict" * case.strict
    say(f"{name}: wall", f"{wall_s:.1f} s", f"{total(rows, 'steps') / wall_s:,.0f} steps/s")
    say("  frames/s, first episode to last", f"{total(rows, 'renders') / span_s:.0f}")
    say("  command to first episode", f"{first - began:.1f} s")
    say("  first episode to last", f"{span_s:.1f} s")
    say("  last episode to the end of the command", f"{began + wall_s - last:.1f} s")
    for kind in ("open_s", "sim_s", "render_s", "wait_s"):
        say(f"  {kind}, share of worker time", f"{total(rows, kind) / span_s / workers:.2f}")
    say("  inference with transfers, share of that time",
        f"{effort.infer_s / span_s:.2f}")  # fmt: skip
    say("  mean batch", "n/a" if effort.mean_batch is None else f"{effort.mean_batch:.1f}")
    percent = load.between(first, last)
    say("  GPU utilisation", "n/a" if percent is None else f"{percent:.0f}%")
    work = RunWork(
        span_s=span_s,
        renders=total(rows, "renders"),
        batches=effort.batches,
        requests=effort.batched_requests,
        infer_s=effort.infer_s,
        sim_s=total(rows, "sim_s"),
        workers=workers,
        cores=usable_cores(),
    )
    return MeasuredRun(work, wall_s)


def print_limit(limit: Limit, wall_s: float) -> None:
    """Print the least time of each kind of work and the fraction of the limit."""
    say("  least time for rendering", f"{limit.rendering_s:.1f} s")
    say("  least time for inference", f"{limit.inference_s:.1f} s")
    say("  least time for physics", f"{limit.physics_s:.1f} s")
    say("  rendering, share of first episode to last", f"{limit.rendering_s / limit.span_s:.2f}")
    say("  FRACTION OF THE LIMIT, first episode to last", f"{limit.fraction:.2f}")
    say("  the same over the whole command", f"{limit.fraction * limit.span_s / wall_s:.2f}")
    for kind in limit.unreliable:
        say(f"  {kind} took longer alone than in the run", "measure again")


def main(words: Sequence[str]) -> None:
    """Measure the render limit, evaluate ``--rounds`` times, and print the fractions."""
    parser = make_parser("gpu_host", __doc__)
    parser.add_argument("--workers", type=int, default=max(1, usable_cores() - 2))
    policies = ("act", "diffusion", "smolvla", "random")
    parser.add_argument("--policy", choices=policies, default="act")
    parser.add_argument("--tasks", default="mt50")
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--every", type=int, default=20, help="n_action_steps")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--strict", action="store_true", help="as --eval.strict")
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        write_vlm(Path(folder))
        case = Case(given.policy, given.tasks, given.episodes, given.every, given.dtype,
                    given.strict)  # fmt: skip
        if given.tiny:
            case = replace(case, tasks="reach-v3", episodes=1, every=2, size=64, steps=4)
            case = replace(case, device="cpu")
        if given.policy != "random":
            network = fields_of(given.policy, case.size, Path(folder), tiny=given.tiny)
            case = replace(case, network=network)
        measure(case, given.workers, given.rounds, seconds=0.2 if given.tiny else 5.0)


def measure(case: Case, workers: int, rounds: int, seconds: float) -> None:
    """Print the figures of one case."""
    print(machine(workers=workers, **asdict(case)))
    frames = render_in_parallel(Scenes(("reach-v3",), case.size, 4096, seconds), workers)
    size = f"{case.size}x{case.size}"
    say(f"rendering alone, {size}, {workers} processes", f"{frames.rate:.0f} frames/s")
    say("  in the best second", f"{frames.best:.0f} frames/s")
    runs = [one_run(case, workers) for _ in range(rounds)]
    batch_s = idle_batch_s(case, workers)  # after all runs: it keeps a network on the GPU
    for ran in runs:
        print_limit(limit_of(ran.work, frames.best, batch_s), ran.wall_s)
