"""On a GPU host: a whole evaluation against what the host could do at most, and where time went.

    PROCTOR_BENCH_WORKERS=14 python benchmarks/gpu_host.py [--tasks=mt50 --episodes=4 --every=20
        --dtype=float32 --policy=act|diffusion --strict]

A policy of full size with random weights on Meta-World's 480x480 pictures. The limit is
max(renders / render rate, simulator seconds / cores); the render rate is measured first, by as many
processes as there will be workers, each doing nothing but render. Pictures are drawn by the GPU
that the policy runs on, so the GPU's own limit is the sum: renders / render rate + batches x the
time of such a batch on an idle GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine import evaluate, render_rate, report_limit, say, total

from proctor.config import STRICT_BATCH
from proctor.recorders.effort import read_effort
from proctor.system import git_commit, usable_cores


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


def parse() -> Case:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", choices=("act", "diffusion"), default="act")
    parser.add_argument("--tasks", default="mt50")
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--every", type=int, default=20, help="n_action_steps")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--strict", action="store_true", help="as --eval.strict")
    return Case(**vars(parser.parse_args()))


def idle_batch_s(case: Case, size: int) -> float:
    """Return the seconds that ``act`` takes for a batch while nothing else uses the GPU."""
    from policy import batch_for, make, seconds

    fields = case.fields | ({"pad_to": STRICT_BATCH} if case.strict else {})
    policy, benchmark = make(case.policy, "cuda", 480, **fields)
    batch = batch_for(policy, benchmark, size)
    return seconds(lambda: policy.act(batch), policy.device, repeats=20)


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
        while not self._over.wait(0.5):
            answer = subprocess.run(command, capture_output=True, text=True)  # noqa: S603  our own
            if answer.returncode == 0:
                self._percents.append((time.time(), int(answer.stdout.split()[0])))


def main() -> None:
    case = parse()
    workers = int(os.environ["PROCTOR_BENCH_WORKERS"])
    machine = {"commit": git_commit(), "cores": usable_cores(), "workers": workers}
    print(json.dumps(machine | asdict(case)))
    rate = render_rate(workers)
    say(f"render limit, 480x480, {workers} processes", f"{rate:.0f} frames/s")
    with tempfile.TemporaryDirectory() as folder, GpuLoad() as load:
        began = time.time()
        run = Path(folder) / "run"
        wall_s, rows = evaluate(run, *case.flags, f"--eval.batch_size={workers}")
        effort = read_effort(run)
    first = min(row.start_time for row in rows)
    last = max(row.end_time for row in rows)
    name = f"{case.policy}, {case.tasks} x {case.episodes}, n_action_steps={case.every}"
    report_limit(f"{name}{', strict' * case.strict}", wall_s, rows, rate, workers)
    say("  command to first episode", f"{first - began:.1f} s")
    say("  first episode to last", f"{last - first:.1f} s")
    say("  last episode to the end of the command", f"{began + wall_s - last:.1f} s")
    busy = (last - first) * workers
    for name in ("open_s", "sim_s", "render_s", "wait_s"):
        say(f"  {name}, share of worker time", f"{total(rows, name) / busy:.2f}")
    needed = max(total(rows, "renders") / rate, total(rows, "sim_s") / usable_cores())
    say("  fraction of the limit, first episode to last", f"{needed / (last - first):.2f}")
    say("  fraction of the limit, whole command", f"{needed / wall_s:.2f}")
    say("  inference, share of the session", f"{effort.infer_s / (last - first):.2f}")
    say("  mean batch", f"{effort.mean_batch:.1f}")
    drawing_s, thinking_s = (
        total(rows, "renders") / rate,
        effort.batches * idle_batch_s(case, round(effort.mean_batch)),
    )
    say("  drawing alone, inference alone", f"{drawing_s:.1f} s, {thinking_s:.1f} s")
    say("  fraction of the GPU's limit", f"{(drawing_s + thinking_s) / (last - first):.2f}")
    percent = load.between(first, last)
    say("  GPU utilisation", "n/a" if percent is None else f"{percent:.0f}%")


if __name__ == "__main__":
    main()
