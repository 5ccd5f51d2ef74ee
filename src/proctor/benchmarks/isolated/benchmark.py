"""Base of benchmarks whose world runs in another interpreter (``proctor_worker/worlds``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from proctor.benchmarks.base import BenchmarkConfig, ListedTasks, Sim, WorkerInterpreter
from proctor.benchmarks.isolated.launch import Launch, interpreter_path, shared_bytes
from proctor.benchmarks.isolated.local_sim import WorldSims, worlds_run_here
from proctor.benchmarks.isolated.sim import IsolatedSim
from proctor.benchmarks.isolated.world_process import (
    OUR_PYTHON,
    WorldProcess,
    minor_version,
    one_shot,
)
from proctor.benchmarks.selection import ids_in_group, split_names
from proctor.errors import PluginError, UsageError, did_you_mean
from proctor.features import ActionSpec, Array, Expert, Feature, FeatureKind, Observation
from proctor.fingerprint import to_json
from proctor.types import EpisodeSpec, Score, Task
from proctor_worker.boundary import WrongValue, as_flag
from proctor_worker.records import EXPERT_ACTION

_NOT_FOR_THE_WORLD = ("type", "max_parallel_tasks", "python", "command")
_PASSED_ON = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "SDL_VIDEODRIVER")
"""Variables of rendering, which a process that shares no environment gets too."""


@dataclass(frozen=True)
class WorldFacts:
    """A world's description and its interpreter, found once by the parent process."""

    launch: Launch
    tasks: tuple[Task, ...]
    features: dict[str, Feature]
    action: ActionSpec
    protocol: dict[str, Any]
    interpreter: dict[str, Any]
    """Python version, machine, and versions of the distributions that define episodes."""
    checks: bool = False
    """Whether the world has a ``preflight``."""
    judged: bool = True
    scores: tuple[Score, ...] = ()
    init_states: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Number of init states of the tasks that have some; others start by the seed."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class IsolatedEnvironments:
    """Starts the process of a world when a simulator is needed; one for each benchmark object."""

    def __init__(self, launch: Launch, features: Mapping[str, Feature]) -> None:
        sizes = [feature.nbytes for feature in features.values()]
        self._launch = replace(launch, shared_bytes=shared_bytes(sizes))
        self._process: WorldProcess | None = None
        self._here = WorldSims(launch, features)

    def open(self, task: Task) -> Sim:
        """Return the simulator of ``task``."""
        if worlds_run_here():
            return self._here.make_sim(task)
        if self._process is None or self._process.is_closed:
            variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            self._process = WorldProcess(self._launch, variables)
        return IsolatedSim(self._process, task)

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Ask the world which variables its process needs to observe ``keys``."""
        with one_shot(self._launch, {}) as process:
            variables: dict[str, str] = process.request("preflight", keys=list(keys))[0][
                "variables"
            ]
        return variables


def worker_interpreter(
    launch: Launch, features: Mapping[str, Feature], interpreter: Mapping[str, Any]
) -> WorkerInterpreter | None:
    """Return the world's interpreter for workers; None if it can only run beside them."""
    if launch.python is None or sys.platform != "linux":
        return None
    too_old = minor_version(interpreter["python"]) < OUR_PYTHON
    make_sims = partial(WorldSims, launch, features) if too_old else None
    return WorkerInterpreter(str(interpreter_path(launch.python)), make_sims)


class IsolatedBenchmark(ListedTasks):
    """A benchmark made of a world's own description."""

    distributions: tuple[str, ...] = ()  # those of the other interpreter are in the protocol
    preload: tuple[str, ...] = ()

    def __init__(self, config: BenchmarkConfig, facts: WorldFacts) -> None:
        self.name = config.type
        self.facts = facts
        self.action, self.judged, self.scores = facts.action, facts.judged, facts.scores
        self.notes, self.warnings = facts.notes, facts.warnings
        self.expert_inputs: tuple[str, ...] = (
            (EXPERT_ACTION,) if EXPERT_ACTION in facts.features else ()
        )
        self._tasks = select_tasks(config, facts.tasks)
        self.worker_interpreter = worker_interpreter(
            facts.launch, facts.features, facts.interpreter
        )
        self._worlds = IsolatedEnvironments(facts.launch, facts.features)

    def spec(self, task: Task, index: int, seed: int) -> EpisodeSpec:
        """Return episode ``index``: the run's seed plus the index, and an init state if any."""
        n_states = self.facts.init_states.get(task.key)
        init_state = None if n_states is None else index % n_states
        return EpisodeSpec(task, index, seed + index, init_state)

    def features(self) -> dict[str, Feature]:
        """Return the world's features."""
        return dict(self.facts.features)

    def protocol(self) -> dict[str, Any]:
        """Return the world's rules, and what is installed in the other interpreter."""
        return {**self.facts.protocol, "interpreter": self.facts.interpreter}

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Ask the world whether it can observe ``keys``, if it checks that."""
        return self._worlds.preflight(keys) if keys and self.facts.checks else {}

    def make_sim(self, task: Task) -> Sim:
        """Make the simulator of ``task``, in the world's process."""
        return self._worlds.open(task)

    def expert(self, task: Task) -> Expert:
        """Return the world's own expert, which the world computes as an observation."""
        if not self.expert_inputs:
            raise UsageError(
                f"{self.name} has no scripted policy; choose another --policy.type",
                code="env.no-expert",
            )
        return computed_elsewhere


def computed_elsewhere(observation: Observation) -> Array:
    """Return the expert's action, which the world has computed as an observation."""
    return observation[EXPERT_ACTION]


def world_config(config: BenchmarkConfig) -> dict[str, Any]:
    """Return the flags that a world gets: all except those that Proctor itself uses."""
    fields: dict[str, Any] = to_json(config)
    return {name: value for name, value in fields.items() if name not in _NOT_FOR_THE_WORLD}


def probe_world(launch: Launch) -> WorldFacts:
    """Start the world's process, ask it what it offers, and end it."""
    with one_shot(launch, {}) as process:
        header = process.request("describe")[0]
    try:
        return _facts(launch, header)
    except (AttributeError, KeyError, TypeError, ValueError, WrongValue) as error:
        raise PluginError(
            f"{launch.world}: its description is not valid: {type(error).__name__}: {error}",
            code="plugin.contract-violation",
        ) from None


def _facts(launch: Launch, header: Mapping[str, Any]) -> WorldFacts:
    described, action = header["description"], header["description"]["action"]
    rows = [dict(row) for row in described["tasks"]]
    n_states = [row.pop("init_states", None) for row in rows]
    tasks = tuple(Task(**row) for row in rows)
    return WorldFacts(
        launch=launch,
        tasks=tasks,
        init_states={
            task.key: int(number)
            for task, number in zip(tasks, n_states, strict=True)
            if number is not None
        },
        features={
            key: Feature(
                FeatureKind(value["kind"]),
                tuple(int(n) for n in value["shape"]),
                str(value["dtype"]),
                _names(value),
            )
            for key, value in described["features"].items()
        },
        action=ActionSpec(
            int(action["size"]),
            _bound(action.get("low")),
            _bound(action.get("high")),
            as_flag(action.get("clipped", True), "clipped"),
            _names(action),
        ),
        protocol=dict(described["protocol"]),
        interpreter=header["interpreter"],
        checks=header["checks"],
        judged=as_flag(described.get("judged", True), "judged"),
        scores=tuple(Score(**score) for score in described.get("scores", ())),
        notes=tuple(map(str, described.get("notes", ()))),
        warnings=tuple(map(str, described.get("warnings", ()))),
    )


def _names(described: Mapping[str, Any]) -> tuple[str, ...] | None:
    names = described.get("names")
    return None if names is None else tuple(map(str, names))


def _bound(value: Any) -> float | tuple[float, ...] | None:
    if value is None or isinstance(value, int | float):
        return value
    return tuple(float(number) for number in value)


def select_tasks(config: BenchmarkConfig, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks that ``--env.task`` (suites or names) and ``--env.task_ids`` select."""
    wanted = split_names(config.task, flag="task") if config.task else []
    known = [*dict.fromkeys(task.suite for task in tasks), *(task.name for task in tasks)]
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known) or f" (choose {', '.join(known[:12])})"
            raise UsageError(f"{config.type} has no task {name!r}{hint}", code="env.unknown-task")
    chosen = [task for task in tasks if not wanted or task.suite in wanted or task.name in wanted]
    if config.task_ids is None:
        return chosen
    ids: list[Task] = []
    for suite in dict.fromkeys(task.suite for task in chosen):
        of_suite = {task.task_id: task for task in chosen if task.suite == suite}
        selected = ids_in_group(suite, max(of_suite) + 1, config.task_ids)
        ids += [of_suite[task_id] for task_id in selected if task_id in of_suite]
    return ids
