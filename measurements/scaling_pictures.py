"""The parts of ``scaling.py`` with pictures: their size, and how often one is needed."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from command import total
from plot import Panel, Series
from scaling_parts import Figures, series, span_s
from watched import evaluate_watched

from proctor.runs.journal import EpisodeRow


def pictures(folder: Path, *, size: int, chunk: int, steps: int) -> tuple[float, list[EpisodeRow]]:
    """Run eight episodes that look at a picture once in ``chunk`` steps; return their seconds."""
    _, rows = evaluate_watched(
        folder, "--policy.type=random", f"--policy.n_action_steps={chunk}",
        "--policy.inputs=observation.image,observation.state", "--env.type=metaworld",
        "--env.task=reach-v3", f"--env.episode_length={steps}",
        f"--env.observation_height={size}", f"--env.observation_width={size}",
        "--eval.n_episodes=8", "--eval.batch_size=2",
    )  # fmt: skip
    return span_s(rows), rows


def pixels(folder: Path) -> list[Figures]:
    """Meta-World pictures of 64x64 to 480x480, one in 5 steps."""
    table: list[Figures] = []
    for size in (64, 128, 240, 320, 480):
        seconds, rows = pictures(folder / f"pixels-{size}", size=size, chunk=5, steps=20)
        drawn = statistics.median(1000 * (row.render_s or 0) / (row.renders or 1) for row in rows)
        bare_ms, flat_ms = _bare_pictures(size)
        table.append({
            "size": size,
            "span_s": seconds,
            "renders": total(rows, "renders"),
            "render_ms": drawn,
            "bare_cpu_ms": bare_ms,
            "no_shadow_cpu_ms": flat_ms,
            "wait_ms_per_request": 1000 * total(rows, "wait_s") / total(rows, "renders"),
        })  # fmt: skip
    return table


def _bare_pictures(size: int) -> tuple[float, float]:
    """Return the CPU time of a picture that is drawn by itself, and of one without shadows."""
    script = Path(__file__).with_name("bare_pictures.py")
    said = subprocess.run(  # noqa: S603  our own words
        [sys.executable, str(script), str(size)], check=True, capture_output=True, text=True
    )
    with_shadows, without = map(float, said.stdout.split())
    return with_shadows, without


def pixels_panels(table: list[Figures]) -> list[Panel]:
    return [
        Panel("one picture in a run, ms", "height and width, pixels",
              [series("rendering", table, "size", "render_ms"),
               series("waiting for actions", table, "size", "wait_ms_per_request")]),
        Panel("one picture alone, CPU ms", "height and width, pixels",
              [series("as it is", table, "size", "bare_cpu_ms"),
               series("without shadows", table, "size", "no_shadow_cpu_ms")]),
    ]  # fmt: skip


def chunks(folder: Path, steps: int = 50) -> list[Figures]:
    """Meta-World pictures of 240x240, one in 1 to 50 steps."""
    table: list[Figures] = []
    for chunk in (1, 2, 5, 10, 25, 50):
        seconds, rows = pictures(folder / f"chunks-{chunk}", size=240, chunk=chunk, steps=steps)
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
        Panel("one step with its pictures, ms", "actions per picture",
              [series("measured", table, "chunk", "ms_per_step"),
               Series("rendering alone", ideal, ideal=True)], log_y=True),
    ]  # fmt: skip
