"""What all benchmarks made of gymnasium environments share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from proctor.benchmarks.base import SEED_RULE, BenchmarkConfig, ListedTasks, Sim
from proctor.benchmarks.gym.carryover import Carryover
from proctor.benchmarks.gym.probe import EnvFacts, Opener, ProbeRequest, TaskFacts, probe_env
from proctor.benchmarks.gym.success import (
    CHOICES,
    DEFAULT,
    SuccessRule,
    SuccessSource,
    parse_success,
)
from proctor.benchmarks.selection import ids_in_group, require_positive, split_names
from proctor.errors import UsageError, did_you_mean
from proctor.features import ActionSpec, Expert, Feature
from proctor.system.gl import choose_backend_on_import
from proctor.types import Task


@dataclass
class GymAdapterConfig(BenchmarkConfig):
    """Flags of every benchmark made of gymnasium environments."""

    success: str = field(
        default=DEFAULT, metadata={"help": f"what tells that it is solved: {CHOICES}"}
    )
    instruction: str | None = field(
        default=None, metadata={"help": "the task in words, for policies that read them"}
    )
    kwargs: dict[str, Any] = field(
        default_factory=dict, metadata={"help": 'given to the environment, as {"size":8}'}
    )
    episode_length: int | None = field(
        default=None, metadata={"help": "most steps of an episode (default: the environment's own)"}
    )


_OWN_RESET = "the environment's own reset with the episode's seed"
_RESET_RULES = {
    Carryover.NONE: _OWN_RESET,
    Carryover.CARRIES_OVER: f"a fresh environment for every episode, and {_OWN_RESET}",
    Carryover.UNSTEADY: f"a fresh environment for every episode (these differ), and {_OWN_RESET}",
}


def _said_of(memory: Carryover, what: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return notes and warnings for who starts a run."""
    if memory is Carryover.CARRIES_OVER:
        note = (
            f"{what} carries state from one episode into the next: every episode gets a fresh one"
        )
        return (note,), ()
    if memory is Carryover.UNSTEADY:
        warning = (
            f"two fresh environments of {what} play the same seed differently: no episode of it "
            "can be repeated, and rates may change with the number of workers"
        )
        return (), (warning,)
    return (), ()


def _said_of_success(text: str, rule: SuccessRule) -> str:
    whole_episode = rule.at_end or rule.source in (SuccessSource.TRUNCATED, SuccessSource.RETURN)
    if not rule.judges:
        return "not judged"
    return f"{text} (judged at the end)" if whole_episode else f"{text} at any step"


class GymAdapter(ListedTasks):
    """Gymnasium environments as a benchmark."""

    preload: tuple[str, ...] = ("gymnasium", "proctor.benchmarks.gym.sim")
    expert_inputs: tuple[str, ...] = ()

    def __init__(
        self, name: str, config: GymAdapterConfig, opener: Opener, facts: EnvFacts | None
    ) -> None:
        if config.episode_length is not None:
            require_positive("episode_length", config.episode_length)
        self.name = name
        self._config = config
        self._opener = opener
        self._rule: SuccessRule = parse_success(config.success)
        self.judged = self._rule.judges
        self.facts = facts or probe_env(ProbeRequest(opener, self._rule, config.episode_length))
        """What was learnt of the environments here, or by the parent for its workers."""
        self.action: ActionSpec = self.facts.action
        self.distributions = self.facts.distributions
        self._tasks = [self._task(facts) for facts in self._selected()]
        notes, self.warnings = _said_of(self.facts.carryover, opener.description)
        self.notes = (*notes, *self.facts.notes)

    def features(self) -> dict[str, Feature]:
        """Return what the environment's observation holds, and its picture for videos."""
        return dict(self.facts.features)

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode."""
        return {
            "kwargs": self._config.kwargs,
            "horizon": {f"{task.suite} {task.task_id}": task.max_steps for task in self._tasks},
            "seed_rule": SEED_RULE,
            "reset_rule": _RESET_RULES[self.facts.carryover],
            "termination": "the environment's own end, or the horizon",
            "success": _said_of_success(self._config.success, self._rule),
            "action": "Box: clipped to the space; Discrete: the highest number's action",
        }

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Need what it needed when it was opened: MUJOCO_GL, where it uses MuJoCo."""
        return dict(self.facts.variables)

    def make_sim(self, task: Task) -> Sim:
        """Open the environment of ``task``."""
        from proctor.benchmarks.gym.sim import GymSim

        def open_env() -> Any:
            with choose_backend_on_import():  # in a worker it is set already, by preflight
                return self._opener.task(task.suite, task.task_id)

        return GymSim(open_env, self._rule, fresh=self.facts.carryover is not Carryover.NONE)

    def expert(self, task: Task) -> Expert:
        """There is none."""
        raise UsageError(f"{self.name} has no scripted policy; choose another --policy.type")

    def _selected(self) -> list[TaskFacts]:
        """Return the tasks that --env.task and --env.task_ids leave."""
        suites: dict[str, list[TaskFacts]] = {}
        for facts in self.facts.tasks:
            suites.setdefault(facts.suite, []).append(facts)
        wanted = split_names(self._config.task, flag="task") if self._config.task else list(suites)
        chosen: list[TaskFacts] = []
        for suite in dict.fromkeys(wanted):
            if suite not in suites:
                hint = did_you_mean(suite, suites) or f" (choose {', '.join(suites)})"
                raise UsageError(f"{self._opener.description} has no task {suite!r}{hint}")
            of_suite = {facts.task_id: facts for facts in suites[suite]}
            ids = ids_in_group(suite, max(of_suite) + 1, self._config.task_ids)
            chosen += [of_suite[task_id] for task_id in ids if task_id in of_suite]
        return chosen

    def _task(self, facts: TaskFacts) -> Task:
        horizon = self._config.episode_length or facts.horizon
        if horizon is None:
            raise UsageError(
                f"{facts.suite} has no horizon of its own; give one with --env.episode_length"
            )
        instruction = self._config.instruction
        if instruction is None:
            instruction = facts.instruction or ""
        alone = sum(other.suite == facts.suite for other in self.facts.tasks) == 1
        name = facts.suite if alone else f"{facts.suite}/{facts.task_id}"
        return Task(facts.suite, facts.task_id, name, instruction, horizon, facts.fps)
