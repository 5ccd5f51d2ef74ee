"""One simulator as a gymnasium environment, with the names of LeRobot's environments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from proctor.benchmarks.base import Benchmark, Sim, display_keys
from proctor.benchmarks.guarded_sim import GuardedSim
from proctor.benchmarks.training_starts import seeded_spec
from proctor.engine.failures import failure_cause, format_traceback, original_error
from proctor.engine.worker.episode import Episode
from proctor.errors import WorkerError, printable_text
from proctor.evaluation.gym.lerobot_names import observation_space, to_lerobot_names
from proctor.features import Array, FeatureKind
from proctor.system.global_rng import SEED_BEFORE_RESET, IsolatedRng, seed_global_rng
from proctor.types import EpisodeSpec, Task


@dataclass(frozen=True)
class SimEnvParts:
    """What a sub-environment is made from; picklable."""

    make_benchmark: Callable[[], Benchmark]
    task: Task
    keys: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


class SimEnv(gymnasium.Env[Any, Any]):
    """A benchmark's task as a gymnasium environment; the simulator opens at the first reset.

    ``reset(options={"specs": [...]})`` takes the spec at this environment's position and runs that
    episode only. The automatic reset of a vector environment then parks the environment: it neither
    steps nor renders until it receives another spec.
    """

    def __init__(self, parts: SimEnvParts, position: int = 0, *, alone: bool = False) -> None:
        """``alone`` says that this process runs nothing else."""
        self._parts = parts
        self._rng: IsolatedRng | None = None if alone else IsolatedRng()
        self._position = position
        self._benchmark = parts.make_benchmark()
        features = self._benchmark.features()
        self._features = {key: features[key] for key in parts.keys}
        self.task_description = parts.task.instruction
        self.task = parts.task.name
        self._max_episode_steps = parts.task.max_steps
        self._camera = next(iter(display_keys(features)), None)
        modes = [] if self._camera is None else ["rgb_array"]
        self.metadata = {"render_modes": modes, "render_fps": parts.task.fps}
        self.render_mode = modes[0] if modes else None
        self.observation_space = observation_space(self._features)
        low, high = self._benchmark.action.bounds
        self.action_space = spaces.Box(low.copy(), high.copy(), dtype=np.float32)
        self._sim: Sim | None = None
        self._episode: Episode | None = None
        self._only_given_specs = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start the episode that ``seed`` or ``options["specs"]`` determines."""
        super().reset(seed=seed)
        spec = self._next_spec(seed, options or {})
        if spec is None:
            self._episode = None
            return self._blank_observation(), self._failure_info()
        with self._readable_errors(), self._isolated_rng():
            self._begin(spec)
            return self._observe(), self._failure_info()

    def _begin(self, spec: EpisodeSpec) -> None:
        if self._sim is None:
            seed_global_rng(SEED_BEFORE_RESET)
            self._sim = GuardedSim(self._benchmark.make_sim(spec.task), self._benchmark.features())
        self._episode = Episode(self._sim, spec, self._benchmark.action)
        self._episode.reset()

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take one step and observe everything, as gymnasium environments do."""
        if self._episode is None:
            return self._blank_observation(), 0.0, False, False, self._failure_info()
        with self._readable_errors(), self._isolated_rng():
            return self._step_or_diverge(self._episode, action)

    def _step_or_diverge(
        self, episode: Episode, action: Array
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        try:
            return self._step(episode, action)
        except Exception as error:
            if not (self._only_given_specs and self._fails_again(episode, error)):
                raise
            result = episode.diverged(self._position)
            result.error, result.attempts = format_traceback(error), 2
            self._discard()
            return (
                self._blank_observation(),
                0.0,
                True,
                False,
                {**self._failure_info(), "result": result},
            )

    def _step(
        self, episode: Episode, action: Array
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        step = episode.step(action)
        observation = self._observe()
        info: dict[str, Any] = {}
        if step.success is not None:
            info["is_success"] = bool(step.success)
        if episode.ended:
            info["result"] = episode.result(self._position)
        terminated = bool(step.terminated)
        truncated = episode.ended and not terminated
        return observation, float(step.reward), terminated, truncated, info

    def _failure_info(self) -> dict[str, Any]:
        """Return the info of a step without success; empty if success is unknown."""
        return {"is_success": False} if self._benchmark.judged else {}

    def _fails_again(self, broken: Episode, error: Exception) -> bool:
        """Replay the episode on a new simulator; return whether it fails there in the same way.

        If so, the policy caused the failure (see ``engine.failures``). Otherwise the error stands:
        this environment cannot replace a simulator in the middle of an episode.
        """
        cause = failure_cause(error)
        if cause is None:
            return False
        self._discard()
        self._begin(broken.spec)
        assert self._episode is not None
        try:
            for action in broken.actions:
                self._step(self._episode, action)
        except Exception as second:  # noqa: BLE001  compared; the first error is reported
            return (self._episode.given, failure_cause(second)) == (broken.given, cause)
        return False

    def render(self) -> Array | None:
        """Return a video frame, or the first camera's image; None without either."""
        if self._camera is None:
            return None
        if self._sim is None:
            return np.zeros(self._benchmark.features()[self._camera].shape, np.uint8)
        with self._isolated_rng():
            return self._sim.observe([self._camera])[self._camera]

    def close(self) -> None:
        """Close the simulator."""
        if self._sim is not None:
            self._sim.close()
        self._sim = self._episode = None

    def _discard(self) -> None:
        """Drop a simulator that failed."""
        with contextlib.suppress(Exception):  # its failure has been reported
            self.close()
        self._sim = self._episode = None

    @contextlib.contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Make errors printable if a run waits for the episode; else raise the simulator's own.

        gymnasium prints the error of a sub-environment, whatever its length and content.
        """
        try:
            yield
        except Exception as error:
            if self._only_given_specs:
                raise WorkerError(printable_text(format_traceback(error))) from None
            raised = original_error(error)  # users of the environment expect its own exceptions
            if raised is error:
                raise
            raise raised from None

    def _isolated_rng(self) -> contextlib.AbstractContextManager[None]:
        """Keep this process's global random generators unchanged."""
        return contextlib.nullcontext() if self._rng is None else self._rng.activated()

    def _next_spec(self, seed: int | None, options: dict[str, Any]) -> EpisodeSpec | None:
        if "specs" in options:
            self._only_given_specs = True
            spec: EpisodeSpec | None = options["specs"][self._position]
            return spec
        if seed is None and self._only_given_specs:
            return None
        self._only_given_specs = False
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        return seeded_spec(self._benchmark, self._parts.task, seed)

    def _observe(self) -> dict[str, Any]:
        assert self._sim is not None
        assert self._episode is not None
        self._episode.renders += sum(f.kind is FeatureKind.VISUAL for f in self._features.values())
        return to_lerobot_names(self._sim.observe(self._parts.keys))

    def _blank_observation(self) -> dict[str, Any]:
        return to_lerobot_names({k: np.zeros(f.shape, f.dtype) for k, f in self._features.items()})
