"""Recording Meta-World against the sum of simulating, drawing and encoding alone, in one run.

    python -m measurements.recording [--task=reach-v3] [--episodes=2] [--size=480] [--rounds=3]

The parts: one simulator, playing the expert; every picture drawn; then the pictures encoded, with
nothing else going on. Recording: what `proctor record` does with one worker, from the start of its
first episode until the dataset is complete, statistics, journal, appending and closing included;
compiling the model is in neither. Both are in this process (a scheduler that is fair to sessions
gives a worker more of a busy machine) and take turns; the sums are compared.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measurements.command import machine, say

from proctor.benchmarks.metaworld.benchmark import FPS, Metaworld, MetaworldConfig
from proctor.config.builder import build
from proctor.config.recording import RecordConfig
from proctor.datasets.frames.encoder import VideoEncoder, codec_named
from proctor.evaluation.recording import prepare, run_recording
from proctor.features import ENVIRONMENT_STATE, IMAGE, STATE, Array
from proctor.runs.journal import read_journal

OPTIONS = {"task": "reach-v3", "episodes": "2", "size": "480", "rounds": "3"}
SEED = 1000


def parts(options: dict[str, str], folder: Path) -> tuple[float, float, float, int]:
    """Return the seconds of simulating, of drawing and of encoding, and how many frames it was."""
    size = int(options["size"])
    benchmark = Metaworld(
        MetaworldConfig(task=options["task"], observation_height=size, observation_width=size)
    )
    os.environ.update(benchmark.preflight((IMAGE,)))  # as workers have it
    (task,) = benchmark.tasks()
    sim, expert = benchmark.make_sim(task), benchmark.expert(task)
    sim_s = draw_s = encode_s = 0.0
    frames = 0
    for index in range(int(options["episodes"])):
        pictures: list[Array] = []
        now = time.perf_counter()
        sim.reset(benchmark.spec(task, index, SEED))
        ended = False
        while not ended:
            action = expert(sim.observe((STATE, ENVIRONMENT_STATE)))
            sim_s, now = sim_s + time.perf_counter() - now, time.perf_counter()
            pictures.append(sim.observe((IMAGE,))[IMAGE])
            draw_s, now = draw_s + time.perf_counter() - now, time.perf_counter()
            ended = sim.step(action).terminated
        sim_s += time.perf_counter() - now
        encode_s += encoding(pictures, folder / f"{index}.mp4")
        frames += len(pictures)
    sim.close()
    return sim_s, draw_s, encode_s, frames


def encoding(pictures: list[Array], path: Path) -> float:
    start = time.perf_counter()
    encoder = VideoEncoder(path, codec_named("av1"), FPS, *pictures[0].shape[:2])
    for picture in pictures:
        encoder.add(picture)
    encoder.finish()
    return time.perf_counter() - start


def recording(options: dict[str, str], root: Path) -> tuple[float, int]:
    """Return the seconds of recording the same episodes, and how many frames it was."""
    settings = {
        "policy.type": "expert",
        "env.type": "metaworld",
        "env.task": options["task"],
        "env.observation_height": options["size"],
        "env.observation_width": options["size"],
        "record.n_episodes": options["episodes"],
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
    assert len(rows) == int(options["episodes"])
    return ended - min(row.start_time for row in rows), recorded.tasks[0].frames


def main(words: list[str]) -> None:
    options = OPTIONS | dict(word.removeprefix("--").split("=", 1) for word in words)
    print(machine())
    alone_s = recorded_s = 0.0
    cpu_s = np.zeros(2)  # with the compiling of models, in both
    with tempfile.TemporaryDirectory() as folder:
        for number in range(int(options["rounds"])):
            begun = time.process_time()
            sim_s, draw_s, encode_s, frames = parts(options, Path(folder))
            between = time.process_time()
            seconds, recorded = recording(options, Path(folder, f"d{number}"))
            cpu_s += np.array([between - begun, time.process_time() - between])
            assert recorded == frames
            alone_s, recorded_s = alone_s + sim_s + draw_s + encode_s, recorded_s + seconds
            alone = f"{sim_s:.2f} + {draw_s:.2f} + {encode_s:.2f} s"
            say(f"{frames} frames: simulating + drawing + encoding alone", alone)
            say(f"{frames} frames: recorded", f"{seconds:.2f} s")
    say("recording / the sum, CPU seconds", f"{cpu_s[1] / cpu_s[0]:.3f}")
    say("recording / the sum, seconds", f"{recorded_s / alone_s:.3f}", "<= 1.1")


if __name__ == "__main__":
    main(sys.argv[1:])
