"""The classic loop: all simulators of one task step together until the last one has ended.

Other harnesses work this way. It is the reference that the engine is tested and timed against: both
give the same episodes, bit for bit.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from proctor.benchmarks.base import Benchmark
from proctor.callbacks.base import Callback
from proctor.engine.action_queue import ActionQueue
from proctor.engine.inference import (
    ActionRequest,
    ActionRequestBatch,
    EpisodeAttempt,
    Inference,
    infer_and_wait,
)
from proctor.engine.rollout_settings import RolloutSettings
from proctor.errors import (
    EpisodeStateLost,
    PolicyError,
    RunFolderError,
    WorkerError,
    summarize_traceback,
)
from proctor.evaluation.gym.lerobot_names import from_lerobot_names
from proctor.evaluation.gym.sim_env import SimEnvParts
from proctor.evaluation.gym.vector import LazyVectorEnv
from proctor.features import Array, FeatureKind, Observation
from proctor.policies.base import PolicySpec
from proctor.runs.records import RunProgress
from proctor.types import EpisodeResult, EpisodeSpec


@dataclass
class _Row:
    """One sub-environment's episode: policy state, observation history and queued actions."""

    attempt: EpisodeAttempt
    history: deque[Observation]
    action_queue: ActionQueue
    steps: int = 0
    queue: deque[Array] = field(default_factory=deque)


@dataclass
class Lockstep:
    """Runs episodes task by task, ``n_envs`` at a time."""

    settings: RolloutSettings
    policy: PolicySpec
    inference: Inference
    n_envs: int
    callbacks: Sequence[Callback]
    _steps: int = 0
    _infer_s: float = 0.0
    _batches: int = 0
    _requests: int = 0
    _started_at: float = field(default_factory=time.monotonic)

    def run(self, specs: Sequence[EpisodeSpec]) -> None:
        """Run ``specs``; the environment of one task is closed before the next one opens."""
        benchmark = self.settings.make_benchmark()
        self._action = benchmark.action
        keys = self.policy.inputs or _cheapest(benchmark)
        for task, of_task in groupby(specs, key=lambda spec: spec.task):
            parts = SimEnvParts(self.settings.make_benchmark, task, keys, self.settings.environment)
            episodes = list(of_task)
            n_envs = min(self.n_envs, len(episodes))
            env = LazyVectorEnv(parts, n_envs, use_async_envs=self.settings.flags.use_async_envs)
            try:
                with warnings.catch_warnings():
                    # gymnasium prints at length what it is about to raise
                    warnings.filterwarnings("ignore", ".*ERROR: ")
                    for start in range(0, len(episodes), n_envs):
                        self._roll_out(env, episodes[start : start + n_envs])
            except (PolicyError, EpisodeStateLost, RunFolderError):
                raise
            except Exception as error:
                raise WorkerError(
                    f"a simulator of {task.name} failed in lockstep: "
                    f"{summarize_traceback(str(error))}; "
                    "--eval.scheduler=continuous replaces failed simulators"
                ) from error
            finally:
                env.kill()

    def _roll_out(self, env: LazyVectorEnv, specs: list[EpisodeSpec]) -> None:
        n_obs_steps = self.policy.n_obs_steps
        idle = [None] * (env.num_envs - len(specs))
        raw, _ = env.reset(options={"specs": [*specs, *idle]})
        rows: dict[int, _Row] = {}
        for i, spec in enumerate(specs):
            first = self._observation(raw, i)
            history = deque([first] * n_obs_steps, maxlen=n_obs_steps)
            rows[i] = _Row(EpisodeAttempt(spec), history, ActionQueue(spec, self.settings.latency))
        try:
            while rows:
                self._step(env, rows)
        finally:  # after a failure the policy drops their state too
            for row in rows.values():
                self.inference.end(row.attempt)

    def _step(self, env: LazyVectorEnv, rows: dict[int, _Row]) -> None:
        """Take one step in every environment whose episode has not ended."""
        self._refill(rows)
        actions = np.zeros((env.num_envs, self._action.size), np.float32)
        for i, row in rows.items():
            actions[i] = row.queue.popleft()
        raw, _, terminated, truncated, infos = env.step(actions)
        self._steps += len(rows)
        for i in list(rows):
            rows[i].steps += 1
            rows[i].history.append(self._observation(raw, i))
            if terminated[i] or truncated[i]:
                self.inference.end(rows.pop(i).attempt)
                self._record(infos["result"][i])
        self._send_progress()

    def _refill(self, rows: dict[int, _Row]) -> None:
        """Request chunks for all episodes with an empty queue: usually all of them or none."""
        empty = [row for row in rows.values() if not row.queue]
        if not empty:
            return
        start = time.perf_counter()
        requests = [ActionRequest(row.attempt, row.steps) for row in empty]
        observations = {
            key: np.stack([np.stack([moment[key] for moment in row.history]) for row in empty])
            for key in self.policy.inputs
        }
        answer = infer_and_wait(self.inference, ActionRequestBatch(requests, observations))
        if answer.error is not None:
            raise answer.error
        assert answer.chunks is not None
        for row, chunk in zip(empty, answer.chunks, strict=True):
            row.queue.extend(row.action_queue.next_actions(chunk))
        self._infer_s += time.perf_counter() - start
        self._batches += 1
        self._requests += len(empty)

    def _observation(self, raw: dict[str, Any], i: int) -> Observation:
        return {key: value[i] for key, value in from_lerobot_names(raw, self.policy.inputs).items()}

    def _record(self, result: EpisodeResult) -> None:
        for callback in self.callbacks:
            callback.on_episode_end(result)

    def _send_progress(self) -> None:
        elapsed_s = time.monotonic() - self._started_at
        progress = RunProgress(elapsed_s, self._steps, self._batches, self._requests, self._infer_s)
        for callback in self.callbacks:
            callback.on_progress(progress)


def _cheapest(benchmark: Benchmark) -> tuple[str, ...]:
    """Return the cheapest observation key, for policies without inputs.

    gymnasium's AsyncVectorEnv loses track of its resets if the observation space is empty.
    """
    features = benchmark.features()
    costly = (FeatureKind.VISUAL, FeatureKind.FILM)
    return (min(features, key=lambda key: (features[key].kind in costly, features[key].nbytes)),)
