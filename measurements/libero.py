"""LIBERO's cost: episodes, opening, resetting, stepping and memory, as ratios in one run.

    python -m measurements libero [episodes open step memory starts]

The baseline of `episodes` is the in-tree lockstep loop; of `open` and `step` it is LIBERO's own
environment, used as LeRobot uses it (a hard reset and a render of every camera at every step).
`starts` measures how far recorded starts are from evaluated ones, on a task of each suite.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from measurements.command import evaluate, make_parser, run_parts, say, total
from measurements.monitored_command import evaluate_monitored

SIZE = 256
CAMERAS = "observation.images.image,observation.images.image2,observation.state"
N_STARTS, EVALUATED_SEED = 50, 1000
STARTED = (
    *(("libero", f"libero_{suite}") for suite in ("spatial", "object", "goal", "10", "90")),
    *(("libero_pro", f"libero_{suite}_swap") for suite in ("spatial", "object", "goal", "10")),
    ("libero_plus", "libero_spatial"),
)
"""Benchmark and suite of each task whose starts are compared."""


def episodes(folder: Path, *, tiny: bool) -> None:
    """Continuous batching with chunks against the in-tree lockstep loop, same episodes."""
    walls = {}
    ids, steps, n = ("[0]", 4, 1) if tiny else ("[0,1,2,3]", 60, 4)
    size = 32 if tiny else SIZE
    for scheduler in ("lockstep", "continuous"):
        walls[scheduler], rows = evaluate(
            folder / scheduler, "--policy.type=random", f"--policy.inputs={CAMERAS}",
            "--policy.n_action_steps=10", "--env.type=libero", "--env.task=libero_spatial",
            f"--env.task_ids={ids}", f"--env.observation_height={size}",
            f"--env.observation_width={size}", f"--env.episode_length={steps}",
            f"--eval.n_episodes={n}", "--eval.batch_size=2", f"--eval.scheduler={scheduler}",
        )  # fmt: skip
        say(
            f"tasks {ids} x {n} episodes, 2 cameras {size}x{size}, {scheduler}: wall",
            f"{walls[scheduler]:.1f} s",
            f"{total(rows, 'renders'):.0f} renders, {total(rows, 'steps'):.0f} steps",
        )
    say("  lockstep / continuous", f"{walls['lockstep'] / walls['continuous']:.2f}x", ">= 4")


def opening(folder: Path, *, tiny: bool) -> None:
    """Opening and resetting with two cameras: LIBERO's environment, then our simulator."""
    os.environ["MUJOCO_GL"] = _backend()
    size = 32 if tiny else SIZE
    benchmark, task = _benchmark(size)
    if not tiny:
        _timed_libero(task, size)  # fills MuJoCo's cache of meshes and textures, for both
    opened_s, reset_s = _timed_libero(task, size)
    say("LIBERO's own: open", f"{opened_s:.2f} s")
    say("LIBERO's own: reset, init state, settle, observe", f"{reset_s:.2f} s")
    start = time.perf_counter()
    sim = benchmark.make_sim(task)
    ours_s = time.perf_counter() - start
    keys = CAMERAS.split(",")
    sim.reset(benchmark.spec(task, 0, 1000))
    sim.observe(keys)  # opens the renderer, once
    start = time.perf_counter()
    resets = 1 if tiny else 3
    for index in range(1, resets + 1):
        sim.reset(benchmark.spec(task, index, 1000))
        sim.observe(keys)
    ours_reset_s = (time.perf_counter() - start) / resets
    say("ours: open", f"{ours_s:.2f} s", f"{opened_s / ours_s:.1f}x")
    say("ours: reset, settle, observe", f"{ours_reset_s:.2f} s", f"{reset_s / ours_reset_s:.1f}x")
    sim.close()


def stepping(folder: Path, *, tiny: bool) -> None:
    """Control steps without rendering: ours, LIBERO's, and 25 pure mj_step."""
    import mujoco

    from proctor.benchmarks.libero.sim import LiberoSim

    os.environ["MUJOCO_GL"] = "disable"
    benchmark, task = _benchmark()
    actions = np.random.default_rng(0).uniform(-1, 1, (2 if tiny else 100, 7)).astype(np.float32)
    sim = benchmark.make_sim(task)
    assert isinstance(sim, LiberoSim)
    sim.reset(benchmark.spec(task, 0, 1000))
    ours_ms = _mean_ms(sim.step, actions)
    model, data = sim._env.sim.model._model, sim._env.sim.data._data
    bound_ms = _mean_ms(lambda _: [mujoco.mj_step(model, data) for _ in range(25)], actions)
    sim.close()
    env = _libero_env(task, has_offscreen_renderer=False, use_camera_obs=False)
    env.seed(1000)
    env.env.reset()
    theirs_ms = _mean_ms(env.step, actions)
    env.close()
    say("a control step: LIBERO's own", f"{theirs_ms:.1f} ms")
    say("a control step: ours, the same bits", f"{ours_ms:.1f} ms", f"{theirs_ms / ours_ms:.2f}x")
    say("25 x mj_step, nothing else", f"{bound_ms:.1f} ms", f"{bound_ms / ours_ms:.2f} of ours")


def memory(folder: Path, *, tiny: bool) -> None:
    """Proportional set size of workers, without and with rendering."""
    os.environ.pop("MUJOCO_GL", None)  # the other parts set it for this process
    ids, steps, size = ("[0]", 2, 32) if tiny else ("[0,1]", 20, SIZE)
    shared = [
        "--policy.type=random", "--env.type=libero", "--env.task=libero_spatial,libero_object",
        f"--env.task_ids={ids}", f"--env.episode_length={steps}",
        f"--eval.n_episodes={1 if tiny else 2}", "--eval.batch_size=2",
    ]  # fmt: skip
    pixels = [
        f"--policy.inputs={CAMERAS}", "--policy.n_action_steps=10",
        f"--env.observation_height={size}", f"--env.observation_width={size}",
    ]  # fmt: skip
    for name, flags in (("without rendering", shared), ("with two cameras", shared + pixels)):
        usage, _ = evaluate_monitored(folder / name.replace(" ", "-"), *flags)
        say(f"worker {name}: peak PSS", f"{usage.worker_mb or 0:.0f} MB")


def starts(folder: Path, *, tiny: bool) -> None:
    """Distance of the starts of `record` (default seeds) to those of `eval`, after settling.

    That of two starts is the largest difference of a coordinate of any object or of the hand.
    """
    from proctor.benchmarks.training_starts import unpublished
    from proctor.config.base import RECORDED_SEED
    from proctor.plugins import benchmark_maker, find_benchmark

    n = 2 if tiny else N_STARTS
    for kind, suite in [("libero", "libero_spatial")] if tiny else STARTED:
        config: Any = find_benchmark(kind).config(task=suite)
        if kind == "libero_plus":
            config.perturbation = "camera"  # its layouts need another package
        else:
            config.task_ids = [0]
        benchmark = benchmark_maker(config)()
        task = benchmark.tasks()[0]
        os.environ.update(benchmark.preflight(()))
        sim = benchmark.make_sim(task)

        def placed(spec: Any, sim: Any = sim) -> Any:
            sim.reset(spec)
            return np.array(list(sim.coordinates().values()))

        evaluated = np.array([placed(benchmark.spec(task, i, EVALUATED_SEED)) for i in range(n)])
        planned = [benchmark.spec(task, i, RECORDED_SEED) for i in range(n)]
        recorded = np.array([placed(unpublished(benchmark, spec)) for spec in planned])
        sim.close()
        apart = np.abs(recorded[:, None] - evaluated).max(axis=2)
        own = np.abs(evaluated[:, None] - evaluated).max(axis=2)[np.triu_indices(n, 1)]
        name = f"{kind} {task.suite} {task.task_id}, {n} recorded and {n} evaluated starts"
        say(f"{name}: nearest", f"{1000 * apart.min():.2f} mm", "> 1 mm")
        say("  nearest two evaluated starts", f"{1000 * own.min():.2f} mm")


def _backend() -> str:
    from proctor.system.graphics.gl import find_gl_backend

    backend = find_gl_backend()
    assert backend is not None
    return backend


def _benchmark(size: int = SIZE) -> tuple[Any, Any]:
    from proctor.benchmarks.libero.benchmark import Libero, LiberoConfig

    benchmark = Libero(
        LiberoConfig(
            task="libero_spatial", task_ids=[0], observation_height=size, observation_width=size
        )
    )
    return benchmark, benchmark.tasks()[0]


def _libero_env(task: Any, **flags: Any) -> Any:
    from proctor.benchmarks.libero.assets import find_assets
    from proctor.benchmarks.libero.tasks import bddl_file
    from proctor.benchmarks.libero.world import import_libero

    import_libero()
    import libero.libero
    from libero.libero.envs.env_wrapper import ControlEnv
    from robosuite.renderers.context.egl_context import EGLGLContext
    from robosuite.utils import binding_utils

    binding_utils.GLContext = EGLGLContext
    libero.libero._assets_path_cache = str(find_assets(None))
    return ControlEnv(bddl_file_name=str(bddl_file(task.suite, task.name)), **flags)


def _timed_libero(task: Any, size: int) -> tuple[float, float]:
    from proctor.benchmarks.libero.tasks import read_init_states

    start = time.perf_counter()
    env = _libero_env(task, camera_heights=size, camera_widths=size)
    opened_s = time.perf_counter() - start
    states = read_init_states(task.suite, task.name)
    start = time.perf_counter()
    env.seed(1000)
    env.env.reset()
    env.set_init_state(states[0])
    for _ in range(10):
        env.step([0, 0, 0, 0, 0, 0, -1])
    reset_s = time.perf_counter() - start
    env.close()
    return opened_s, reset_s


def _mean_ms(step: Callable[[Any], Any], actions: Any) -> float:
    start = time.perf_counter()
    for action in actions:
        step(action)
    return 1000 * (time.perf_counter() - start) / len(actions)


PARTS = {
    "episodes": episodes,
    "open": opening,
    "step": stepping,
    "memory": memory,
    "starts": starts,
}


def main(words: Sequence[str]) -> None:
    """Run the named parts, or all."""
    given = make_parser("libero", __doc__, list(PARTS)).parse_args(words)
    run_parts(given.parts, {name: partial(part, tiny=given.tiny) for name, part in PARTS.items()})
