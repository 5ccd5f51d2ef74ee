"""The order of blind trials: balanced blocks in random order, and which trials are left."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from proctor.config.robot_evaluation import RobotEvalConfig
from proctor.stats.best_policy import BETTER, BestPolicy
from proctor.stats.stopping import EpisodeOutcome, StopRule, parse_stop_rule
from proctor.types import EpisodeSpec, Outcome, Task


@dataclass(frozen=True)
class Trial:
    """One trial: a policy on the scene of a block."""

    number: int
    """Its place in the order, from 0."""
    block: int
    policy: int
    """Which policy acts. Nothing shows it before the end of the session."""


def draw_trials(n_policies: int, n_blocks: int, entropy: int) -> list[Trial]:
    """Draw the order of all trials: each block has each policy once, in random order.

    The order of a block depends on ``entropy`` and block only, so a longer run has the same
    beginning.
    """
    trials: list[Trial] = []
    for block in range(n_blocks):
        order = np.random.default_rng([entropy, block]).permutation(n_policies)
        trials += [Trial(len(trials) + i, block, int(p)) for i, p in enumerate(order)]
    return trials


def robot_task(config: RobotEvalConfig, robot: str) -> Task:
    """Return the task of a robot's trials."""
    name = config.task or "task"
    return Task(robot, 0, name, config.task, config.max_steps, config.fps)


def trial_spec(task: Task, block: int, seed: int) -> EpisodeSpec:
    """Return the episode of a block, which is the same for every policy."""
    return EpisodeSpec(task, block, seed + block, world=f"scene {block}")


class TrialStopping:
    """Decides after every complete block whether the trials may stop."""

    def __init__(self, config: RobotEvalConfig, task: Task, names: Sequence[str]) -> None:
        rule = config.stop_rule(len(names))
        self._names = names
        self._task = task
        self._seed = config.seed
        self._best = BestPolicy(names, config.alpha) if rule == BETTER else None
        self._narrow: list[StopRule] = []
        if self._best is None:
            made = [parse_stop_rule(rule) for _ in names]
            self._narrow = [one for one in made if one is not None]
        self._open: dict[int, dict[int, Outcome]] = {}
        self._next = 0
        self.decision: str | None = None

    def add(self, block: int, policy: int, outcome: Outcome) -> None:
        """Add a judged trial; blocks are looked at in order, each once it is complete."""
        self._open.setdefault(block, {})[policy] = outcome
        while len(self._open.get(self._next, ())) == len(self._names):
            self._close_block(self._next, self._open.pop(self._next))
            self._next += 1

    def _close_block(self, block: int, outcomes: dict[int, Outcome]) -> None:
        if self.decision is not None:
            return
        if self._best is not None:
            self._best.on_block_end([outcomes[i] for i in range(len(self._names))])
            self.decision = self._best.decision
        for policy, rule in enumerate(self._narrow):
            spec = trial_spec(self._task, block, self._seed)
            rule.on_round_end([EpisodeOutcome(spec.key, spec.started, outcomes[policy])])
        if self._narrow:
            decisions = [rule.decision for rule in self._narrow]
            if all(decisions):
                self.decision = "; ".join(str(text) for text in decisions)


def remaining_trials(
    trials: Sequence[Trial], done: Collection[tuple[int, int]], *, decided: bool
) -> list[Trial]:
    """Return the trials to run; once a rule has decided, only those of begun blocks.

    ``done`` holds (block, policy) of the judged trials. A trial that errored runs again.
    """
    begun = {block for block, _ in done}
    return [
        trial
        for trial in trials
        if (trial.block, trial.policy) not in done and (not decided or trial.block in begun)
    ]
