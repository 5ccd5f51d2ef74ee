"""The engine's speed and memory, as ratios to baselines measured in the same run.

    python -m measurements engine [efficiency pixels dispatch engine_cpu start memory workers]

``workers`` times whole commands with the default number of simulators and with fixed numbers; it
runs only if it is named. docs/measurements.md has the figures with command, commit and machine.
"""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from measurements.command import PROCTOR, evaluate, make_parser, run_parts, say, total
from measurements.monitored_command import evaluate_monitored
from proctor.system.platform.platform_info import usable_cores


def efficiency(folder: Path, *, tiny: bool) -> None:
    """Share of the workers' time that is spent inside the simulator; start-up included."""
    workers = 2
    tasks, episodes = ("reach-v3", 1) if tiny else ("mt50", 4)
    wall_s, rows = evaluate(
        folder / "efficiency", "--policy.type=expert", "--env.type=metaworld",
        f"--env.task={tasks}", f"--eval.n_episodes={episodes}", f"--eval.batch_size={workers}",
    )  # fmt: skip
    inside = total(rows, "open_s") + total(rows, "sim_s")
    say(f"state only, {tasks} x {episodes}, expert: wall", f"{wall_s:.1f} s")
    say("  steps per second", f"{total(rows, 'steps') / wall_s:,.0f}")
    say("  opening simulators, summed", f"{total(rows, 'open_s'):.1f} s")
    say("  resetting and stepping, summed", f"{total(rows, 'sim_s'):.1f} s")
    say("  in the simulator / (wall x 2 workers)", f"{inside / wall_s / workers:.3f}", ">= 0.85")


def pixels(folder: Path, *, tiny: bool) -> None:
    """Continuous batching with chunks against the in-tree lockstep loop, same episodes."""
    size, steps, episodes = (32, 4, 1) if tiny else (480, 60, 4)
    for chunk, target in ((10, ">= 6"), (1, ">= 1")):
        walls = {}
        for scheduler in ("lockstep", "continuous"):
            walls[scheduler], rows = evaluate(
                folder / f"{scheduler}-{chunk}", "--policy.type=random",
                "--policy.inputs=observation.image,observation.state",
                f"--policy.n_action_steps={chunk}", "--env.type=metaworld",
                "--env.task=reach-v3,push-v3", f"--env.episode_length={steps}",
                f"--env.observation_height={size}", f"--env.observation_width={size}",
                f"--eval.n_episodes={episodes}", "--eval.batch_size=2",
                f"--eval.scheduler={scheduler}",
            )  # fmt: skip
            say(
                f"pixels {size}x{size}, n_action_steps={chunk}, {scheduler}: wall",
                f"{walls[scheduler]:.1f} s",
                f"{total(rows, 'renders'):.0f} renders, {total(rows, 'steps'):.0f} steps",
            )
        ratio = walls["lockstep"] / walls["continuous"]
        say(f"  lockstep / continuous, n_action_steps={chunk}", f"{ratio:.2f}x", target)


def dispatch(folder: Path, *, tiny: bool) -> None:
    """Cost of one inference request: trivial simulator, 480x480x3 observation, 8 workers."""
    steps, episodes = (10, 2) if tiny else (500, 16)
    for workers in (1, 8):
        _, rows = evaluate(
            folder / f"dispatch-{workers}", "--policy.type=random",
            "--policy.inputs=observation.image", "--env.type=fake", "--env.image_size=480",
            "--env.endless=true", f"--env.episode_length={steps}",
            f"--eval.n_episodes={episodes}", f"--eval.batch_size={workers}",
        )  # fmt: skip
        span_s = max(row.end_time for row in rows) - min(row.start_time for row in rows)
        say(
            f"dispatch, 480x480x3, {workers} worker{'s' * (workers > 1)}: per request",
            f"{1000 * span_s / total(rows, 'steps'):.3f} ms",
            "< 0.5 ms" if workers == 8 else "one process",
        )


def engine_cpu(folder: Path, *, tiny: bool) -> None:
    """CPU time of the engine's process per request: a long run less a short one."""
    workers, short, long = (2, 2, 4) if tiny else (64, 50, 250)
    for chunk in (1, 10):
        cpu_s: list[float] = []
        for decisions in (short, long):
            usage, _ = evaluate_monitored(
                folder / f"cpu-{chunk}-{decisions}", "--policy.type=random",
                "--policy.inputs=observation.image", f"--policy.n_action_steps={chunk}",
                "--env.type=fake", "--env.image_size=128", "--env.endless=true",
                f"--env.episode_length={chunk * decisions}",
                f"--eval.n_episodes={2 * workers}", f"--eval.batch_size={workers}",
            )  # fmt: skip
            cpu_s.append(usage.cpu_s)
        per_request = (cpu_s[1] - cpu_s[0]) / (2 * workers * (long - short))
        what = f"engine's CPU per request, 128x128x3, {workers} workers, n_action_steps={chunk}"
        say(what, f"{1e6 * per_request:.0f} us")


def start(folder: Path, *, tiny: bool) -> None:
    """From the command to the first simulated step, and the cost of --help."""
    for workers in (1, 2):
        best = float("inf")
        for attempt in range(1 if tiny else 3):
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
    subprocess.run([*PROCTOR, "--help"], capture_output=True, check=True)  # noqa: S603  our own command
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    say("proctor --help: CPU", f"{cpu_s:.2f} s", "< 0.4 s")


def memory(folder: Path, *, tiny: bool) -> None:
    """Proportional set size of a Meta-World worker that does not render."""
    usage, _ = evaluate_monitored(
        folder / "memory", "--policy.type=expert", "--env.type=metaworld",
        "--env.task=reach-v3,push-v3,hammer-v3", f"--eval.n_episodes={1 if tiny else 40}",
        "--eval.batch_size=2",
    )  # fmt: skip
    peak = "n/a" if usage.worker_mb is None else f"{usage.worker_mb:.0f} MB"
    say("worker without rendering: peak PSS", peak, "< 250 MB")


def workers(folder: Path, *, tiny: bool) -> None:
    """The default number of simulators against fixed numbers; the best of two turns counts."""
    episodes, turns = (1, 1) if tiny else (10, 2)
    flags = ["--policy.type=expert", "--env.type=metaworld", f"--eval.n_episodes={episodes}"]
    flags.append(f"--env.task={'reach-v3,push-v3' if tiny else 'mt50'}")
    wall_s, rows = evaluate(folder / "workers-default", *flags)
    default = len({row.worker for row in rows})
    seconds = {default: wall_s}
    shares = (1,) if tiny else (0.5, 0.75, 1, 1.25, 1.5)
    numbers = {max(1, round(share * usable_cores())) for share in shares}
    for turn in range(turns):
        for number in sorted({*numbers, default}):
            place = folder / f"workers-{number}-{turn}"
            wall_s, _ = evaluate(place, *flags, f"--eval.batch_size={number}")
            seconds[number] = min(seconds.get(number, wall_s), wall_s)
    for number, least_s in sorted(seconds.items()):
        say(f"{number} simulators{', the default' * (number == default)}", f"{least_s:.1f} s")
    say("  default / best", f"{seconds[default] / min(seconds.values()):.3f}")


PARTS = {
    "efficiency": efficiency,
    "pixels": pixels,
    "dispatch": dispatch,
    "engine_cpu": engine_cpu,
    "start": start,
    "memory": memory,
    "workers": workers,
}


def main(words: Sequence[str]) -> None:
    """Run the named parts; without names all but ``workers``, or all with --tiny."""
    given = make_parser("engine", __doc__, list(PARTS)).parse_args(words)
    parts = {name: partial(part, tiny=given.tiny) for name, part in PARTS.items()}
    usual = [name for name in PARTS if given.tiny or name != "workers"]
    run_parts(given.parts or usual, parts)
