"""The engine's speed and memory, as ratios against named baselines measured in the same run.

    python measurements/engine.py [efficiency pixels dispatch start memory limit]

Without names it runs all that this machine can do in a few minutes. Results go to standard output;
docs/performance.md records them with command, commit and machine.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from command import PROCTOR, evaluate, machine, say, total
from drawing import REACH, drawn_together

from proctor.machine.system import usable_cores
from proctor.runs.journal import EpisodeRow


def efficiency(folder: Path) -> None:
    """Share of the workers' time that is spent inside the simulator; start-up included."""
    workers = 2
    wall_s, rows = evaluate(
        folder / "efficiency", "--policy.type=expert", "--env.type=metaworld", "--env.task=mt50",
        "--eval.n_episodes=4", f"--eval.batch_size={workers}",
    )  # fmt: skip
    inside = total(rows, "open_s") + total(rows, "sim_s")
    say("state only, 50 tasks x 4, expert: wall", f"{wall_s:.1f} s")
    say("  steps per second", f"{total(rows, 'steps') / wall_s:,.0f}")
    say("  opening simulators, summed", f"{total(rows, 'open_s'):.1f} s")
    say("  resetting and stepping, summed", f"{total(rows, 'sim_s'):.1f} s")
    say("  in the simulator / (wall x 2 workers)", f"{inside / wall_s / workers:.3f}", ">= 0.85")


def pixels(folder: Path, size: int = 480, workers: int = 2, steps: int = 60) -> None:
    """Continuous batching with chunks against the in-tree lockstep loop, same episodes."""
    for chunk, target in ((10, ">= 6"), (1, ">= 1")):
        walls = {}
        for scheduler in ("lockstep", "continuous"):
            walls[scheduler], rows = evaluate(
                folder / f"{scheduler}-{chunk}", "--policy.type=random",
                "--policy.inputs=observation.image,observation.state",
                f"--policy.n_action_steps={chunk}", "--env.type=metaworld",
                "--env.task=reach-v3,push-v3", f"--env.episode_length={steps}",
                f"--env.observation_height={size}", f"--env.observation_width={size}",
                "--eval.n_episodes=4", f"--eval.batch_size={workers}",
                f"--eval.scheduler={scheduler}",
            )  # fmt: skip
            say(
                f"pixels {size}x{size}, n_action_steps={chunk}, {scheduler}: wall",
                f"{walls[scheduler]:.1f} s",
                f"{total(rows, 'renders'):.0f} renders, {total(rows, 'steps'):.0f} steps",
            )
        ratio = walls["lockstep"] / walls["continuous"]
        say(f"  lockstep / continuous, n_action_steps={chunk}", f"{ratio:.2f}x", target)


def dispatch(folder: Path) -> None:
    """Cost of one chunk request: trivial simulator, 480x480x3 observation, 8 workers."""
    for workers in (1, 8):
        _, rows = evaluate(
            folder / f"dispatch-{workers}", "--policy.type=random",
            "--policy.inputs=observation.image", "--env.type=fake", "--env.image_size=480",
            "--env.endless=true", "--env.episode_length=500", "--eval.n_episodes=16",
            f"--eval.batch_size={workers}",
        )  # fmt: skip
        span_s = max(row.end_time for row in rows) - min(row.start_time for row in rows)
        requests = total(rows, "steps")
        say(
            f"dispatch, 480x480x3, {workers} worker{'s' * (workers > 1)}: per request",
            f"{1000 * span_s / requests:.3f} ms",
            "< 0.5 ms" if workers == 8 else "one process",
        )


def start(folder: Path) -> None:
    """From the command to the first simulated step, and the cost of --help."""
    for workers in (1, 2):
        best = float("inf")
        for attempt in range(3):
            began = time.time()
            _, rows = evaluate(
                folder / f"start-{workers}-{attempt}", "--policy.type=expert",
                "--env.type=metaworld", "--env.task=reach-v3", "--eval.n_episodes=2",
                f"--eval.batch_size={workers}",
            )  # fmt: skip
            first = min(row.end_time - (row.sim_s or 0) for row in rows)
            best = min(best, first - began)
        say(f"command to first step, {workers} simulator(s)", f"{best:.2f} s", "< 4 s")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*PROCTOR, "--help"], capture_output=True, check=True)  # noqa: S603  our own words
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    say("proctor --help: CPU", f"{cpu_s:.2f} s", "< 0.4 s")


def memory(folder: Path) -> None:
    """Proportional set size of a Meta-World worker that does not render."""
    from watched import evaluate_watched  # needs psutil, which a GPU host may lack

    watched, _ = evaluate_watched(
        folder / "memory", "--policy.type=expert", "--env.type=metaworld",
        "--env.task=reach-v3,push-v3,hammer-v3", "--eval.n_episodes=40", "--eval.batch_size=2",
    )  # fmt: skip
    say("worker without rendering: peak PSS", f"{watched.worker_mb:.0f} MB", "< 250 MB")


def limit(folder: Path) -> None:
    """On a GPU host: how much of what the hardware allows is reached, past start-up.

    The limit is max(renders / render rate, simulator seconds / cores); the render rate is measured
    first, by as many processes as there will be workers, each doing nothing but render.
    """
    workers = int(os.environ.get("PROCTOR_BENCH_WORKERS", usable_cores() - 2))
    rate = drawn_together(REACH, workers).rate
    say(f"render limit, 480x480, {workers} processes", f"{rate:.0f} frames/s")
    for scheduler in ("lockstep", "continuous"):
        for chunk in (10, 1):
            if scheduler == "lockstep" and chunk == 1:
                continue
            n_episodes = 2 * workers if scheduler == "lockstep" else 8 * workers
            wall_s, rows = evaluate(
                folder / f"limit-{scheduler}-{chunk}", "--policy.type=random",
                "--policy.inputs=observation.image,observation.state",
                f"--policy.n_action_steps={chunk}", "--env.type=metaworld",
                "--env.task=reach-v3,push-v3", "--env.episode_length=100",
                f"--eval.n_episodes={n_episodes}", f"--eval.batch_size={workers}",
                f"--eval.scheduler={scheduler}",
            )  # fmt: skip
            report_limit(f"{scheduler}, n_action_steps={chunk}", wall_s, rows, rate, workers)


def report_limit(
    name: str, wall_s: float, rows: list[EpisodeRow], rate: float, workers: int
) -> None:
    # Past start-up: from when every worker has ended its first episode until the last one ends.
    firsts = [min(r.end_time for r in rows if r.worker == w) for w in {r.worker for r in rows}]
    begin, end = max(firsts), max(row.end_time for row in rows)
    later = [row for row in rows if row.start_time >= begin]
    steps, renders = total(rows, "steps"), total(rows, "renders")
    say(f"{name}: wall", f"{wall_s:.1f} s", f"{steps / wall_s:,.0f} steps/s, start-up included")
    if not later or end <= begin:
        return
    needed = max(total(later, "renders") / rate, total(later, "sim_s") / usable_cores())
    say("  frames/s past start-up", f"{total(later, 'renders') / (end - begin):.0f}")
    say("  steps/s past start-up", f"{total(later, 'steps') / (end - begin):,.0f}")
    say("  fraction of the limit past start-up", f"{needed / (end - begin):.2f}", "aim: 0.8")
    say(
        "  render seconds per frame, in a worker",
        f"{total(rows, 'render_s') / renders * 1000:.1f} ms",
    )
    say("  waiting for actions, share of worker time",
        f"{total(later, 'wait_s') / (end - begin) / workers:.2f}")  # fmt: skip


BENCHMARKS: dict[str, Callable[[Path], None]] = {
    "efficiency": efficiency,
    "pixels": pixels,
    "dispatch": dispatch,
    "start": start,
    "memory": memory,
    "limit": limit,
}


def main() -> None:
    names = sys.argv[1:] or [name for name in BENCHMARKS if name != "limit"]
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            BENCHMARKS[name](Path(folder))


if __name__ == "__main__":
    main()
