"""Inspection of gymnasium environments: spaces, horizon, images, success. ``probe`` runs it."""

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
"""Limits of the episode that finds an environment's own horizon."""
_HORIZON_NAMES = ("_max_episode_steps", "max_episode_steps", "max_steps")
_ENGINES = ("mujoco", "dm_control", "Box2D", "pymunk", "pybullet")
"""Physics engines, whose versions change the episodes of any environment that uses them."""
_SEEDS = range(4)


def inspect_env(request: ProbeRequest) -> EnvFacts:
    """Open the environments in this process and return their facts.

    Raises:
        UsageError: an environment cannot be used or has no horizon, or ``info`` lacks the success
            key.
    """
    from proctor.benchmarks.gym.spaces import action_spec, observation_entries

    seed_global_rng(SEED_BEFORE_RESET)
    with choose_backend_on_import():
        opened = request.opener.tasks()
    env = opened[0].env
    action = action_spec(env.action_space)
    features = {entry.key: entry.feature for entry in observation_entries(env.observation_space)}
    _check_same_spaces(request, opened)
    carryover, opened = _find_carryover(request, opened)
    tasks, notes = _all_facts(request, opened)
    env = opened[0].env
    env.reset(seed=0)
    video_image, why_none = _video_image(env)
    if video_image is not None:
        features[FILM] = video_image
    _check_success_key(request, env, request.episode_length or tasks[0].horizon or 1)
    facts = EnvFacts(
        tasks,
        features,
        action,
        _distributions(env),
        carryover,
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
                f"spaces than task {first.task_id} of {first.suite}; choose with --env.task",
                code="env.spaces-differ",
            )


def _find_carryover(
    request: ProbeRequest, opened: list[OpenedTask]
) -> tuple[Carryover, list[OpenedTask]]:
    """Return the worst carryover of the first environments of all suites, which must be new.

    Also return the open environments: one with carryover was closed and replaced.
    """
    found, left, suites = Carryover.NONE, list(opened), set[str]()
    for place, task in enumerate(opened):
        if task.suite in suites:
            continue
        suites.add(task.suite)

        def open_another(task: OpenedTask = task) -> Any:
            return request.opener.task(task.suite, task.task_id)

        horizon = request.episode_length or task.horizon
        carryover = detect_carryover(task.env, open_another, horizon)
        if carryover is not Carryover.NONE:
            left[place] = replace(task, env=open_another())
            found = carryover if found is not Carryover.UNSTEADY else found
    return found, left


def _all_facts(
    request: ProbeRequest, opened: list[OpenedTask]
) -> tuple[tuple[TaskFacts, ...], tuple[str, ...]]:
    """Return the facts of every task, and notes for the user.

    Raises:
        UsageError: a task has no horizon, and ``--env.episode_length`` is not set.
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
    """Return the environment's own horizon: from its attributes, or from a random episode.

    Raises:
        UsageError: there is none.
    """
    for name in _HORIZON_NAMES:
        horizon = _attribute(task.env, name)
        if isinstance(horizon, int) and horizon > 0:
            return horizon
    task.env.action_space.seed(0)
    task.env.reset(seed=0)
    began = time.monotonic()
    for steps in range(1, _MOST_STEPS + 1):
        _, _, terminated, truncated, _ = task.env.step(task.env.action_space.sample())
        if truncated and not terminated:
            return steps
        if terminated or time.monotonic() - began > _MOST_S:
            break
    raise UsageError(
        f"{task.suite} has no horizon of its own; give one with --env.episode_length",
        code="env.no-horizon",
    )


def _instruction(task: OpenedTask) -> tuple[str | None, str | None]:
    """Return the task's instruction, possibly a text in its observation, and a note if needed."""
    from proctor.benchmarks.gym.spaces import collect_texts, has_text

    space = task.env.observation_space
    if task.instruction is not None or not has_text(space):
        return task.instruction, None
    shown = {collect_texts(space, task.env.reset(seed=seed)[0]) for seed in _SEEDS}
    if len(shown) == 1:
        return " ".join(shown.pop()), None
    return None, (
        f"the text in {task.suite}'s observation differs between episodes, so policies do not get "
        "it; set an instruction with --env.instruction"
    )


def _attribute(env: Any, name: str) -> Any:
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return None


def _video_image(env: Any) -> tuple[Feature | None, tuple[str, ...]]:
    """Return the feature of the rendered image if there is one, and a note if it fails."""
    from proctor.benchmarks.gym.sim import render

    if env.render_mode != "rgb_array":
        return None, ()
    try:
        frame = render(env)
    except Exception as error:  # noqa: BLE001  reported in a note; the environment works without
        return None, (f"no videos: rendering fails with {exception_line(error)}",)
    if frame.ndim != 3 or frame.shape[2] != 3:
        return None, (f"no videos: the image has the shape {frame.shape}, not [H, W, 3]",)
    return Feature(FeatureKind.FILM, frame.shape, "uint8"), ()


def _check_success_key(request: ProbeRequest, env: Any, horizon: int) -> None:
    """Run one random episode, and refuse an environment whose ``info`` lacks the success key."""
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
    listed = f"its keys: {', '.join(sorted(keys))}" if keys else "it is empty"
    likely = [key for key in keys if "success" in key.lower() or "solved" in key.lower()]
    hint = f"; did you mean --env.success=info.{likely[0]}?" if likely else f"; choose {CHOICES}"
    raise UsageError(
        f"--env.success=info.{'.'.join(rule.path)}: in an episode of {steps} steps, info of "
        f"{request.opener.description} never had that key ({listed}){hint}",
        code="env.no-success-key",
    )


def _distributions(env: Any) -> tuple[str, ...]:
    """Return the installed packages whose versions define the episodes."""
    of_modules = _distributions_of_modules()
    package = type(env.unwrapped).__module__.partition(".")[0]
    engines = [name for name in _ENGINES if name in sys.modules]
    found = [name for module in (package, *engines) for name in sorted(of_modules.get(module, []))]
    return tuple(dict.fromkeys([*found, "gymnasium", "numpy"]))


_distributions_of_modules = cache(importlib.metadata.packages_distributions)
"""Cached, since it reads a file of every installed package."""


def _variables() -> dict[str, str]:
    """Return the variables that must be set in every process that opens the environment."""
    backend = os.environ.get("MUJOCO_GL")
    return {"MUJOCO_GL": backend} if backend and "mujoco" in sys.modules else {}


def answer_probe(request: ProbeRequest) -> EnvFacts | ProbeRefusal:
    """Return the facts, or the refusal: one line with the exception and its line of code."""
    try:
        return inspect_env(request)
    except UsageError as error:
        return ProbeRefusal(str(error), error.code)
    except Exception as error:  # noqa: BLE001  the other process reports it
        place = error_location(error)
        where = f" ({place})" if place else ""
        text = f"{request.opener.description} cannot be opened: {exception_line(error)}{where}"
        return ProbeRefusal(text, "env.cannot-open")


def _main(asked: str, answered: str) -> None:
    from proctor.benchmarks.gym.env_inspection import (
        answer_probe,  # by its own name, not __main__'s
    )

    request = pickle.loads(Path(asked).read_bytes())  # noqa: S301  written by our parent
    Path(answered).write_bytes(pickle.dumps(answer_probe(request)))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
