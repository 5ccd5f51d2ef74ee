"""The parts of ``scaling.py``: what each one measures and how it is plotted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from measurements.command import total
from measurements.monitored_command import evaluate_monitored, run_monitored
from measurements.plot import Panel, Series
from proctor.runs.journal import JOURNAL_FILE, EpisodeRecord, read_journal

Figures = dict[str, float | None]
"""One row of a part's table; the varied quantity comes first, None is a missing value."""


def series(name: str, table: Sequence[Figures], x: str, y: str) -> Series:
    """Return one column of a table against another, without missing values."""
    both = [(row[x], row[y]) for row in table]
    return Series(name, [(a, b) for a, b in both if a is not None and b is not None])


def span_s(rows: Sequence[EpisodeRecord]) -> float:
    """Return the seconds from the start of the first episode to the end of the last."""
    return max(row.end_time for row in rows) - first_start(rows)


def first_start(rows: Sequence[EpisodeRecord]) -> float:
    """Return when the first of these episodes began."""
    return min(row.start_time for row in rows)


def by_worker(rows: Sequence[EpisodeRecord]) -> list[list[EpisodeRecord]]:
    """Return the episodes that each worker ran."""
    slots = sorted({row.worker for row in rows})
    return [[row for row in rows if row.worker == slot] for slot in slots]


def gap_ms(rows: Sequence[EpisodeRecord]) -> float:
    """Return the median time between two ends of episodes, which ignores pauses of the machine."""
    ends = sorted(row.end_time for row in rows)
    return 1000 * statistics.median(after - before for before, after in pairwise(ends))


# ---- Episodes: the trivial simulator, 10 to 10,000 ----


def episodes(folder: Path, *, tiny: bool) -> list[Figures]:
    """Overhead with a trivial simulator: the run, its report, its resumption."""
    table: list[Figures] = []
    for n in (10, 20) if tiny else (10, 100, 1_000, 10_000):
        run = folder / f"episodes-{n}"
        usage, rows = evaluate_monitored(
            run, "--policy.type=expert", "--env.type=fake", f"--eval.n_episodes={n}",
            "--eval.batch_size=2",
        )  # fmt: skip
        report = run_monitored("report", str(run))
        _cut_journal(run, lines=5)
        resume = run_monitored("eval", "--resume", f"--output_dir={run}")
        if len(read_journal(run).rows) != n:
            raise SystemExit(f"--resume left {len(read_journal(run).rows)} of {n} episodes")
        # Start-up is the same for all; a small run is nearly only start-up.
        more_s = usage.cpu_s - float(table[0]["cpu_s"] or 0.0) if n >= 1_000 else None
        table.append({
            "episodes": n,
            "wall_s": usage.wall_s,
            "gap_ms": gap_ms(rows),
            "cpu_s": usage.cpu_s,
            "cpu_ms_each": None if more_s is None else 1000 * more_s / (n - 10),
            "running_mb": usage.running_mb(rows),
            "peak_mb": usage.peak_mb,
            "report_cpu_s": report.cpu_s,
            "report_mb": report.peak_mb,
            "resume_cpu_s": resume.cpu_s,
            "resume_mb": resume.peak_mb,
            "page_kb": (run / "report.html").stat().st_size / 1024,
        })  # fmt: skip
    return table


def _cut_journal(run: Path, *, lines: int) -> None:
    """Remove the last episodes, as if the run had been killed before them."""
    kept = (run / JOURNAL_FILE).read_bytes().splitlines(keepends=True)[:-lines]
    (run / JOURNAL_FILE).write_bytes(b"".join(kept))


def episodes_panels(table: list[Figures]) -> list[Panel]:
    return [
        Panel("one more episode, ms", "episodes",
              [series("end to end, median", table, "episodes", "gap_ms"),
               series("CPU of the parent", table, "episodes", "cpu_ms_each")]),
        Panel("memory of the parent, MB", "episodes",
              [series("while episodes run", table, "episodes", "running_mb"),
               series("at most", table, "episodes", "peak_mb")]),
        Panel("whole command, CPU seconds", "episodes",
              [series("report", table, "episodes", "report_cpu_s"),
               series("resume, 5 missing", table, "episodes", "resume_cpu_s")]),
    ]  # fmt: skip


# ---- Workers: a simulator that sleeps, 1 to 64; Meta-World without images, 1 to 8 ----


def workers(folder: Path, *, tiny: bool) -> list[Figures]:
    """Overhead of the parent process with simulators that sleep and need no core."""
    steps, step_ms, chunk = 40, 10, 10
    table: list[Figures] = []
    for n in (1, 2) if tiny else (1, 2, 4, 8, 16, 32, 64):
        usage, rows = evaluate_monitored(
            folder / f"workers-{n}", "--policy.type=random", f"--policy.n_action_steps={chunk}",
            "--policy.inputs=observation.state", "--env.type=fake", "--env.endless=true",
            f"--env.episode_length={steps}", f"--env.step_ms={step_ms}",
            f"--eval.n_episodes={(1 if tiny else 16) * n}", f"--eval.batch_size={n}",
        )  # fmt: skip
        asked = total(rows, "steps") / chunk
        table.append({
            "workers": n,
            "episodes_per_s": len(rows) / span_s(rows),
            # Sleeps take a little longer: the simulator's own clock measures them.
            "busy": total(rows, "sim_s") / sum(map(span_s, by_worker(rows))),
            "wait_ms": 1000 * statistics.median(row.wait_s or 0.0 for row in rows) * chunk / steps,
            "first_step_s": first_start(rows) - usage.began,
            "all_started_s": max(first_start(part) for part in by_worker(rows)) - usage.began,
            "requests": asked,
            "cpu_s": usage.cpu_s,
            # Cost of one more request for the parent, including the start of more workers.
            "cpu_ms_each": _slope_ms(table[0], asked, usage.cpu_s) if asked >= 1_000 else None,
            "running_mb": usage.running_mb(rows),
            "worker_mb": usage.worker_mb,
        })  # fmt: skip
    return table


def _slope_ms(first: Figures, asked: float, cpu_s: float) -> float:
    more_s, more = cpu_s - float(first["cpu_s"] or 0), asked - float(first["requests"] or 0)
    return 1000 * more_s / more


def workers_panels(table: list[Figures]) -> list[Panel]:
    one = float(table[0]["episodes_per_s"] or 0.0)
    ideal = [(size, size * one) for size in (float(row["workers"] or 0.0) for row in table)]
    return [
        Panel("episodes per second", "workers",
              [series("measured", table, "workers", "episodes_per_s"),
               Series("one worker's, times n", ideal, ideal=True)], log_y=True),
        Panel("share of time in the simulator", "workers",
              [series("", table, "workers", "busy")]),
        Panel("seconds to the first step", "workers",
              [series("of the first worker", table, "workers", "first_step_s"),
               series("of the last", table, "workers", "all_started_s")]),
    ]  # fmt: skip


def metaworld(folder: Path, *, tiny: bool) -> list[Figures]:
    """Simulators that use one core each: more workers than cores must cost nothing."""
    table: list[Figures] = []
    for n in (1, 2) if tiny else (1, 2, 4, 8):
        usage, rows = evaluate_monitored(
            folder / f"metaworld-{n}", "--policy.type=random", "--policy.n_action_steps=10",
            "--env.type=metaworld", "--env.task=reach-v3",
            f"--env.episode_length={5 if tiny else 200}", f"--eval.n_episodes={2 if tiny else 48}",
            f"--eval.batch_size={n}",
        )  # fmt: skip
        table.append({
            "workers": n,
            "steps_per_s": total(rows, "steps") / span_s(rows),
            "wall_s": usage.wall_s,
            "cpu_ms_per_step": 1000 * usage.all_cpu_s / total(rows, "steps"),
            "worker_mb": usage.worker_mb,
        })  # fmt: skip
    return table


def metaworld_panels(table: list[Figures]) -> list[Panel]:
    return [
        Panel("CPU of all processes, ms per step", "workers",
              [series("", table, "workers", "cpu_ms_per_step")]),
        Panel("memory of a worker, MB", "workers",
              [series("", table, "workers", "worker_mb")]),
    ]  # fmt: skip


# ---- Tasks: Meta-World without images, 1 to 50 ----


def tasks(folder: Path, *, tiny: bool) -> list[Figures]:
    """The same number of episodes over more and more tasks: the cost of opening simulators."""
    episodes, steps = (2, 5) if tiny else (100, 50)
    table: list[Figures] = []
    for n in (1, 2) if tiny else (1, 2, 5, 10, 25, 50):
        ids = [50 * place // n for place in range(n)]
        usage, rows = evaluate_monitored(
            folder / f"tasks-{n}", "--policy.type=random", "--policy.n_action_steps=50",
            "--env.type=metaworld", "--env.task=mt50", f"--env.task_ids={ids}",
            f"--env.episode_length={steps}", f"--eval.n_episodes={episodes // n}",
            "--eval.batch_size=2",
        )  # fmt: skip
        table.append({
            "tasks": n,
            "wall_s": usage.wall_s,
            "open_s": total(rows, "open_s"),
            "open_ms_each": 1000 * total(rows, "open_s") / sum(1 for row in rows if opened(row)),
            "opened": sum(1 for row in rows if opened(row)),
            "step_ms": 1000 * total(rows, "sim_s") / total(rows, "steps"),
            "cpu_s": usage.cpu_s,
            "all_cpu_s": usage.all_cpu_s,
            "running_mb": usage.running_mb(rows),
            "worker_mb": usage.worker_mb,
        })  # fmt: skip
    return table


def opened(row: EpisodeRecord) -> bool:
    """Return whether a simulator was created for this episode, which takes over a millisecond."""
    return (row.open_s or 0.0) > 0.001


def tasks_panels(table: list[Figures]) -> list[Panel]:
    return [
        Panel("CPU seconds of 100 episodes", "tasks",
              [series("all processes", table, "tasks", "all_cpu_s"),
               series("parent", table, "tasks", "cpu_s")]),
        Panel("memory, MB", "tasks",
              [series("largest worker", table, "tasks", "worker_mb"),
               series("parent", table, "tasks", "running_mb")]),
    ]  # fmt: skip


# ---- Images: their size, and how often one is rendered ----


def images(folder: Path, *, size: int, chunk: int, steps: int) -> tuple[float, list[EpisodeRecord]]:
    """Run eight episodes with one image every ``chunk`` steps; return their seconds."""
    _, rows = evaluate_monitored(
        folder, "--policy.type=random", f"--policy.n_action_steps={chunk}",
        "--policy.inputs=observation.image,observation.state", "--env.type=metaworld",
        "--env.task=reach-v3", f"--env.episode_length={steps}",
        f"--env.observation_height={size}", f"--env.observation_width={size}",
        "--eval.n_episodes=8", "--eval.batch_size=2",
    )  # fmt: skip
    return span_s(rows), rows


def pixels(folder: Path, *, tiny: bool) -> list[Figures]:
    """Meta-World images of 64x64 to 480x480, one every 5 steps."""
    table: list[Figures] = []
    for size in (32, 64) if tiny else (64, 128, 240, 320, 480):
        seconds, rows = images(
            folder / f"pixels-{size}", size=size, chunk=5, steps=5 if tiny else 20
        )
        drawn = statistics.median(1000 * (row.render_s or 0) / (row.renders or 1) for row in rows)
        table.append({
            "size": size,
            "span_s": seconds,
            "renders": total(rows, "renders"),
            "render_ms": drawn,
            "wait_ms_per_request": 1000 * total(rows, "wait_s") / total(rows, "renders"),
        })  # fmt: skip
    return table


def pixels_panels(table: list[Figures]) -> list[Panel]:
    return [
        Panel("one image in a run, ms", "height and width, pixels",
              [series("rendering", table, "size", "render_ms"),
               series("waiting for actions", table, "size", "wait_ms_per_request")]),
    ]  # fmt: skip


def chunks(folder: Path, *, tiny: bool) -> list[Figures]:
    """Meta-World images of 240x240, one every 1 to 50 steps."""
    size, steps = (32, 4) if tiny else (240, 50)
    table: list[Figures] = []
    for chunk in (1, 2) if tiny else (1, 2, 5, 10, 25, 50):
        seconds, rows = images(folder / f"chunks-{chunk}", size=size, chunk=chunk, steps=steps)
        table.append({
            "chunk": chunk,
            "span_s": seconds,
            "ms_per_step": 1000 * seconds / total(rows, "steps"),
            "renders_per_step": total(rows, "renders") / total(rows, "steps"),
            "sim_ms_per_step": 1000 * total(rows, "sim_s") / total(rows, "steps"),
            "wait_ms_per_step": 1000 * total(rows, "wait_s") / total(rows, "steps"),
        })  # fmt: skip
    return table


def chunks_panels(table: list[Figures]) -> list[Panel]:
    first = float(table[0]["ms_per_step"] or 0.0)
    ideal = [(size, first / size) for size in (float(row["chunk"] or 0.0) for row in table)]
    return [
        Panel("one step with its images, ms", "actions per image",
              [series("measured", table, "chunk", "ms_per_step"),
               Series("rendering alone", ideal, ideal=True)], log_y=True),
    ]  # fmt: skip
