"""Images of --env.renderer=warp against GL: differences, frames/s, MT50 and recording.

    python -m measurements warp_drawing [pictures frames evaluation recording] [--tasks=mt50]
        [--sizes=480,192,128] [--workers=14] [--policy=CHECKPOINT] [--device=cuda] [--python=PATH]

``pictures``: one image of every task with both renderers, 1 and 2x2 samples a pixel; the tasks that
differ most are named. ``frames``: images per second of `proctor eval` with a policy that looks at
every step, by image size. ``evaluation``: seconds of `proctor eval` with ``--policy`` (or a random
one), 20 episodes of each task at 192x192. ``recording``: seconds of `proctor record` with PNG
images, 20 demonstrations of each task at 192x192. GL renders with a shadow map of 1024. The
renderers take turns in one sitting.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from measurements.command import evaluate, make_parser, proctor, run_parts, say, total
from proctor.benchmarks.metaworld.benchmark import Metaworld, MetaworldConfig
from proctor.benchmarks.mujoco.render_config import Renderer, RendererDevice
from proctor.features import IMAGE, Array
from proctor.runs.journal import EpisodeRecord
from proctor.system.platform.environment import temporary_environment
from proctor.types import Task

SEED, STEPS = 1000, 20
_TILES = 8
_NAMED = 5
TINY = {
    "tasks": "reach-v3", "sizes": "32", "workers": 2, "device": "cpu", "episodes": 1, "length": 3,
    "size": 32,
}  # fmt: skip


def difference(one: Array, other: Array) -> tuple[float, float, float]:
    """Return mean absolute difference, PSNR in dB, and the mean difference of the worst tile.

    An image has 8 x 8 tiles.
    """
    away = one.astype(np.float64) - other
    square = float((away**2).mean())
    psnr = float("inf") if square == 0 else 10 * float(np.log10(255**2 / square))
    rows = np.array_split(np.abs(away).mean(axis=2), _TILES, axis=0)
    tiles = [tile.mean() for row in rows for tile in np.array_split(row, _TILES, axis=1)]
    return float(np.abs(away).mean()), psnr, float(max(tiles))


def image_of(benchmark: Metaworld, task: Task) -> Array:
    """Return one image of a task, some steps after its reset."""
    sim = benchmark.make_sim(task)
    with temporary_environment(benchmark.preflight([IMAGE])):
        sim.reset(benchmark.spec(task, 0, SEED))
        for _ in range(STEPS):
            sim.step(np.array([0.3, 0.2, -0.1, 0.5]))
        image = np.array(sim.observe([IMAGE])[IMAGE])
        sim.close()
    return image


def benchmark_of(asked: argparse.Namespace, size: int, samples: int | None) -> Metaworld:
    """Return Meta-World rendered with GL (None), or with warp and these samples a pixel."""
    config = MetaworldConfig(
        task=asked.tasks, observation_height=size, observation_width=size, shadow_map=1024
    )
    if samples is not None:
        config.renderer, config.shadow_map = Renderer.WARP, None
        config.renderer_device, config.renderer_python = RendererDevice(asked.device), asked.python
        config.samples_per_pixel = samples
    return Metaworld(config)


def pictures(asked: argparse.Namespace, folder: Path) -> None:
    """Print how much each task's image differs."""
    gl = benchmark_of(asked, asked.size, None)
    seen = {task.name: image_of(gl, task) for task in gl.tasks()}
    for samples in asked.samples:
        drawn = benchmark_of(asked, asked.size, samples)
        found = {
            task.name: difference(seen[task.name], image_of(drawn, task)) for task in drawn.tasks()
        }
        print(f"{samples} samples a pixel, {asked.size}x{asked.size}: mean, PSNR, worst tile")
        for name, (mean, psnr, tile) in sorted(found.items(), key=lambda item: item[1][1]):
            print(f"  {name:<32} {mean:6.2f} {psnr:6.1f} dB {tile:6.1f}", flush=True)
        psnrs = [psnr for _, psnr, _ in found.values()]
        say(f"PSNR, {samples} samples: least, median", f"{min(psnrs):.1f}, {np.median(psnrs):.1f}")
        worst = sorted(found, key=lambda name: -found[name][2])[:_NAMED]
        say(f"largest tile differences, {samples} samples", ", ".join(worst))


def renderers(asked: argparse.Namespace) -> dict[str, list[str]]:
    """Return flags by renderer, of those that are asked for."""
    warp = ["--env.renderer=warp", f"--env.renderer_device={asked.device}"]
    if asked.python:
        warp.append(f"--env.renderer_python={asked.python}")
    flags = {
        "gl": ["--env.shadow_map=1024"],
        "warp": warp,
        "warp 2x2": [*warp, "--env.samples_per_pixel=4"],
    }
    return {name: flags[name] for name in asked.renderers.split(",")}


def world(asked: argparse.Namespace, size: int) -> list[str]:
    """Return the flags of all renderers."""
    return [
        "--env.type=metaworld",
        f"--env.task={asked.tasks}",
        f"--env.observation_height={size}",
        f"--env.observation_width={size}",
        f"--env.episode_length={asked.length}",
        f"--eval.batch_size={asked.workers}",
    ]


def frames(asked: argparse.Namespace, folder: Path) -> None:
    """Print images per second of an evaluation that looks at every step.

    Each renderer first runs once at the first size: kernels are compiled and kept. The first figure
    counts from the first episode's start to the last one's end; the second while all workers run.
    """
    warm: set[str] = set()
    for size in map(int, asked.sizes.split(",")):
        looking = ["--policy.type=random", f"--policy.inputs={IMAGE}"]
        count = [f"--eval.n_episodes={asked.episodes}"]
        rates: dict[str, float] = {}
        running: dict[str, float] = {}
        for name, flags in renderers(asked).items():
            run = folder / f"frames-{size}-{name.replace(' ', '-')}"
            if name not in warm:
                warm.add(name)
                few = "--eval.n_episodes=1"
                evaluate(run / "warm", *world(asked, size), *looking, few, *flags)
            _, rows = evaluate(run / "run", *world(asked, size), *looking, *count, *flags)
            seconds = max(row.end_time for row in rows) - min(row.start_time for row in rows)
            rates[name] = total(rows, "renders") / seconds
            running[name] = rate_of_all_workers(rows)
            for what, found in (("", rates), (", all workers running", running)):
                ratio = f"{found[name] / found['gl']:.2f}x gl" if "gl" in found else ""
                say(f"images/s at {size}x{size}, {name}{what}", f"{found[name]:,.0f}", ratio)


def rate_of_all_workers(rows: Sequence[EpisodeRecord]) -> float:
    """Return images per second from the last worker's first episode to the first one's last end.

    An episode requests its images evenly. NaN if there is no such time.
    """
    by_worker: dict[int, list[EpisodeRecord]] = defaultdict(list)
    for row in rows:
        by_worker[row.worker].append(row)
    begin = max(min(row.start_time for row in own) for own in by_worker.values())
    end = min(max(row.end_time for row in own) for own in by_worker.values())
    if end <= begin:
        return float("nan")
    images = 0.0
    for row in rows:
        inside = min(row.end_time, end) - max(row.start_time, begin)
        images += (row.renders or 0) * max(0.0, inside) / (row.end_time - row.start_time)
    return images / (end - begin)


def evaluation(asked: argparse.Namespace, folder: Path) -> None:
    """Print the seconds of an evaluation of all tasks."""
    random = ["--policy.type=random", f"--policy.inputs={IMAGE}"]
    played = [f"--policy.path={asked.policy}"] if asked.policy else random
    if asked.every:
        played.append(f"--policy.n_action_steps={asked.every}")
    for name, flags in renderers(asked).items():
        run = folder / f"evaluation-{name.replace(' ', '-')}"
        count = f"--eval.n_episodes={asked.episodes}"
        seconds, rows = evaluate(run, *world(asked, asked.size), *played, count, *flags)
        solved = sum(bool(row.success_once) for row in rows)
        say(f"evaluation, {name}: {len(rows)} episodes", f"{seconds:.1f} s", f"{solved} solved")


def recording(asked: argparse.Namespace, folder: Path) -> None:
    """Print the seconds of recording the experts."""
    for name, flags in renderers(asked).items():
        run = folder / f"recording-{name.replace(' ', '-')}"
        start = time.perf_counter()
        proctor(
            "record",
            "--policy.type=expert",
            *[word for word in world(asked, asked.size) if "episode_length" not in word],
            f"--dataset.root={run}",
            f"--record.n_episodes={asked.episodes}",
            "--dataset.video=false",
            *flags,
        )
        seconds = time.perf_counter() - start
        info = json.loads((run / "meta" / "info.json").read_text())
        recorded = f"{info['total_episodes']} demonstrations, {info['total_frames']:,} frames"
        say(f"recording, {name}: {recorded}", f"{seconds:.1f} s")


PARTS = {
    "pictures": pictures,
    "frames": frames,
    "evaluation": evaluation,
    "recording": recording,
}


def main(words: Sequence[str]) -> None:
    parser = make_parser("warp_drawing", __doc__, tuple(PARTS))
    parser.add_argument("--tasks", default="mt50", help="what --env.task takes")
    parser.add_argument("--sizes", default="480,192,128", help="image sides of frames, pixels")
    parser.add_argument("--size", type=int, default=192, help="image side of the other parts")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--episodes", type=int, default=20, help="episodes per task")
    parser.add_argument("--length", type=int, default=500, help="most steps of an episode")
    parser.add_argument("--renderers", default="gl,warp,warp 2x2", help="renderers to compare")
    parser.add_argument("--policy", default="", help="checkpoint of the part evaluation")
    parser.add_argument(
        "--every", type=int, help="actions per inference call of evaluation (default: the policy's)"
    )
    parser.add_argument("--device", default="cuda", help="of warp: cuda or cpu")
    parser.add_argument("--python", help="interpreter of warp")
    parser.add_argument("--samples", type=int, nargs="*", default=[1, 4], help="of pictures")
    asked = parser.parse_args(words)
    if asked.tiny:
        parser.set_defaults(**TINY)
        asked = parser.parse_args(words)
    parts = {name: partial(part, asked) for name, part in PARTS.items()}
    run_parts(asked.parts, parts)
