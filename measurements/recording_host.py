"""Recording Meta-World with many workers against what the host draws when it does nothing else.

    python measurements/recording_host.py [--workers=14] [--size=480] [--shadow_map=N] [--codec=av1]
        [--episodes=8] [--draw_slots=none,3]

The limit: as many processes as there are workers draw the same scenes together, best second before
or after. Recording: frames between the start of the first episode and the last word of `proctor
record`, so with appending, statistics and compaction; up to the end of the last episode, as the
journal has it; and while no worker had run out of episodes yet. With several ``--draw_slots`` it is
recorded under each bound.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

from command import PROCTOR, machine, say, total
from drawing import Scenes, drawn_together

from proctor.runs.journal import EpisodeRow, read_journal

TASKS = "drawer-open-v3,button-press-v3,basketball-v3,push-v3,reach-v3,door-open-v3,window-open-v3"


def record(options: argparse.Namespace, slots: str) -> tuple[list[EpisodeRow], float]:
    """Record once; return the journal's rows, and when the command had ended."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "demos"
        words = [
            "--policy.type=expert",
            "--env.type=metaworld",
            f"--env.task={TASKS}",
            f"--env.observation_height={options.size}",
            f"--env.observation_width={options.size}",
            f"--env.shadow_map={options.shadow_map}",
            f"--dataset.root={root}",
            f"--dataset.codec={options.codec}",
            f"--record.n_episodes={options.episodes}",
            f"--eval.batch_size={options.workers}",
            *([] if slots == "none" else [f"--eval.draw_slots={slots}"]),
        ]
        done = subprocess.run([*PROCTOR, "record", *words], capture_output=True, text=True)  # noqa: S603
        ended = time.time()
        if done.returncode:
            raise SystemExit(done.stderr)
        return read_journal(Path(f"{root}.recording")).rows, ended


def say_rates(rows: list[EpisodeRow], ended: float, limit: float, workers: int) -> None:
    """Print frames per second, and where the workers' time went."""
    frames, first = total(rows, "steps"), min(row.start_time for row in rows)
    ends = sorted(row.end_time for row in rows)
    full = ends[-workers]  # from here on some have nothing left to do
    in_full = sum(
        row.steps * min(1.0, max(0.0, full - row.start_time) / (row.end_time - row.start_time))
        for row in rows
    )
    rates = {
        "while all had episodes": in_full / (full - first),
        "until the last episode": frames / (ends[-1] - first),
        "until the dataset is closed": frames / (ended - first),
    }
    for name, rate in rates.items():
        say(f"  {name}, frames/s", f"{rate:.0f}", f"{rate / limit:.3f} of the limit")
    for kind in ("open_s", "sim_s", "render_s", "wait_s"):
        share = total(rows, kind) / (ends[-1] - first) / workers
        say(f"  {kind}, share of worker time", f"{share:.2f}")


def main() -> None:
    """Measure the limit, then the recordings, then the limit again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--size", type=int, default=480)
    parser.add_argument("--shadow_map", type=int, default=4096)
    parser.add_argument("--codec", default="av1")
    parser.add_argument("--episodes", type=int, default=8, help="of each of seven tasks")
    parser.add_argument("--draw_slots", default="none", help="bounds to try, as none,3")
    options = parser.parse_args()
    print(machine())
    scenes = Scenes(tuple(TASKS.split(",")), options.size, options.shadow_map)
    before = drawn_together(scenes, options.workers).best
    recorded = {slots: record(options, slots) for slots in options.draw_slots.split(",")}
    limit = max(before, drawn_together(scenes, options.workers).best)
    say(f"{options.workers} processes that only draw, frames/s", f"{limit:.0f}")
    for slots, (rows, ended) in recorded.items():
        print(f"recording {options.episodes * len(scenes.tasks)} episodes, draw_slots={slots}")
        say_rates(rows, ended, limit, options.workers)


if __name__ == "__main__":
    main()
