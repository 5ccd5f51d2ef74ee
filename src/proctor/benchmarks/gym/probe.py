"""What an environment is like, found out in a process of its own.

Spaces are known only once an environment is made, and a picture's size once it is rendered; the
parent does neither, since simulators and GL live in other processes.
"""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from proctor.benchmarks.gym.memory import Memory, memory_of
from proctor.benchmarks.gym.success import CHOICES, Source, SuccessRule
from proctor.errors import UsageError
from proctor.features import FILM, ActionSpec, Feature, FeatureKind
from proctor.machine.generators import WHILE_OPENING, seed_generators

_LIMIT_S = 300
_DEFAULT_FPS = 30
_USAGE_ERROR = "proctor.errors.UsageError: "


@dataclass(frozen=True)
class OpenedTask:
    """One live environment and what it calls itself."""

    suite: str
    task_id: int
    env: Any
    horizon: int | None
    """How many steps the environment was made for, where it says."""
    instruction: str | None = None


class Opener(Protocol):
    """How environments are made; picklable, so that any process can do it."""

    @property
    def what(self) -> str:
        """What is opened, in the user's words."""

    def tasks(self) -> list[OpenedTask]:
        """Open the environments of all tasks."""

    def task(self, suite: str, task_id: int) -> Any:
        """Open the environment of one task."""


@dataclass(frozen=True)
class TaskFacts:
    """What an environment says of its task; None where it says nothing."""

    suite: str
    task_id: int
    instruction: str | None
    horizon: int | None
    fps: int


@dataclass(frozen=True)
class EnvFacts:
    """What a benchmark has to know of its environments before one is opened to play."""

    tasks: tuple[TaskFacts, ...]
    features: dict[str, Feature]
    action: ActionSpec
    distributions: tuple[str, ...]
    memory: Memory = Memory.NONE
    """The worst of what its environments keep of earlier episodes."""


@dataclass(frozen=True)
class Question:
    """What is asked of the other process."""

    opener: Opener
    rule: SuccessRule
    episode_length: int | None


def learn(question: Question) -> EnvFacts:
    """Open the environments in another process, look at them, play until success is judged.

    Raises:
        UsageError: they cannot be opened or played, or info lacks the key that tells success.
    """
    what = question.opener.what
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder, "question"), Path(folder, "answer")
        asked.write_bytes(pickle.dumps(question))
        command = [sys.executable, "-m", __name__, str(asked), str(answer)]
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        try:
            done = subprocess.run(  # noqa: S603  our own words
                command,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                env={**os.environ, "PYTHONPATH": paths},
            )
        except subprocess.TimeoutExpired:
            raise UsageError(f"{what} did not open and play within {_LIMIT_S} s") from None
        if done.returncode == 0:
            facts: EnvFacts = pickle.loads(answer.read_bytes())  # noqa: S301  our own, just written
            return facts
    lines = done.stderr.strip().splitlines() or [f"its process ended with code {done.returncode}"]
    if lines[-1].startswith(_USAGE_ERROR):
        raise UsageError(lines[-1].removeprefix(_USAGE_ERROR))
    raise UsageError(f"{what} cannot be opened: {lines[-1]}")


def look_at(question: Question) -> EnvFacts:
    """Find out everything, in this process.

    Raises:
        UsageError: the environments cannot be played, or info lacks the key that tells success.
    """
    from proctor.benchmarks.gym.spaces import action_spec, entries_of

    seed_generators(WHILE_OPENING)
    opened = question.opener.tasks()
    env = opened[0].env
    action = action_spec(env.action_space)
    features = {entry.key: entry.feature for entry in entries_of(env.observation_space)}
    for other in opened[1:]:
        spaces = (other.env.observation_space, other.env.action_space)
        if spaces != (env.observation_space, env.action_space):
            raise UsageError(
                f"{question.opener.what}: task {other.task_id} of {other.suite} has other spaces "
                f"than task {opened[0].task_id} of {opened[0].suite}; choose with --env.task"
            )
    tasks = tuple(_facts_of(task) for task in opened)
    memory, opened = _memory(question, opened)
    env = opened[0].env
    env.reset(seed=0)
    picture = _picture(env)
    if picture is not None:
        features[FILM] = picture
    _play_until_judged(question, env, question.episode_length or tasks[0].horizon or 1)
    facts = EnvFacts(tasks, features, action, _distributions(env), memory)
    for task in opened:
        task.env.close()
    return facts


def _memory(question: Question, opened: list[OpenedTask]) -> tuple[Memory, list[OpenedTask]]:
    """Find out what the first environment of every suite keeps, while they are fresh.

    Returns the environments that are open then: one that keeps something was closed for another.
    """
    found, left, suites = Memory.NONE, list(opened), set[str]()
    for place, task in enumerate(opened):
        if task.suite in suites:
            continue
        suites.add(task.suite)

        def open_another(task: OpenedTask = task) -> Any:
            return question.opener.task(task.suite, task.task_id)

        horizon = question.episode_length or task.horizon
        memory = memory_of(task.env, open_another, horizon)
        if memory is not Memory.NONE:
            left[place] = replace(task, env=open_another())
            found = memory if found is not Memory.UNSTEADY else found
    return found, left


def _facts_of(task: OpenedTask) -> TaskFacts:
    fps = task.env.metadata.get("render_fps") or _DEFAULT_FPS
    return TaskFacts(
        task.suite, task.task_id, task.instruction, task.horizon, fps=max(1, round(fps))
    )


def _picture(env: Any) -> Feature | None:
    """Return the picture for people, if the environment makes one in this way of rendering."""
    from gymnasium.error import DependencyNotInstalled

    from proctor.benchmarks.gym.sim import render

    if env.render_mode != "rgb_array":
        return None
    try:
        frame = render(env)
    except DependencyNotInstalled:
        return None  # it can be played all the same
    if frame.ndim != 3 or frame.shape[2] != 3:
        return None
    return Feature(FeatureKind.FILM, frame.shape, "uint8")


def _play_until_judged(question: Question, env: Any, horizon: int) -> None:
    """Play random actions until info says whether the task is solved, for an episode at most."""
    rule = question.rule
    if rule.source is not Source.INFO:
        return
    env.action_space.seed(0)
    keys: Iterable[str] = ()
    steps, ended = 0, False
    while not ended and steps < horizon:
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        keys, ended = info, bool(terminated or truncated)
        steps += 1
        if rule.judge(float(reward), bool(terminated), info) is not None:
            return
    held = f"its keys: {', '.join(sorted(keys))}" if keys else "it is empty"
    raise UsageError(
        f"--env.success=info.{'.'.join(rule.path)}: in an episode of {steps} steps, info of "
        f"{question.opener.what} never held that key ({held}); choose {CHOICES}"
    )


def _distributions(env: Any) -> tuple[str, ...]:
    """Return the installed packages whose versions define the episodes."""
    package = type(env.unwrapped).__module__.partition(".")[0]
    found = importlib.metadata.packages_distributions().get(package, [])
    return tuple(dict.fromkeys([*sorted(found), "gymnasium", "numpy"]))


def _main(asked: str, answer: str) -> None:
    from proctor.benchmarks.gym.probe import look_at  # by its own name, not __main__'s

    question = pickle.loads(Path(asked).read_bytes())  # noqa: S301  our own, just written
    Path(answer).write_bytes(pickle.dumps(look_at(question)))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
