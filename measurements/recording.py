"""Recording Meta-World compared with its parts alone, and with the render limit of the host.

    python -m measurements recording [sum host] [--task=reach-v3] [--episodes=2] [--size=480]
        [--rounds=3] [--workers=14] [--shadow_map=4096] [--codec=av1]

``sum``: one simulator runs the expert, renders every image and encodes the images, each timed
alone; then `proctor record` with one worker records the same episodes, statistics, journal and
closing included. Both run in this process by turns. ``host``: `proctor record` with many workers
compared with as many processes that only render the same scenes.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from measurements.command import make_parser, proctor, run_parts, say, total
from measurements.rendering import Scenes, render_in_parallel
from proctor.benchmarks.metaworld.benchmark import FPS, Metaworld, MetaworldConfig
from proctor.config.builder import build
from proctor.config.recording import RecordConfig
from proctor.datasets.frames.encoder import VideoEncoder, codec_named
from proctor.evaluation.recording import prepare, run_recording
from proctor.features import ENVIRONMENT_STATE, IMAGE, STATE, Array
from proctor.runs.journal import EpisodeRecord, read_journal
from proctor.system.platform.platform_info import usable_cores

SEED = 1000
SCENES = "drawer-open-v3,button-press-v3,basketball-v3,push-v3,reach-v3,door-open-v3,window-open-v3"


def steps_alone(asked: argparse.Namespace, folder: Path) -> tuple[float, float, float, int]:
    """Return the seconds of simulating, rendering and encoding alone, and the frames."""
    benchmark = Metaworld(
        MetaworldConfig(
            task=asked.task, observation_height=asked.size, observation_width=asked.size
        )
    )
    os.environ.update(benchmark.preflight((IMAGE,)))  # as in a worker
    (task,) = benchmark.tasks()
    sim, expert = benchmark.make_sim(task), benchmark.expert(task)
    sim_s = render_s = encode_s = 0.0
    frames = 0
    for index in range(asked.episodes):
        images: list[Array] = []
        now = time.perf_counter()
        sim.reset(benchmark.spec(task, index, SEED))
        ended = False
        while not ended:
            action = expert(sim.observe((STATE, ENVIRONMENT_STATE)))
            sim_s, now = sim_s + time.perf_counter() - now, time.perf_counter()
            images.append(sim.observe((IMAGE,))[IMAGE])
            render_s, now = render_s + time.perf_counter() - now, time.perf_counter()
            ended = sim.step(action).terminated
        sim_s += time.perf_counter() - now
        encode_s += encode(images, folder / f"{index}.mp4")
        frames += len(images)
    sim.close()
    return sim_s, render_s, encode_s, frames


def encode(images: list[Array], path: Path) -> float:
    start = time.perf_counter()
    encoder = VideoEncoder(path, codec_named("av1"), FPS, *images[0].shape[:2])
    for image in images:
        encoder.add(image)
    encoder.finish()
    return time.perf_counter() - start


def record_alone(asked: argparse.Namespace, root: Path) -> tuple[float, int]:
    """Return the seconds of recording the same episodes in this process, and the frames."""
    settings = {
        "policy.type": "expert",
        "env.type": "metaworld",
        "env.task": asked.task,
        "env.observation_height": asked.size,
        "env.observation_width": asked.size,
        "record.n_episodes": asked.episodes,
        "eval.batch_size": 1,
        "eval.use_async_envs": False,
        "seed": SEED,
        "dataset.root": str(root),
    }
    prepared, shown = prepare(build(RecordConfig, settings))
    recorded = run_recording(prepared, shown, settings)
    ended = time.time()
    rows = read_journal(prepared.folder.path).rows
    assert recorded.complete
    assert len(rows) == asked.episodes
    return ended - min(row.start_time for row in rows), recorded.tasks[0].frames


def against_sum(folder: Path, asked: argparse.Namespace) -> None:
    """Record in one process; compare with the sum of simulating, rendering and encoding."""
    alone_s = recorded_s = 0.0
    cpu_s = np.zeros(2)  # compiling the model is in both
    for number in range(asked.rounds):
        begun = time.process_time()
        sim_s, render_s, encode_s, frames = steps_alone(asked, folder)
        between = time.process_time()
        seconds, recorded = record_alone(asked, folder / f"d{number}")
        cpu_s += np.array([between - begun, time.process_time() - between])
        assert recorded == frames
        alone_s, recorded_s = alone_s + sim_s + render_s + encode_s, recorded_s + seconds
        alone = f"{sim_s:.2f} + {render_s:.2f} + {encode_s:.2f} s"
        say(f"{frames} frames: simulating + rendering + encoding alone", alone)
        say(f"{frames} frames: recorded", f"{seconds:.2f} s")
    say("recording / the sum, CPU seconds", f"{cpu_s[1] / cpu_s[0]:.3f}")
    say("recording / the sum, seconds", f"{recorded_s / alone_s:.3f}", "<= 1.1")


def against_host(folder: Path, asked: argparse.Namespace) -> None:
    """Record with many workers; compare with the render limit measured before and after."""
    tasks = asked.task if asked.tiny else SCENES
    scenes = Scenes(tuple(tasks.split(",")), asked.size, asked.shadow_map, 0.2 if asked.tiny else 4)
    before = render_in_parallel(scenes, asked.workers).best
    root = folder / "demos"
    proctor(
        "record", "--policy.type=expert", "--env.type=metaworld", f"--env.task={tasks}",
        f"--env.observation_height={asked.size}", f"--env.observation_width={asked.size}",
        f"--env.shadow_map={asked.shadow_map}", f"--dataset.root={root}",
        f"--dataset.codec={asked.codec}", f"--record.n_episodes={asked.episodes}",
        f"--eval.batch_size={asked.workers}",
    )  # fmt: skip
    ended = time.time()
    limit = max(before, render_in_parallel(scenes, asked.workers).best)
    say(f"{asked.workers} processes that only render, frames/s", f"{limit:.0f}")
    print_rates(read_journal(Path(f"{root}.recording")).rows, ended, limit, asked.workers)


def print_rates(rows: Sequence[EpisodeRecord], ended: float, limit: float, workers: int) -> None:
    """Print frames per second, and where the workers' time went."""
    frames, first = total(rows, "steps"), min(row.start_time for row in rows)
    last = max(row.end_time for row in rows)
    for name, end in (("last episode", last), ("dataset is closed", ended)):
        rate = frames / (end - first)
        of_limit = f"{rate / max(limit, 1e-9):.3f} of the limit"
        say(f"  until the {name}, frames/s", f"{rate:.0f}", of_limit)
    for kind in ("open_s", "sim_s", "render_s", "wait_s"):
        share = total(rows, kind) / (last - first) / workers
        say(f"  {kind}, share of worker time", f"{share:.2f}")


PARTS = {"sum": against_sum, "host": against_host}


def main(words: Sequence[str]) -> None:
    """Run the named parts, or both."""
    parser = make_parser("recording", __doc__, list(PARTS))
    parser.add_argument("--task", default="reach-v3", help="of the part sum")
    parser.add_argument("--episodes", type=int, default=2, help="of each task")
    parser.add_argument("--size", type=int, default=480)
    parser.add_argument("--rounds", type=int, default=3, help="of the part sum")
    parser.add_argument("--workers", type=int, default=max(1, usable_cores() - 2))
    parser.add_argument("--shadow_map", type=int, default=4096, help="of the part host")
    parser.add_argument("--codec", default="av1", help="of the part host")
    asked = parser.parse_args(words)
    if asked.tiny:
        asked.size, asked.episodes, asked.rounds, asked.shadow_map = 64, 1, 1, 64
    run_parts(asked.parts, {name: partial(part, asked=asked) for name, part in PARTS.items()})
