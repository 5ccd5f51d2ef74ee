"""Worlds of other interpreters against their own packages, run plainly in the same interpreter.

Needs the packages in interpreters of their own: `proctor benchmarks install NAME`, or the path of a
Python in PROCTOR_ROBOSUITE_PYTHON, PROCTOR_OGBENCH_PYTHON, PROCTOR_SO101_NEXUS_PYTHON,
PROCTOR_CALVIN_PYTHON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import digests

import proctor
from proctor.benchmarks.recipes.installation import find_interpreter
from proctor.system.graphics.gl import find_gl_backend

HERE = Path(__file__).parent
ROBOMIMIC = ("Lift", "PickPlaceCan", "NutAssemblySquare", "TwoArmTransport", "ToolHang")
NEXUS = ("Touch-v1", "LookAt-v1", "Move-v1", "PickLift-v1", "PickReturn-v1", "PickAndPlace-v1")
NEXUS += ("PickAndPlace-v2", "StackCube-v1")
OGBENCH = ("cube-single-task1", "cube-double-task4", "scene-task4", "puzzle-3x3-task3")
pytestmark = [pytest.mark.slow, pytest.mark.sim, pytest.mark.timeout(1800)]


def interpreter(name: str) -> str:
    given = os.environ.get(f"PROCTOR_{name.upper()}_PYTHON", "")
    found = Path(given) if given else find_interpreter(name)
    if found is None or not found.is_file():
        pytest.skip(f"run: proctor benchmarks install {name}")
    return str(found)


def compared(name: str, obs_type: str, task: str) -> dict:
    source = Path(sys.modules["proctor"].__file__ or "").parents[1]
    variables = {"PYTHONPATH": str(source), "MUJOCO_GL": find_gl_backend() or "disable"}
    words = [interpreter(name), str(HERE / "worlds_side.py"), name, obs_type, task]
    done = subprocess.run(words, env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])


def assert_equal(name: str, obs_type: str, task: str) -> None:
    found = compared(name, obs_type, task)
    assert found["different"] == []
    assert found["wrong_shapes"] == []
    assert found["steps"] == 100


@pytest.mark.parametrize("task", ROBOMIMIC)
def test_robosuite_is_the_package_itself(task: str) -> None:
    assert_equal("robosuite", "pixels", task)


@pytest.mark.parametrize("task", OGBENCH)
@pytest.mark.parametrize("obs_type", ["state", "pixels"])
def test_ogbench_is_the_package_itself(task: str, obs_type: str) -> None:
    assert_equal("ogbench", obs_type, task)


@pytest.mark.parametrize("task", NEXUS)
@pytest.mark.parametrize("obs_type", ["state", "pixels_agent_pos"])
def test_so101_nexus_is_the_package_itself(task: str, obs_type: str) -> None:
    assert_equal("so101_nexus", obs_type, task)


def test_calvin_repeats_its_episodes_in_used_worlds(tmp_path: Path) -> None:
    seen: list[tuple[int, ...]] = []
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (40, 7)).astype(np.float32)

    def policy(observation: dict[str, np.ndarray]) -> np.ndarray:
        seen.append(observation["observation.images.static"].shape)
        return actions[round(abs(float(observation["observation.state"].sum())) * 1e4) % 40]

    env = {"type": "calvin", "task": "open_drawer,turn_on_led", "renderer": "cpu"}
    env |= {"episode_length": "30", "python": interpreter("calvin")}
    settings = {"n_episodes": 2, "video": {"episodes": 0}}
    used, new = (
        proctor.evaluate(policy, env, batch_size=size, output_dir=tmp_path / str(size), **settings)
        for size in (1, 4)
    )
    assert digests(used) == digests(new)
    assert len(set(digests(used).values())) == 4
    assert set(seen) == {(200, 200, 3)}
