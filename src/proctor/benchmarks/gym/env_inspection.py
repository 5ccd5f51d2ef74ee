"""Looks at environments: what they show, take and say. Run as a process by ``probe``."""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from proctor.benchmarks.gym.carryover import Carryover, detect_carryover
from proctor.benchmarks.gym.probe import EnvFacts, OpenedTask, ProbeRefusal, ProbeRequest, TaskFacts
from proctor.benchmarks.gym.success import CHOICES, SuccessInputs, SuccessSource
from proctor.errors import UsageError
from proctor.features import FILM, Feature, FeatureKind
from proctor.system.gl import choose_backend_on_import
from proctor.system.global_rng import SEED_BEFORE_RESET, seed_global_rng
from proctor.system.user_code import error_location, exception_line

_DEFAULT_FPS = 30
_MOST_STEPS, _MOST_S = 5_000, 20.0
"""How long an environment is played that may end itself, to find out when."""
_HORIZON_NAMES = ("_max_episode_steps", "max_episode_steps", "max_steps")
_ENGINES = ("mujoco", "dm_control", "Box2D", "pymunk", "pybullet")
"""Modules whose versions change what an environment does, whichever package it is from."""
_SEEDS = range(4)


def inspect_env(request: ProbeRequest) -> EnvFacts:
    """Find out everything, in this process.

    Raises:
        UsageError: the environments cannot be played, have no horizon, or info lacks the key that
            tells success.
    """
    from proctor.benchmarks.gym.spaces import action_spec, observation_entries

    seed_global_rng(SEED_BEFORE_RESET)
    with choose_backend_on_import():
        opened = request.opener.tasks()
    env = opened[0].env
    action = action_spec(env.action_space)
    features = {entry.key: entry.feature for entry in observation_entries(env.observation_space)}
    _check_same_spaces(request, opened)
    memory, opened = _memory(request, opened)
    tasks, notes = _all_facts(request, opened)
    env = opened[0].env
    env.reset(seed=0)
    picture, why_none = _picture(env)
    if picture is not None:
        features[FILM] = picture
    _play_until_judged(request, env, request.episode_length or tasks[0].horizon or 1)
    facts = EnvFacts(
        tasks,
        features,
        action,
        _distributions(env),
        memory,
        _variables(),
        (*notes, *why_none),
    )
    for task in opened:
        task.env.close()
    return facts


def _check_same_spaces(request: ProbeRequest, opened: list[OpenedTask]) -> None:
    first = opened[0]
    for other in opened[1:]:
        spaces = (other.env.observation_space, other.env.action_space)
        if spaces != (first.env.observation_space, first.env.action_space):
            raise UsageError(
                f"{request.opener.description}: task {other.task_id} of {other.suite} has other "
                f"spaces than task {first.task_id} of {first.suite}; choose with --env.task"
            )


def _memory(request: ProbeRequest, opened: list[OpenedTask]) -> tuple[Carryover, list[OpenedTask]]:
    """Find out what the first environment of every suite keeps, while they are fresh.

    Returns the environments that are open then: one that keeps something was closed for another.
    """
    found, left, suites = Carryover.NONE, list(opened), set[str]()
    for place, task in enumerate(opened):
        if task.suite in suites:
            continue
        suites.add(task.suite)

        def open_another(task: OpenedTask = task) -> Any:
            return request.opener.task(task.suite, task.task_id)

        horizon = request.episode_length or task.horizon
        memory = detect_carryover(task.env, open_another, horizon)
        if memory is not Carryover.NONE:
            left[place] = replace(task, env=open_another())
            found = memory if found is not Carryover.UNSTEADY else found
    return found, left


def _all_facts(
    request: ProbeRequest, opened: list[OpenedTask]
) -> tuple[tuple[TaskFacts, ...], tuple[str, ...]]:
    """Return what every task says of itself, and what is to be said of that.

    Raises:
        UsageError: a task has no horizon, and none is given.
    """
    tasks, notes = [], dict[str, None]()
    for task in opened:
        horizon = task.horizon
        if horizon is None and request.episode_length is None:
            horizon = _own_horizon(task)
        instruction, note = _instruction(task)
        fps = task.env.metadata.get("render_fps") or _DEFAULT_FPS
        tasks.append(
            TaskFacts(task.suite, task.task_id, instruction, horizon, fps=max(1, round(fps)))
        )
        notes |= {note: None} if note else {}
    return tuple(tasks), tuple(notes)


def _own_horizon(task: OpenedTask) -> int:
    """Return when the environment ends an episode by itself: as it says, or as playing shows.

    Raises:
        UsageError: neither tells.
    """
    for name in _HORIZON_NAMES:
        said = _attribute(task.env, name)
        if isinstance(said, int) and said > 0:
            return said
    task.env.action_space.seed(0)
    task.env.reset(seed=0)
    began = time.monotonic()
    for steps in range(1, _MOST_STEPS + 1):
        _, _, terminated, truncated, _ = task.env.step(task.env.action_space.sample())
        if truncated and not terminated:
            return steps
        if terminated or time.monotonic() - began > _MOST_S:
            break
    raise UsageError(f"{task.suite} has no horizon of its own; give one with --env.episode_length")


def _instruction(task: OpenedTask) -> tuple[str | None, str | None]:
    """Return the task in words, which a text that it shows may be, and what to say of that."""
    from proctor.benchmarks.gym.spaces import collect_texts, has_text

    space = task.env.observation_space
    if task.instruction is not None or not has_text(space):
        return task.instruction, None
    shown = {collect_texts(space, task.env.reset(seed=seed)[0]) for seed in _SEEDS}
    if len(shown) == 1:
        return " ".join(shown.pop()), None
    return None, (
        f"the text that {task.suite} shows differs between episodes: no policy is given it; "
        "--env.instruction says what is to be done"
    )


def _attribute(env: Any, name: str) -> Any:
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return None


def _picture(env: Any) -> tuple[Feature | None, tuple[str, ...]]:
    """Return the picture for people, if the environment makes one; else what is to be said."""
    from proctor.benchmarks.gym.sim import render

    if env.render_mode != "rgb_array":
        return None, ()
    try:
        frame = render(env)
    except Exception as error:  # noqa: BLE001  not swallowed: said; it can be played all the same
        return None, (f"no videos: its picture fails with {exception_line(error)}",)
    if frame.ndim != 3 or frame.shape[2] != 3:
        return None, (f"no videos: its picture is of shape {frame.shape}, not [H, W, 3]",)
    return Feature(FeatureKind.FILM, frame.shape, "uint8"), ()


def _play_until_judged(request: ProbeRequest, env: Any, horizon: int) -> None:
    """Play random actions until info says whether the task is solved, for an episode at most."""
    rule = request.rule
    if rule.source is not SuccessSource.INFO:
        return
    env.action_space.seed(0)
    keys: Iterable[str] = ()
    steps, ended = 0, False
    while not ended and steps < horizon:
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        keys, ended = info, bool(terminated or truncated)
        steps += 1
        inputs = SuccessInputs(float(reward), 0.0, bool(terminated), ended, info)
        if rule.judge(inputs) is not None:
            return
    held = f"its keys: {', '.join(sorted(keys))}" if keys else "it is empty"
    likely = [key for key in keys if "success" in key.lower() or "solved" in key.lower()]
    hint = f"; did you mean --env.success=info.{likely[0]}?" if likely else f"; choose {CHOICES}"
    raise UsageError(
        f"--env.success=info.{'.'.join(rule.path)}: in an episode of {steps} steps, info of "
        f"{request.opener.description} never held that key ({held}){hint}"
    )


def _distributions(env: Any) -> tuple[str, ...]:
    """Return the installed packages whose versions define the episodes."""
    of_modules = _distributions_of_modules()
    package = type(env.unwrapped).__module__.partition(".")[0]
    engines = [name for name in _ENGINES if name in sys.modules]
    found = [name for module in (package, *engines) for name in sorted(of_modules.get(module, []))]
    return tuple(dict.fromkeys([*found, "gymnasium", "numpy"]))


_distributions_of_modules = cache(importlib.metadata.packages_distributions)
"""It reads a file of everything that is installed."""


def _variables() -> dict[str, str]:
    """Return what was chosen here and has to be set wherever such an environment is opened."""
    backend = os.environ.get("MUJOCO_GL")
    return {"MUJOCO_GL": backend} if backend and "mujoco" in sys.modules else {}


def answer_probe(request: ProbeRequest) -> EnvFacts | ProbeRefusal:
    """Look, and say in one line what is in the way: the exception, and the line it came from."""
    try:
        return inspect_env(request)
    except UsageError as error:
        return ProbeRefusal(str(error))
    except Exception as error:  # noqa: BLE001  not swallowed: the other process says it
        place = error_location(error)
        where = f" ({place})" if place else ""
        return ProbeRefusal(
            f"{request.opener.description} cannot be opened: {exception_line(error)}{where}"
        )


def _main(asked: str, answered: str) -> None:
    from proctor.benchmarks.gym.env_inspection import (
        answer_probe,  # by its own name, not __main__'s
    )

    request = pickle.loads(Path(asked).read_bytes())  # noqa: S301  our own, just written
    Path(answered).write_bytes(pickle.dumps(answer_probe(request)))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
