"""The rollout loop of an actor: it drives an environment and sends transitions to a learner.

An episode has one set of weights. All randomness of it follows from (seed, actor, episode). So an
actor that was killed plays its unfinished episode again, with the same transitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from proctor.errors import ConnectionLost
from proctor.features import Array, Observation
from proctor.rl.actor.interventions import Intervention, InterventionSignal
from proctor.rl.environment.environments import EnvStep, OnlineEnv
from proctor.rl.learner.metrics import SUCCESS, SUCCESS_AT_END
from proctor.rl.link.links import ActorWeights, InteractionMessage, LearnerLink
from proctor.rl.transitions import Transition
from proctor.system.limits import is_finite_as

PENALTY, IS_INTERVENTION = "discrete_penalty", "is_intervention"
"""Names in ``Transition.complementary_info``."""
_LOOK_S = 0.005
_SEED_WORDS = 4


@dataclass(frozen=True)
class ActorDecision:
    """What a policy chose for one observation."""

    action: Array
    """float32 [A], in the environment's units; the gripper command is its last number."""
    value: float | None = None
    """The gripper critic's value of the command; None without a gripper critic."""


class ActingPolicy(Protocol):
    """A policy whose weights come from the learner (``ActorPolicy``)."""

    def load(self, weights: ActorWeights) -> None:
        """Use the learner's weights."""

    def decide(self, observation: Observation, generator: torch.Generator | None) -> ActorDecision:
        """Return an action with noise of ``generator``; None: without noise."""


@dataclass(frozen=True)
class ActorSettings:
    """What an actor's loop depends on."""

    seed: int
    index: int = 0
    """The actor's number; actors of one learner differ in it."""
    lockstep: bool = False
    """Wait until the learner has trained on all transitions before an episode begins."""
    online_steps: int | None = None
    """Environment steps after which the actor ends; None: until the learner stops."""
    terminate_on_success: bool = True
    """End the episode when a person says that the task is done."""
    send_every: int = 10
    """In lockstep, steps after which transitions are sent, so that the learner works meanwhile."""
    weights_s: float = 600.0
    """Longest wait for the learner's weights."""


@dataclass
class EpisodeRecord:
    """One episode, before it is sent."""

    transitions: list[Transition] = field(default_factory=list)
    reward: float = 0.0
    n_interventions: int = 0
    success: bool | None = None
    """Whether any step was a success, as evaluations count; None: no step was judged."""
    success_at_end: bool | None = None
    discarded: bool = False
    """A person wants to play it again."""
    periods_s: list[float] = field(default_factory=list)
    """Seconds of the policy's decisions."""
    n_sent: int = 0
    """Transitions that the learner has been sent during the episode."""


def episode_seeds(seed: int, actor: int, episode: int) -> tuple[int, int]:
    """Return the seeds of the environment and of the noise in an episode."""
    words = np.random.SeedSequence([seed, actor, episode]).generate_state(_SEED_WORDS)
    return int(words[0] >> 1), int(words[1]) << 31 ^ int(words[2])


class Actor:
    """Drives one environment until the learner stops or the steps are spent."""

    def __init__(
        self,
        env: OnlineEnv,
        policy: ActingPolicy,
        intervention: Intervention,
        link: LearnerLink,
        settings: ActorSettings,
    ) -> None:
        self._env, self._policy, self._intervention = env, policy, intervention
        self._link, self._settings = link, settings
        self._version: int | None = None
        self._has_weights = False
        self._sent = 0
        self._steps = 0

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Play episodes and send them; returns when the steps are spent or ``should_stop``."""
        position = self._link.begin(replay=self._intervention.is_repeatable)
        episode = position.episodes
        is_replayed = self._intervention.is_repeatable
        self._sent = self._steps = position.transitions if is_replayed else position.stored
        limit = self._settings.online_steps
        self._update_weights(is_first=True)
        while not should_stop() and (limit is None or self._steps < limit):
            played = self._play(episode)
            if played.discarded:
                continue
            self._send(played)
            self._summarise(played)
            episode += 1
            self._update_weights(is_first=False)

    def _update_weights(self, *, is_first: bool) -> None:
        """Load the newest weights; at the start and in lockstep, wait for them."""
        deadline = time.monotonic() + self._settings.weights_s
        while True:
            weights = self._link.newest_weights()
            if weights is not None:
                self._load(weights)
            if self._is_up_to_date(is_first=is_first):
                return
            if time.monotonic() > deadline:
                raise ConnectionLost(
                    f"the learner sent no weights within {self._settings.weights_s:g} s"
                )
            time.sleep(_LOOK_S)

    def _load(self, weights: ActorWeights) -> None:
        self._policy.load(weights)
        self._version = weights.version
        self._has_weights = True

    def _is_up_to_date(self, *, is_first: bool) -> bool:
        if self._settings.lockstep:
            return self._version is not None and self._version >= self._sent
        return self._has_weights or not is_first

    def _play(self, episode: int) -> EpisodeRecord:
        """Play one episode with the present weights."""
        env_seed, noise_seed = episode_seeds(self._settings.seed, self._settings.index, episode)
        noise = torch.Generator().manual_seed(noise_seed)
        self._intervention.begin(episode)
        observation = self._env.reset(env_seed)
        if self._env.start is not None:
            self._link.send_start(self._env.start)
        played = EpisodeRecord()
        while True:
            began = time.perf_counter()
            decision = self._policy.decide(observation, noise)
            played.periods_s.append(time.perf_counter() - began)
            value = decision.value if self._intervention.needs_value else None
            signal = self._intervention.signal(len(played.transitions), value)
            action = decision.action if signal.action is None else signal.action
            if not is_finite_as(action):
                raise ConnectionLost(
                    "an action is not finite, so it was not executed; the learner's weights are "
                    "useless",
                    code="rl.action-not-finite",
                )
            step = self._env.step(action)
            made = self._transition(observation, action, step, signal)
            played.transitions.append(made)
            played.reward += made.reward
            played.n_interventions += made.is_intervention
            if step.info.success is not None:
                played.success = bool(played.success) or step.info.success
                played.success_at_end = step.info.success or signal.success
            if signal.rerecord:
                played.discarded = True
            if made.done or made.truncated or signal.rerecord:
                played.success = bool(played.success) or signal.success
                return played
            if self._sends_pieces and len(played.transitions) % self._settings.send_every == 0:
                self._send(played)
            observation = step.observation

    def _transition(
        self, observation: Observation, action: Array, step: EnvStep, signal: InterventionSignal
    ) -> Transition:
        """Return the step as executed: a person's success adds to the environment's reward."""
        is_done = signal.success and self._settings.terminate_on_success
        done = step.terminated or signal.failure or is_done
        return Transition(
            observation=observation,
            action=np.asarray(action, np.float32),
            reward=step.reward + float(signal.success),
            next_observation=step.observation,
            done=done,
            truncated=step.truncated and not done,
            complementary_info={
                PENALTY: step.info.discrete_penalty,
                IS_INTERVENTION: float(signal.action is not None),
            },
        )

    @property
    def _sends_pieces(self) -> bool:
        """Whether an episode is sent before it ends: it cannot be discarded any more."""
        return self._settings.lockstep and self._intervention.is_repeatable

    def _send(self, played: EpisodeRecord) -> None:
        """Send the transitions that the learner does not have."""
        rest = played.transitions[played.n_sent :]
        played.n_sent += len(rest)
        self._steps += len(rest)
        self._sent += len(rest)
        if rest:
            self._link.send(rest)

    def _summarise(self, played: EpisodeRecord) -> None:
        """Send the summary of an episode."""
        count, periods = len(played.transitions), np.array(played.periods_s)
        extra = {
            "Policy frequency [Hz]": float(1 / periods.mean()),
            "Policy frequency 90th-p [Hz]": float(1 / np.quantile(periods, 0.9)),
            "Episode length": float(count),
        }
        for name, success in ((SUCCESS, played.success), (SUCCESS_AT_END, played.success_at_end)):
            if success is not None:
                extra[name] = float(success)
        self._link.send_interaction(
            InteractionMessage(
                episodic_reward=played.reward,
                interaction_step=self._steps,
                episode_intervention=played.n_interventions > 0,
                intervention_rate=played.n_interventions / count,
                extra=extra,
            )
        )
