"""Players of gym_hil's pick: simulators with the scripted expert, here or in other processes.

A player executes one request at a time. ``begin`` and ``step`` send a request, ``receive`` waits
for its result: several players simulate while a network learns.
"""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol

import numpy as np

from proctor.benchmarks.gym_hil.benchmark import GymHil, GymHilConfig
from proctor.features import Array, Expert, Observation
from proctor.rl.environment.environments import SimOnlineEnv

_CONTINUOUS = 3
"""Numbers of an action that are motion; the last one is the gripper's command."""
_CLOSE_S = 10.0


class EpisodeStart(NamedTuple):
    """Which episode to begin, and from which step on the expert drives (None: never)."""

    seed: int
    expert_from: int | None = None
    noise: float = 0.0
    """Standard deviation of noise on the expert's motion, in actions."""


class Played(NamedTuple):
    """An observation, and the step that led to it; the first one of an episode has no step."""

    observation: Observation
    action: Array | None = None
    by_expert: bool = False
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool = False

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


class Player(Protocol):
    """One simulator."""

    def begin(self, start: EpisodeStart) -> None:
        """Begin an episode."""

    def step(self, action: Array | None) -> None:
        """Execute ``action``, or the expert's if it drives."""

    def receive(self) -> Played:
        """Return the result of the last request."""

    def close(self) -> None:
        """Free the simulator."""


class LocalPlayer:
    """A simulator of this process."""

    def __init__(self, config: GymHilConfig) -> None:
        benchmark = GymHil(config)
        self.env = SimOnlineEnv(benchmark, benchmark.tasks()[0])
        self._start = EpisodeStart(0)
        self._rng = np.random.default_rng(0)
        self._expert: Expert | None = None
        self._step = 0
        self._played: Played | None = None

    def begin(self, start: EpisodeStart) -> None:
        """Begin an episode."""
        self._start, self._expert, self._step = start, None, 0
        self._rng = np.random.default_rng(start.seed)
        self._played = Played(self.env.reset(start.seed))

    def step(self, action: Array | None) -> None:
        """Execute ``action``, or the expert's if it drives."""
        if self._step == self._start.expert_from:
            self._expert = self.env.expert()
        self._step += 1
        executed = action if self._expert is None else self._expert_action(self._expert)
        assert executed is not None, "the policy drives, and its action is missing"
        made = self.env.step(executed)
        self._played = Played(
            made.observation,
            np.asarray(executed, np.float32),
            self._expert is not None,
            made.reward,
            made.terminated,
            made.truncated,
            bool(made.info.success),
        )

    def receive(self) -> Played:
        """Return the result of the last request."""
        assert self._played is not None
        return self._played

    def close(self) -> None:
        """Close the simulator."""
        self.env.close()

    def _expert_action(self, expert: Expert) -> Array:
        action = expert(self.env.privileged())
        action[:_CONTINUOUS] += self._start.noise * self._rng.standard_normal(_CONTINUOUS)
        return np.clip(action, *self.env.action.bounds)


class PlayerProcess:
    """A simulator in a process of its own."""

    def __init__(self, config: GymHilConfig) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(config, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, start: EpisodeStart) -> None:
        """Begin an episode."""
        self._pipe.send(start)

    def step(self, action: Array | None) -> None:
        """Execute ``action``, or the expert's if it drives."""
        self._pipe.send(_Action(action))

    def receive(self) -> Played:
        """Wait for the result of the last request."""
        played = self._pipe.recv()
        assert isinstance(played, Played)
        return played

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(_CLOSE_S)
        self._process.terminate()


@dataclass(frozen=True)
class _Action:
    value: Array | None


def _serve(config: GymHilConfig, pipe: Connection) -> None:
    """Execute requests until the other side closes the pipe."""
    player = LocalPlayer(config)
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            player.close()
            return
        if isinstance(request, EpisodeStart):
            player.begin(request)
        else:
            player.step(request.value)
        pipe.send(player.receive())


def make_players(config: GymHilConfig, processes: int) -> list[Player]:
    """Return ``processes`` players in processes of their own, or one here if 0."""
    if not processes:
        return [LocalPlayer(config)]
    return [PlayerProcess(config) for _ in range(processes)]
