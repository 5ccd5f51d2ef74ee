"""Inspection of gymnasium environments: spaces, horizon, images, success."""

import contextlib
import importlib.util
import sys
import time
from importlib import metadata
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Set,
    Tuple,
)

from proctor_worker.boundary import as_flag, as_number
from proctor_worker.gym_env.carryover import Carryover, detect_carryover
from proctor_worker.gym_env.sim import FILM, Naming, choose_egl, render
from proctor_worker.gym_env.spaces import (
    action_range,
    collect_texts,
    has_text,
    observation_entries,
)
from proctor_worker.gym_env.success import CHOICES, SuccessInputs, SuccessRule, SuccessSource
from proctor_worker.records import Refused
from proctor_worker.rng import SEED_BEFORE_RESET, seed_global_rng

_DEFAULT_FPS = 30
_MOST_STEPS, _MOST_S = 5_000, 20.0
"""Limits of the episode that finds an environment's own horizon."""
_HORIZON_NAMES = ("_max_episode_steps", "max_episode_steps", "max_steps")
_ENGINES = ("mujoco", "dm_control", "Box2D", "pymunk", "pybullet")
"""Physics engines, whose versions change the episodes of any environment that uses them."""
_SEEDS = range(4)


class OpenedTask(NamedTuple):
    """A live environment of one task."""

    suite: str
    task_id: int
    env: Any
    horizon: Optional[int]
    """Maximum steps per episode that the environment declares."""
    instruction: Optional[str] = None


class TaskRecord(NamedTuple):
    """Facts of one task; None if the environment does not state them."""

    suite: str
    task_id: int
    instruction: Optional[str]
    horizon: Optional[int]
    fps: int


class EnvRecord(NamedTuple):
    """Facts of all environments of a benchmark, as JSON values."""

    tasks: Tuple[TaskRecord, ...]
    features: Dict[str, Dict[str, Any]]
    action: Dict[str, Any]
    distributions: Tuple[str, ...]
    carryover: Carryover
    notes: Tuple[str, ...]


class Inspection(NamedTuple):
    """What to inspect, and how."""

    opener: Any
    """Opens environments: ``description``, ``tasks()``, ``task(suite, task_id)``."""
    rule: SuccessRule
    episode_length: Optional[int]
    opening: Callable[[], ContextManager[Any]] = contextlib.nullcontext
    """A context in which environments are opened."""
    choose_backend: Callable[[], None] = choose_egl
    """Called before an image is rendered."""

    def run(self) -> EnvRecord:
        """Open the environments in this process and return their facts.

        Raises:
            Refused: an environment cannot be used or has no horizon, or ``info`` lacks the success
                key.
        """
        seed_global_rng(SEED_BEFORE_RESET)
        with self.opening():
            opened = self.opener.tasks()
        env = opened[0].env
        action = action_range(env.action_space)
        entries = observation_entries(env.observation_space)
        features: Dict[str, Dict[str, Any]] = {
            entry.key: {"kind": entry.kind, "shape": entry.shape, "dtype": entry.dtype}
            for entry in entries
        }
        self._check_same_spaces(opened)
        carryover, opened = self._find_carryover(opened)
        tasks, notes = self._all_facts(opened)
        env = opened[0].env
        observation, _ = env.reset(seed=0)
        with Naming(env):
            for entry in entries:
                entry.read(observation)
        shape, why_none = self._video_image(env)
        if shape is not None:
            features[FILM] = {"kind": "FILM", "shape": shape, "dtype": "uint8"}
        self._check_success_key(env, self.episode_length or tasks[0].horizon or 1)
        record = EnvRecord(
            tasks, features, action, _distributions(env), carryover, (*notes, *why_none)
        )
        for task in opened:
            task.env.close()
        return record

    def _check_same_spaces(self, opened: List[OpenedTask]) -> None:
        first = opened[0]
        for other in opened[1:]:
            spaces = (other.env.observation_space, other.env.action_space)
            if spaces != (first.env.observation_space, first.env.action_space):
                raise Refused(
                    f"{self.opener.description}: task {other.task_id} of {other.suite} has other "
                    f"spaces than task {first.task_id} of {first.suite}; choose with --env.task",
                    code="env.spaces-differ",
                )

    def _find_carryover(self, opened: List[OpenedTask]) -> Tuple[Carryover, List[OpenedTask]]:
        """Return the worst carryover of the first environments of all suites, which must be new.

        Also return the open environments: one with carryover was closed and replaced.
        """
        found, left = Carryover.NONE, list(opened)
        suites: Set[str] = set()
        for place, task in enumerate(opened):
            if task.suite in suites:
                continue
            suites.add(task.suite)

            def open_another(task: OpenedTask = task) -> Any:
                return self.opener.task(task.suite, task.task_id)

            horizon = self.episode_length or task.horizon
            carryover = detect_carryover(task.env, open_another, horizon)
            if carryover is not Carryover.NONE:
                left[place] = task._replace(env=open_another())
                found = carryover if found is not Carryover.UNSTEADY else found
        return found, left

    def _all_facts(
        self, opened: List[OpenedTask]
    ) -> Tuple[Tuple[TaskRecord, ...], Tuple[str, ...]]:
        """Return the facts of every task, and notes for the user."""
        tasks: List[TaskRecord] = []
        notes: Dict[str, None] = {}
        for task in opened:
            horizon = task.horizon
            if horizon is None and self.episode_length is None:
                horizon = _own_horizon(task)
            instruction, note = _instruction(task)
            fps = (task.env.metadata or {}).get("render_fps") or _DEFAULT_FPS
            tasks.append(
                TaskRecord(task.suite, task.task_id, instruction, horizon, max(1, round(fps)))
            )
            if note:
                notes[note] = None
        return tuple(tasks), tuple(notes)

    def _video_image(self, env: Any) -> Tuple[Optional[Tuple[int, ...]], Tuple[str, ...]]:
        """Return the shape of the rendered image if there is one, and a note if it fails."""
        if env.render_mode != "rgb_array":
            return None, ()
        try:
            frame = render(env, self.choose_backend)
        except Exception as error:  # noqa: BLE001  reported in a note; the environment works without
            text = " ".join(str(error).split())
            said = f"{type(error).__name__}: {text}" if text else type(error).__name__
            return None, (f"no videos: rendering fails with {said}",)
        if frame.ndim != 3 or frame.shape[2] != 3:
            return None, (f"no videos: the image has the shape {frame.shape}, not [H, W, 3]",)
        return tuple(frame.shape), ()

    def _check_success_key(self, env: Any, horizon: int) -> None:
        """Run one random episode, and refuse an environment whose info lacks the success key."""
        rule = self.rule
        if rule.source is not SuccessSource.INFO:
            return
        env.action_space.seed(0)
        keys: Iterable[str] = ()
        steps, ended = 0, False
        while not ended and steps < horizon:
            _, reward, terminated, truncated, info = env.step(env.action_space.sample())
            steps += 1
            with Naming(env):
                terminated = as_flag(terminated, "terminated")
                keys, ended = info, as_flag(truncated, "truncated") or terminated
                number = as_number(reward, "the reward")
                if rule.judge(SuccessInputs(number, 0.0, terminated, ended, info)) is not None:
                    return
        listed = f"its keys: {', '.join(sorted(keys))}" if keys else "it is empty"
        likely = [key for key in keys if "success" in key.lower() or "solved" in key.lower()]
        hint = (
            f"; did you mean --env.success=info.{likely[0]}?" if likely else f"; choose {CHOICES}"
        )
        raise Refused(
            f"--env.success=info.{'.'.join(rule.path)}: in an episode of {steps} steps, info of "
            f"{self.opener.description} never had that key ({listed}){hint}",
            code="env.no-success-key",
        )


def _own_horizon(task: OpenedTask) -> int:
    """Return the environment's own horizon: from its attributes, or from a random episode.

    Raises:
        Refused: there is none.
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
    raise Refused(
        f"{task.suite} has no horizon of its own; give one with --env.episode_length",
        code="env.no-horizon",
    )


def _instruction(task: OpenedTask) -> Tuple[Optional[str], Optional[str]]:
    """Return the task's instruction, possibly a text in its observation, and a note if needed."""
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
    """Return an attribute of the environment or of one inside its wrappers, or None."""
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return None


def _distributions(env: Any) -> Tuple[str, ...]:
    """Return the installed packages whose versions define the episodes."""
    of_modules = _distributions_of_modules()
    package = type(env.unwrapped).__module__.partition(".")[0]
    engines = [name for name in _ENGINES if name in sys.modules]
    found = [name for module in (package, *engines) for name in sorted(of_modules.get(module, []))]
    library = "gymnasium" if importlib.util.find_spec("gymnasium") else "gym"
    return tuple(dict.fromkeys([*found, library, "numpy"]))


_known: Dict[str, Set[str]] = {}
"""Distributions by module; found once, since it reads a file of every installed package."""


def _distributions_of_modules() -> Dict[str, Set[str]]:
    """Return the distributions that provide each top-level module."""
    if not _known:
        for distribution in metadata.distributions():
            name = distribution.metadata["Name"]  # parses a file
            listed = set((distribution.read_text("top_level.txt") or "").split())
            for file in distribution.files or () if not listed else ():
                if file.suffix == ".py":
                    listed.add(file.parts[0] if len(file.parts) > 1 else file.stem)
            for module in listed:
                _known.setdefault(module, set()).add(name)
    return _known
