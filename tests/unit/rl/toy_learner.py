"""A learner with an algorithm of one vector, and transitions to feed it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from proctor.policies.lerobot.processors.processors import Pipeline
from proctor.rl.algorithms.base import Algorithm, TensorTree
from proctor.rl.learner.learner import Learner, LearnerCounters, LearnerSettings
from proctor.rl.learner.metrics import OnlineMetrics
from proctor.rl.learner.session import read_learner, write_learner
from proctor.rl.link.links import InProcessLink, LearnerEndpoint
from proctor.rl.replay.buffer import ReplayBuffer
from proctor.rl.replay_storage import ReplayCursor, ReplayStorage, StorageSettings
from proctor.rl.transitions import Transition, TransitionBatch
from proctor.training.metrics.stopping import StopRequests

STATE = "observation.state"
EPISODE = 7
SETTINGS = LearnerSettings(
    online_steps=40, steps_before_learning=5, lockstep=True, push_interval_s=0.0, log_freq=10
)
STORAGE = StorageSettings(
    keys=(STATE,),
    action_size=2,
    online_capacity=16,
    offline_capacity=8,
    batch_size=4,
    online_ratio=0.5,
    seed=3,
    fixes=frozenset(),
    storage_device="cpu",
    device=torch.device("cpu"),
    memory_bytes=10**9,
)


class ToyAlgorithm(Algorithm):
    """Folds every batch into a vector, so that its bits tell which batches it had, and when."""

    def __init__(self) -> None:
        self.vector = torch.zeros(3)
        self.batch: TransitionBatch | None = None
        self._step = 0

    @property
    def step(self) -> int:
        return self._step

    def update(self, batches: Iterator[TransitionBatch]) -> dict[str, float]:
        self.batch = next(batches)
        rows = self.batch.observation[STATE] + self.batch.next_observation[STATE] * 0.5
        self.vector = torch.tanh(self.vector * 0.9 + rows.mean(0) * 0.01)
        self._step += 1
        return {"loss_critic": float(self.vector.sum())}

    def actor_state(self) -> dict[str, TensorTree]:
        return {"policy": {"vector": self.vector.clone()}}

    def state(self) -> TensorTree:
        return {"vector": self.vector.clone(), "step": torch.tensor(self._step)}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        self.vector, self._step = state["vector"].clone(), int(state["step"])


class ObserverLog:
    """Records a learner's events; stops it after ``stop_at`` environment steps."""

    def __init__(self, stop: StopRequests | None = None, stop_at: int | None = None) -> None:
        self.metrics: list[OnlineMetrics] = []
        self.said: list[str] = []
        self._stop, self._stop_at = stop, stop_at

    def on_metrics(self, metrics: OnlineMetrics) -> None:
        self.metrics.append(metrics)

    def on_progress(self, counters: LearnerCounters) -> None:
        if self._stop is not None and counters.environment_steps == self._stop_at:
            self._stop.requested = signal.SIGINT

    def save_if_due(self, learner: Learner) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)


def five_demonstrations(buffer: ReplayBuffer) -> None:
    """Fill a buffer with five transitions."""
    for index in range(5):
        buffer.add(transition(1000 + index))


def transition(index: int, *, intervention: bool = False) -> Transition:
    """Return the transition ``index`` of an endless walk; every seventh ends an episode."""
    now, after = (np.full(3, number, np.float32) for number in (index, index + 1))
    info = {"is_intervention": float(intervention)}
    ends = index % EPISODE == EPISODE - 1
    return Transition({STATE: now}, np.zeros(2, np.float32), 1.0, {STATE: after}, ends, False, info)


def open_learner(
    folder: Path,
    checkpoint: Path | None = None,
    *,
    settings: LearnerSettings = SETTINGS,
    fill_offline: Callable[[ReplayBuffer], None] | None = None,
) -> Learner:
    """Return a learner in ``folder``: a new one, or the one of ``checkpoint``."""
    algorithm = ToyAlgorithm()
    counters, published, admitted = None, None, ReplayCursor()
    if checkpoint is not None:
        counters, published = read_learner(checkpoint, algorithm)
        admitted = ReplayCursor(counters.environment_steps, counters.intervention_steps)
    storage = ReplayStorage(folder, STORAGE, Pipeline("none", ()), fill_offline, admitted)
    endpoint = LearnerEndpoint(storage.positions)
    return Learner(settings, algorithm, storage, endpoint, counters, published)


def feed(learner: Learner, count: int, *, interventions: range = range(0)) -> None:
    """Send the first ``count`` transitions, again if the learner has them."""
    link = InProcessLink(learner.endpoint, "actor-0")
    position = link.begin(replay=True)
    sent = range(position.transitions, count)
    link.send([transition(index, intervention=index in interventions) for index in sent])


def run(learner: Learner, *, stop_at: int | None = None) -> ObserverLog:
    """Run a learner to its end, or until ``stop_at`` environment steps."""
    stop = StopRequests()
    recorder = ObserverLog(stop, stop_at)
    learner.run(recorder, stop)
    return recorder


def save(learner: Learner, folder: Path) -> Path:
    """Write a checkpoint as a session does."""
    folder.mkdir()
    learner.storage.sync()
    write_learner(learner, folder)
    return folder


def free_running(steps: int) -> LearnerSettings:
    """Return the settings of a learner that does not wait for transitions."""
    return replace(SETTINGS, lockstep=False, online_steps=steps)
