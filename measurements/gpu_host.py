"""On a GPU host: a whole evaluation against what the host could do at most, and where time went.

    PROCTOR_BENCH_WORKERS=14 python measurements/gpu_host.py [--tasks=mt50 --episodes=4 --every=20
        --dtype=float32 --policy=act|diffusion --strict] [--draw_slots=none,3 --rounds=3]

A policy of full size with random weights on Meta-World's 480x480 pictures. The fraction it states
is that of the least time the run's work takes on this host, as gpu_limit.py defines it: the largest
of drawing (pictures / the best rate that as many processes reach in any second of doing nothing
else), inference (the least time of the network alone, of many tries, for its batches) and physics
(seconds in the simulator / cores), over the time from the first episode to the last.

With several ``--draw_slots`` the same evaluation runs under each bound by turns, every second round
in the opposite order. ``render_s`` holds the wait for a slot too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from command import evaluate, say, total
from drawing import REACH, drawn_together
from gpu_limit import Limit, Seen, limit_of

from proctor.config.base import STRICT_BATCH
from proctor.machine.system import git_commit, usable_cores
from proctor.runs.effort import read_effort


@dataclass(frozen=True)
class Case:
    """What is evaluated."""

    policy: str
    tasks: str
    episodes: int
    every: int
    dtype: str
    strict: bool

    @property
    def fields(self) -> dict[str, Any]:
        """The policy's own settings."""
        fields: dict[str, Any] = {"n_action_steps": self.every, "dtype": self.dtype}
        if self.policy == "act":
            return fields | {"chunk_size": self.every}
        sampling = {"noise_scheduler_type": "DDIM", "num_inference_steps": 10}
        return fields | sampling | {"crop_shape": [420, 420]}

    @property
    def flags(self) -> list[str]:
        """The words of ``proctor eval``."""
        return [
            f"--policy.type={self.policy}",
            *(f"--policy.{name}={value}" for name, value in self.fields.items()),
            "--env.type=metaworld",
            f"--env.task={self.tasks}",
            f"--eval.n_episodes={self.episodes}",
            f"--eval.strict={str(self.strict).lower()}",
        ]


@dataclass(frozen=True)
class Asked:
    """What the command line says."""

    case: Case
    draw_slots: list[int | None]
    rounds: int


def parse() -> Asked:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", choices=("act", "diffusion"), default="act")
    parser.add_argument("--tasks", default="mt50")
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--every", type=int, default=20, help="n_action_steps")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--strict", action="store_true", help="as --eval.strict")
    parser.add_argument("--draw_slots", default="none", help="bounds to try, as none,3,4")
    parser.add_argument("--rounds", type=int, default=1, help="runs with each bound")
    words = vars(parser.parse_args())
    bounds = [None if n == "none" else int(n) for n in words.pop("draw_slots").split(",")]
    rounds = words.pop("rounds")
    return Asked(Case(**words), bounds, rounds)


def idle_batch_s(case: Case, most: int) -> dict[int, float]:
    """Return the least seconds of the network for batches of 1 to ``most`` on an idle GPU."""
    from policy import batch_for, make

    fields = case.fields | ({"pad_to": STRICT_BATCH} if case.strict else {})
    policy, benchmark = make(case.policy, "cuda", 480, **fields)
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
            else:  # no GPU: to try the script
                start = time.perf_counter()
                policy.act(batch_for(policy, benchmark, piece))
                replay_s[piece] = time.perf_counter() - start
        replay_s[size] = sum(replay_s[piece] for piece in pieces)
    return {size: replay_s[size] for size in range(1, most + 1)}


def _least_replay_s(graph: Any, stream: Any, tries: int = 50) -> float:
    """Return the shortest of many replays, by the GPU's own clock, nothing else in its queue."""
    import torch

    times = []
    with torch.cuda.stream(stream):
        for _ in range(tries):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begin.record(stream)
            graph.graph.replay()
            end.record(stream)
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1000)
    return min(times)


class GpuLoad:
    """Samples nvidia-smi until told to stop."""

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


def main() -> None:
    asked = parse()
    case, workers = asked.case, int(os.environ["PROCTOR_BENCH_WORKERS"])
    machine = {"commit": git_commit(), "cores": usable_cores(), "workers": workers}
    print(json.dumps(machine | asdict(case)))
    drawn = drawn_together(REACH, workers)
    best = drawn.best
    say(f"rendering alone, 480x480, {workers} processes", f"{drawn.rate:.0f} frames/s")
    say("  in the best second", f"{best:.0f} frames/s")
    runs: dict[int | None, list[Ran]] = {slots: [] for slots in asked.draw_slots}
    for turn in range(asked.rounds):
        for slots in asked.draw_slots[:: 1 if turn % 2 == 0 else -1]:
            runs[slots].append(one_run(case, workers, slots))
    batch_s = idle_batch_s(case, workers)  # after all runs: it keeps a network on the GPU
    for slots, done in runs.items():
        for ran in done:
            say_limit(in_words(slots), limit_of(ran.seen, best, batch_s), ran.wall_s)
    if len(runs) > 1:
        say_compared({slots: [ran.seen.span_s for ran in done] for slots, done in runs.items()})


@dataclass(frozen=True)
class Ran:
    """One evaluation: what it did, and how long the command took."""

    seen: Seen
    wall_s: float


def one_run(case: Case, workers: int, slots: int | None) -> Ran:
    """Evaluate once, with at most ``slots`` drawing at a time."""
    bound = [] if slots is None else [f"--eval.draw_slots={slots}"]
    with tempfile.TemporaryDirectory() as folder, GpuLoad() as load:
        began = time.time()
        run = Path(folder) / "run"
        wall_s, rows = evaluate(run, *case.flags, f"--eval.batch_size={workers}", *bound)
        effort = read_effort(run)
    first = min(row.start_time for row in rows)
    last = max(row.end_time for row in rows)
    span_s = last - first
    name = f"{case.policy}, {case.tasks} x {case.episodes}, n_action_steps={case.every}"
    name += f"{', strict' * case.strict}, {in_words(slots)}"
    say(f"{name}: wall", f"{wall_s:.1f} s", f"{total(rows, 'steps') / wall_s:,.0f} steps/s")
    say("  frames/s, first episode to last", f"{total(rows, 'renders') / span_s:.0f}")
    say("  command to first episode", f"{first - began:.1f} s")
    say("  first episode to last", f"{span_s:.1f} s")
    say("  last episode to the end of the command", f"{began + wall_s - last:.1f} s")
    for kind in ("open_s", "sim_s", "render_s", "wait_s"):
        say(f"  {kind}, share of worker time", f"{total(rows, kind) / span_s / workers:.2f}")
    say("  inference with the way there and back, share of the session",
        f"{effort.infer_s / span_s:.2f}")  # fmt: skip
    say("  mean batch", "n/a" if effort.mean_batch is None else f"{effort.mean_batch:.1f}")
    percent = load.between(first, last)
    say("  GPU utilisation", "n/a" if percent is None else f"{percent:.0f}%")
    seen = Seen(
        span_s=span_s,
        renders=total(rows, "renders"),
        batches=effort.batches,
        requests=effort.batched_requests,
        infer_s=effort.infer_s,
        sim_s=total(rows, "sim_s"),
        workers=workers,
        cores=usable_cores(),
    )
    return Ran(seen, wall_s)


def in_words(slots: int | None) -> str:
    return "all may draw" if slots is None else f"{slots} draw at a time"


def say_compared(taken: dict[int | None, list[float]]) -> None:
    """Print what each bound took, round by round, and its mean against that of the first."""
    base = fmean(next(iter(taken.values())))
    print("first episode to last, round by round")
    for slots, spans_s in taken.items():
        rounds = ", ".join(f"{span_s:.1f}" for span_s in spans_s)
        say(f"  {in_words(slots)}: {rounds} s", f"{fmean(spans_s):.1f} s",
            f"{100 * (fmean(spans_s) / base - 1):+.1f}%")  # fmt: skip


def say_limit(name: str, limit: Limit, wall_s: float) -> None:
    """Print the least times and what fraction of the run's time the largest is."""
    print(name)
    say("  least time for drawing", f"{limit.drawing_s:.1f} s")
    say("  least time for inference", f"{limit.inference_s:.1f} s")
    say("  least time for physics", f"{limit.physics_s:.1f} s")
    say("  drawing, share of first episode to last", f"{limit.drawing_s / limit.span_s:.2f}")
    say("  FRACTION OF THE LIMIT, first episode to last", f"{limit.fraction:.2f}")
    say("  the same over the whole command", f"{limit.fraction * limit.span_s / wall_s:.2f}")
    for kind in limit.measured_badly:
        say(f"  {kind} took longer alone than in the run", "measure again")


if __name__ == "__main__":
    main()
