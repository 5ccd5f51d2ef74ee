"""Images of --env.renderer=warp: against GL for every task, and independent of their batch.

Needs `proctor benchmarks install warp`, or the path of a Python with warp-lang, mujoco-warp and
MuJoCo 4 in PROCTOR_WARP_PYTHON. Draws on the CPU, unless PROCTOR_WARP_DEVICE is cuda.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from measurements.warp_drawing import benchmark_of, difference, image_of

from proctor.benchmarks.metaworld.sim import MetaworldSim
from proctor.benchmarks.mujoco.abstract_scene import AbstractScene, model_assets
from proctor.benchmarks.recipes.installation import find_interpreter
from proctor_worker.drawing.scene import Quality

pytest.importorskip("metaworld")
pytestmark = [pytest.mark.slow, pytest.mark.sim, pytest.mark.timeout(3600)]
DEVICE = os.environ.get("PROCTOR_WARP_DEVICE", "cpu")
SIZE = 96
LEAST_DB = 22.0
"""One sample a pixel against GL's four, at a small size: mostly edges and fine textures."""


@pytest.fixture
def asked() -> argparse.Namespace:
    given = os.environ.get("PROCTOR_WARP_PYTHON", "")
    found = Path(given) if given else find_interpreter("warp")
    if found is None or not found.exists():
        pytest.skip("run: proctor benchmarks install warp")
    python = found / "bin" / "python" if found.is_dir() else found
    return argparse.Namespace(tasks="mt50", device=DEVICE, python=str(python))


def test_every_task_looks_as_with_gl(asked: argparse.Namespace) -> None:
    gl, drawn = benchmark_of(asked, SIZE, None), benchmark_of(asked, SIZE, 1)
    found = {
        task.name: difference(image_of(gl, task), image_of(drawn, task)) for task in gl.tasks()
    }
    worst = sorted(found.items(), key=lambda item: item[1][1])[:5]
    assert len(found) == 50
    assert worst[0][1][1] >= LEAST_DB, worst


def test_a_pixel_depends_on_its_own_world_only(asked: argparse.Namespace, tmp_path: Path) -> None:
    asked.tasks = "drawer-open-v3"
    benchmark = benchmark_of(asked, 32, 1)
    (task,) = benchmark.tasks()
    sim = benchmark.make_sim(task)
    assert isinstance(sim, MetaworldSim)
    sim.reset(benchmark.spec(task, 0, 1000))
    assets = model_assets(sim._env.model)
    scene = AbstractScene(sim._env.model, (), "key", Quality(32, 32, 1, True))
    requests = []
    for _ in range(64):
        sim.step(np.array([0.5, 0.5, -0.3, 1.0]))
        requests.append(scene.read(sim._env.data, "corner2", None))
    sim.close()
    (layout,) = {request.layout for request in requests}
    numbers = [np.frombuffer(request.numbers, np.float32) for request in requests]
    fixed = {"geoms": layout.geoms, "lights": layout.lights, "fovy": layout.fovy}
    saved = tmp_path / "requests.npz"
    named = {f"asset {name}": array for name, array in assets.items()}
    np.savez(saved, numbers=np.stack(numbers), **fixed, **named)
    source = Path(sys.modules["proctor"].__file__ or "").parents[1]
    words = [asked.python, str(Path(__file__).parent / "warp_side.py"), str(saved), DEVICE]
    variables = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(words, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "7": 0, "64": 0, "permuted": 0, "other context": 0, "rotated": 0, "without room": 0,
        "different": 64,
    }  # fmt: skip
