"""The learner's loop: transitions come in, updates are made, weights go out.

    receive   transitions of all actors -> journal on disk -> acknowledged
    admit     journal -> online buffer; interventions also -> offline buffer
    update    batches of both buffers -> algorithm
    publish   weights -> actors

Free-running, as LeRobot's learner: one update after the other, and new transitions whenever they
arrive. In lockstep: exactly one update after each admitted transition, and new weights after each
episode. Then the weights depend on the settings and the transitions only, so a learner that was
killed and resumed ends with the same bits.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from proctor.errors import TrainingError
from proctor.rl.algorithms.base import Algorithm
from proctor.rl.learner.metrics import EpisodeRecord, MetricMeans, OnlineMetrics
from proctor.rl.link.links import ActorWeights, LearnerEndpoint, ReceivedTransition
from proctor.rl.replay_storage import ReplayCursor, ReplayStorage
from proctor.training.metrics.stopping import StopRequests

_WAIT_S = 0.1
"""Longest wait for transitions, after which a stop request is noticed."""
_MAX_QUEUED = 10_000
"""Transitions that wait for their update; actors wait while there are more."""


@dataclass(frozen=True)
class LearnerSettings:
    """When the learner updates, pushes weights and reports."""

    online_steps: int
    """Environment steps after which the training ends."""
    steps_before_learning: int
    lockstep: bool
    push_interval_s: float
    log_freq: int
    """Updates between reports of metrics."""


@dataclass
class LearnerCounters:
    """What the learner has done; a checkpoint keeps it."""

    environment_steps: int = 0
    """Transitions that the online buffer has got."""
    intervention_steps: int = 0
    episodes: int = 0
    dropped: int = 0
    """Received transitions with a number that float32 cannot hold, or not its square."""
    published_steps: int = 0
    """Environment steps of the weights that the actors have."""
    open_episodes: dict[str, EpisodeRecord] = field(default_factory=dict)
    """The unfinished episode of each actor."""


class LearnerObserver(Protocol):
    """Receives the events of a learner."""

    def on_metrics(self, metrics: OnlineMetrics) -> None:
        """New metrics are available."""

    def on_progress(self, counters: LearnerCounters) -> None:
        """Transitions were admitted."""

    def save_if_due(self, learner: Learner) -> None:
        """Write a checkpoint if one is due."""

    def say(self, text: str) -> None:
        """Show a line."""


class Learner:
    """Trains an algorithm on the transitions of its actors."""

    def __init__(
        self,
        settings: LearnerSettings,
        algorithm: Algorithm,
        storage: ReplayStorage,
        endpoint: LearnerEndpoint,
        counters: LearnerCounters | None = None,
        published: ActorWeights | None = None,
    ) -> None:
        """``counters`` and ``published`` are those of the checkpoint that is resumed."""
        self.settings, self.algorithm, self.storage = settings, algorithm, storage
        self.endpoint = endpoint
        self.counters = counters or LearnerCounters()
        self.published = published
        self._waiting: deque[ReceivedTransition] = deque(storage.unadmitted())
        self._said_dropped = False
        self.starts: list[str] = []
        """Where the episodes of this session started."""
        self._begun_before = self._n_begun
        self._means = MetricMeans()
        self._pushed_at = time.monotonic()

    @property
    def _n_begun(self) -> int:
        return self.counters.episodes + len(self.counters.open_episodes)

    @property
    def unknown_starts(self) -> str | None:
        """How many of the session's episodes have no known start, as text; None: all have one."""
        begun = self._n_begun - self._begun_before
        if begun <= len(self.starts):
            return None
        missing = begun - len(self.starts)
        return f"{missing} of {begun} episodes of online learning have no measured start"

    @property
    def is_done(self) -> bool:
        """Whether the environment steps are spent."""
        return self.counters.environment_steps >= self.settings.online_steps

    @property
    def left_out(self) -> int:
        """Stored transitions that cannot be learned from; the buffers do not get them."""
        waiting = sum(not one.transition.is_learnable for one in self._waiting)
        return self.storage.left_out + waiting

    @property
    def may_update(self) -> bool:
        """Whether there are enough transitions to learn from."""
        enough = self.counters.environment_steps >= self.settings.steps_before_learning
        return enough and self.storage.can_sample()

    @property
    def admitted(self) -> ReplayCursor:
        """How many transitions the buffers have got."""
        return ReplayCursor(self.counters.environment_steps, self.counters.intervention_steps)

    def run(self, observer: LearnerObserver, stop: StopRequests) -> None:
        """Learn until the environment steps are spent, or until a stop is requested."""
        self.endpoint.publish(self.published or self._newest_weights())
        turn = self._lockstep_turn if self.settings.lockstep else self._free_turn
        self._means.restart(self.counters.environment_steps)
        while not self.is_done and stop.requested is None:
            turn(observer)
        if self.is_done:
            self._publish()  # tells actors of other machines that the training has ended
        if self.algorithm.step > 0:
            self._report(observer)

    def _lockstep_turn(self, observer: LearnerObserver) -> None:
        """Admit one transition and make its update."""
        self._receive(0.0 if self._waiting else _WAIT_S, observer)
        if not self._waiting:
            return
        one = self._waiting.popleft()
        ends_episode = self._admit(one)
        if self.may_update:
            self._update(observer)
        if ends_episode:
            self._publish()
        observer.on_progress(self.counters)
        observer.save_if_due(self)

    def _free_turn(self, observer: LearnerObserver) -> None:
        """Admit what has arrived, then make one update."""
        self._receive(0.0 if self.may_update else _WAIT_S, observer)
        if self._waiting:
            while self._waiting and not self.is_done:
                self._admit(self._waiting.popleft())
            observer.on_progress(self.counters)
        if self.may_update:
            self._update(observer)
            if time.monotonic() - self._pushed_at >= self.settings.push_interval_s:
                self._publish()
        observer.save_if_due(self)

    def _receive(self, wait_s: float, observer: LearnerObserver) -> None:
        """Write new transitions to the journal, then acknowledge them."""
        room = _MAX_QUEUED - len(self._waiting)
        received = self.endpoint.take(room, wait_s) if room > 0 else []
        if received:
            usable = [one for one in received if one.transition.is_learnable]
            self.counters.dropped += len(received) - len(usable)
            if len(usable) < len(received) and not self._said_dropped:
                self._said_dropped = True
                actors = {one.actor for one in received if not one.transition.is_learnable}
                observer.say(
                    f"{', '.join(sorted(actors))} sent transitions with numbers that are not "
                    "finite or above 1e18; they are dropped"
                )
            self.storage.write(usable)
            self.endpoint.acknowledge(received)
            self._waiting.extend(usable)
        self.starts += self.endpoint.take_starts()
        for message in self.endpoint.take_interactions():
            self._means.add_interaction(message)

    def _admit(self, one: ReceivedTransition) -> bool:
        """Add a transition to the buffers; return whether it ends an episode."""
        counters, transition = self.counters, one.transition
        is_learnable = self.storage.admit(one)
        counters.environment_steps += 1
        counters.intervention_steps += transition.is_intervention
        episode = counters.open_episodes.setdefault(one.actor, EpisodeRecord())
        if is_learnable:
            episode.add(transition)
        ends = transition.done or transition.truncated
        if ends:
            counters.episodes += 1
            self._means.add_episode(counters.open_episodes.pop(one.actor))
        return ends

    def _update(self, observer: LearnerObserver) -> None:
        self._means.add_update(self.algorithm.update(self.storage.batches(self.algorithm.step)))
        if self.algorithm.step % self.settings.log_freq == 0:
            self._report(observer)

    def _report(self, observer: LearnerObserver) -> None:
        if not self._means.updates:
            return
        metrics = self._means.collect(
            self.counters.environment_steps, self.algorithm.step, self.storage.sizes
        )
        if not metrics.is_finite:
            raise self._diverged("a loss")
        observer.on_metrics(metrics)

    def _publish(self) -> None:
        """Push the newest weights to the actors."""
        self._pushed_at = time.monotonic()
        self.counters.published_steps = self.counters.environment_steps
        self.published = self._newest_weights()
        self.endpoint.publish(self.published)

    def check_weights(self) -> None:
        """Check that all weights are finite, before anything keeps them."""
        state = self.algorithm.state().values()
        if not all(bool(tensor.isfinite().all()) for tensor in state):
            raise self._diverged("a weight")

    def _diverged(self, what: str) -> TrainingError:
        return TrainingError(
            f"{what} is not finite after {self.algorithm.step:,} updates, so the weights are "
            "useless; reduce --algorithm.critic_lr, or check --policy.dataset_stats",
            code="training.not-finite",
        )

    def _newest_weights(self) -> ActorWeights:
        modules = {
            name: {key: tensor.numpy() for key, tensor in tensors.items()}
            for name, tensors in self.algorithm.actor_state().items()
        }
        arrays = [array for module in modules.values() for array in module.values()]
        if not all(np.isfinite(array).all() for array in arrays):
            raise self._diverged("a weight")
        return ActorWeights(modules, self.counters.environment_steps, is_last=self.is_done)
