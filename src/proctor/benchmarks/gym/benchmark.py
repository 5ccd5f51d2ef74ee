"""Base benchmark of gymnasium environments, registered or from the Hub."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from proctor.benchmarks.base import SEED_RULE, BenchmarkConfig, ListedTasks, RobotControl, Sim
from proctor.benchmarks.gym.probe import EnvFacts, Opener, ProbeRequest, probe_env
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
from proctor.settings import setting
from proctor.system.graphics.gl import choose_backend_on_import
from proctor.types import Task
from proctor_worker.gym_env.carryover import Carryover
from proctor_worker.gym_env.inspection import TaskRecord


@dataclass
class GymAdapterConfig(BenchmarkConfig):
    """Flags of every benchmark of gymnasium environments."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Tasks": "success instruction",
    }

    success: str = setting(DEFAULT, f"success rule: {CHOICES}")
    instruction: str | None = setting(
        None, "instruction for language-conditioned policies (default: no instruction)"
    )
    kwargs: dict[str, Any] = setting(
        {}, "keyword arguments of gymnasium.make, as {size: 8} (default: no arguments)"
    )
    episode_length: int | None = setting(
        None, "maximum simulator steps per episode (default: the environment's)"
    )


_OWN_RESET = "the environment's own reset with the episode's seed"
_RESET_RULES = {
    Carryover.NONE: _OWN_RESET,
    Carryover.CARRIES_OVER: f"a fresh environment for every episode, and {_OWN_RESET}",
    Carryover.UNSTEADY: f"a fresh environment for every episode (these differ), and {_OWN_RESET}",
}


def _carryover_notices(carryover: Carryover, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return notes and warnings for the user about state that episodes carry over."""
    if carryover is Carryover.CARRIES_OVER:
        note = f"{name} carries state from one episode into the next: every episode gets a new one"
        return (note,), ()
    if carryover is Carryover.UNSTEADY:
        warning = (
            f"two new environments of {name} give different episodes for the same seed: no episode "
            "of it can be repeated, and rates may change with the number of workers"
        )
        return (), (warning,)
    return (), ()


def _success_rule_text(text: str, rule: SuccessRule) -> str:
    whole_episode = rule.at_end or rule.source in (SuccessSource.TRUNCATED, SuccessSource.RETURN)
    if not rule.judges:
        return "not judged"
    return f"{text} (judged at the end)" if whole_episode else f"{text} at any step"


def _robot_control(action: ActionSpec) -> RobotControl | None:
    """Return the control of a bounded action space that has zero; its meaning is not known."""
    lows, highs = (
        bound if isinstance(bound, tuple) else (bound,) * action.size
        for bound in (action.low, action.high)
    )
    noise = []
    for low, high in zip(lows, highs, strict=True):
        if low is None or high is None or not -math.inf < low <= 0 <= high < math.inf:
            return None
        noise.append((high - low) / 20)
    return RobotControl(action_noise=tuple(noise), state_noise={}, hold=(0.0,) * action.size)


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
        """Result of probing the environments, done here or by the parent process."""
        self.action: ActionSpec = self.facts.action
        self.robot_control = _robot_control(self.action)
        self.distributions = self.facts.distributions
        self._tasks = [self._task(facts) for facts in self._selected()]
        notes, self.warnings = _carryover_notices(self.facts.carryover, opener.description)
        self.notes = (*notes, *self.facts.notes)

    def features(self) -> dict[str, Feature]:
        """Return the features of the environment's observation, and its video image."""
        return dict(self.facts.features)

    def protocol(self) -> dict[str, Any]:
        """Return the rules that define an episode."""
        return {
            "kwargs": self._config.kwargs,
            "horizon": {f"{task.suite} {task.task_id}": task.max_steps for task in self._tasks},
            "seed_rule": SEED_RULE,
            "reset_rule": _RESET_RULES[self.facts.carryover],
            "termination": "the environment's own end, or the horizon",
            "success": _success_rule_text(self._config.success, self._rule),
            "action": "Box: clipped to the space; Discrete: the highest number's action",
        }

    def preflight(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the variables of the probe: MUJOCO_GL, if the environment uses MuJoCo."""
        return dict(self.facts.variables)

    def make_sim(self, task: Task) -> Sim:
        """Open the environment of ``task``."""
        from proctor.benchmarks.gym.sim import GymSim

        def open_env() -> Any:
            with choose_backend_on_import():  # in a worker, preflight has set it already
                return self._opener.task(task.suite, task.task_id)

        return GymSim(open_env, self._rule, fresh=self.facts.carryover is not Carryover.NONE)

    def expert(self, task: Task) -> Expert:
        """Refuse: gymnasium environments have no expert."""
        raise UsageError(
            f"{self.name} has no scripted policy; choose another --policy.type",
            code="env.no-expert",
        )

    def _selected(self) -> list[TaskRecord]:
        """Return the tasks that ``--env.task`` and ``--env.task_ids`` select."""
        suites: dict[str, list[TaskRecord]] = {}
        for facts in self.facts.tasks:
            suites.setdefault(facts.suite, []).append(facts)
        wanted = split_names(self._config.task, flag="task") if self._config.task else list(suites)
        chosen: list[TaskRecord] = []
        for suite in dict.fromkeys(wanted):
            if suite not in suites:
                hint = did_you_mean(suite, suites) or f" (choose {', '.join(suites)})"
                raise UsageError(
                    f"{self._opener.description} has no task {suite!r}{hint}",
                    code="env.unknown-task",
                )
            of_suite = {facts.task_id: facts for facts in suites[suite]}
            ids = ids_in_group(suite, max(of_suite) + 1, self._config.task_ids)
            chosen += [of_suite[task_id] for task_id in ids if task_id in of_suite]
        return chosen

    def _task(self, facts: TaskRecord) -> Task:
        horizon = self._config.episode_length or facts.horizon
        if horizon is None:
            raise UsageError(
                f"{facts.suite} has no horizon of its own; give one with --env.episode_length",
                code="env.no-horizon",
            )
        instruction = self._config.instruction
        if instruction is None:
            instruction = facts.instruction or ""
        alone = sum(other.suite == facts.suite for other in self.facts.tasks) == 1
        name = facts.suite if alone else f"{facts.suite}/{facts.task_id}"
        return Task(facts.suite, facts.task_id, name, instruction, horizon, facts.fps)
