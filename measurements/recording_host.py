"""Recording Meta-World with many workers against what the host draws when it does nothing else.

    python measurements/recording_host.py [--workers=14] [--size=480] [--shadow_map=N] [--codec=av1]

The limit: as many processes as there are workers draw one after the other, best second. Recording:
frames between the start of the first episode and the last word of `proctor record`, so with
appending, statistics and compaction; and up to the end of the last episode, as the journal has it.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

from command import PROCTOR, machine, say, total
from shadow_maps import Drawing, drawn_by_all

from proctor.runs.journal import read_journal

TASKS = "drawer-open-v3,button-press-v3,basketball-v3,push-v3,reach-v3,door-open-v3,window-open-v3"


def main() -> None:
    """Measure the limit, then the recording, then the limit again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--size", type=int, default=480)
    parser.add_argument("--shadow_map", type=int, default=4096)
    parser.add_argument("--codec", default="av1")
    parser.add_argument("--episodes", type=int, default=8, help="of each of seven tasks")
    options = parser.parse_args()
    print(machine())
    drawing = Drawing(options.size, options.shadow_map, 4.0)
    before = drawn_by_all(drawing, options.workers)
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
        ]
        done = subprocess.run([*PROCTOR, "record", *words], capture_output=True, text=True)  # noqa: S603
        ended = time.time()
        if done.returncode:
            raise SystemExit(done.stderr)
        rows = read_journal(Path(f"{root}.recording")).rows
    frames, first = total(rows, "steps"), min(row.start_time for row in rows)
    limit = max(before, drawn_by_all(drawing, options.workers))
    rates = {
        "until the last episode": frames / (max(row.end_time for row in rows) - first),
        "until the dataset is closed": frames / (ended - first),
    }
    say(f"{options.workers} processes that only draw, frames/s", f"{limit:.0f}")
    for name, rate in rates.items():
        say(f"recording {name}, frames/s", f"{rate:.0f}", f"{rate / limit:.3f} of the limit")


if __name__ == "__main__":
    main()
