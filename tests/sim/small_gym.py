"""A registered environment with everything the adapter knows, that takes no time."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Reach(gymnasium.Env[Any, Any]):
    """A point on a line that must come near 1; bounds differ by dimension. Counts its pictures."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}
    rendered = 0

    def __init__(self, render_mode: str | None = None, goal: float = 1.0, silent: bool = False):
        self.render_mode, self._goal, self._silent = render_mode, goal, silent
        self.observation_space = spaces.Dict(
            {
                "pixels": spaces.Dict({"top": spaces.Box(0, 255, (8, 6, 3), np.uint8)}),
                "agent_pos": spaces.Box(-10, 10, (1,), np.float64),
                "environment_state": spaces.Box(-10, 10, (2,), np.float64),
                "touch": spaces.Discrete(3),
            }
        )
        self.action_space = spaces.Box(
            np.array([-0.5, 0.0], np.float32), np.array([0.5, 1.0], np.float32)
        )
        self.given: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._place = float(self.np_random.uniform(-1, 1))
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.given.append(action)
        self._place += float(action[0]) + 0.05 * float(action[1]) + 0.01 * self.np_random.normal()
        near = abs(self._place - self._goal) < 0.2
        info = {} if self._silent else {"is_success": near, "score": {"near": near}}
        return self._seen(), -abs(self._place - self._goal), near, False, info

    def render(self) -> Any:
        Reach.rendered += 1
        return np.full((10, 12, 3), int(abs(self._place) * 50) % 256, np.uint8)

    def _seen(self) -> dict[str, Any]:
        shade = int(abs(self._place) * 1000) % 256
        return {
            "pixels": {"top": np.full((8, 6, 3), shade, np.uint8)},
            "agent_pos": np.array([self._place]),
            "environment_state": np.array([self._place, self._goal]),
            "touch": np.int64(abs(self._place) * 3 % 3),
        }


gymnasium.register("proctor/Reach-v0", Reach, max_episode_steps=15)


class HalfJudged(Reach):
    """Says of every other episode only whether it was solved."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._silent = bool(seed is not None and seed % 2)
        return super().reset(seed=seed, options=options)


gymnasium.register("proctor/HalfJudged-v0", HalfJudged, max_episode_steps=15)


class Careless(gymnasium.Env[Any, Any]):
    """Draws from the global generators, at its making, its reset and every step."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-100, 100, (1,), np.float64)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self._made_with = np.random.uniform()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._place = self._made_with + random.random()
        return np.array([self._place]), {}

    def step(self, action: Any) -> Any:
        self._place += np.random.normal() + random.random()
        return np.array([self._place]), -abs(self._place), False, False, {"is_success": False}


gymnasium.register("proctor/Careless-v0", Careless, max_episode_steps=5)


class Keeping(gymnasium.Env[Any, Any]):
    """Does not forget how far it went; where ``all_over``, none of its kind does."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    opened = went_all_over = 0

    def __init__(
        self, render_mode: str | None = None, all_over: bool = False, shows_after: int = 0
    ) -> None:
        Keeping.opened += 1
        self._shows_after = shows_after
        self.render_mode, self._all_over = render_mode, all_over
        self.observation_space = spaces.Box(-1e9, 1e9, (1,), np.float64)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self._went = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        kept = Keeping.went_all_over if self._all_over else self._went
        kept *= kept > self._shows_after
        self._place = float(self.np_random.uniform()) + kept
        return np.array([self._place]), {}

    def step(self, action: Any) -> Any:
        self._went += 1
        Keeping.went_all_over += 1
        self._place += float(action[0])
        return np.array([self._place]), self._place, False, False, {"is_success": False}


gymnasium.register("proctor/Keeping-v0", Keeping, max_episode_steps=5)


class Small(gymnasium.Env[Any, Any]):
    """Counts its steps; subclasses are odd in one way each."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 5}
    ends_after = 0

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-100, 100, (1,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self._start = 0, float(self.np_random.uniform())
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        truncated = 0 < self.ends_after <= self.steps
        return self.seen(), 1.0, False, truncated, {"success": self.steps == 2}

    def seen(self) -> Any:
        return np.array([self._start + self.steps])

    def render(self) -> Any:
        return np.full((4, 6, 3), self.steps, np.uint8)


class Mission(spaces.Space[str]):
    """A space of texts that gymnasium does not know, as MiniGrid has one."""

    def __init__(self) -> None:
        super().__init__(dtype=str)  # type: ignore[arg-type]


class Worded(Small):
    """Shows a text beside its numbers; ``varied``: another in every episode."""

    def __init__(self, render_mode: str | None = None, varied: bool = False) -> None:
        super().__init__(render_mode)
        self._varied = varied
        numbers = spaces.Box(-100, 100, (1,), np.float64)
        texts = spaces.Dict({"hint": spaces.Text(20)})
        self.observation_space = spaces.Dict({"a": numbers, "mission": Mission(), "more": texts})

    def seen(self) -> Any:
        word = f"door {self._start}" if self._varied else "the door"
        return {"a": super().seen(), "mission": f"open {word}", "more": {"hint": "quickly"}}


class Ending(Small):
    """Ends itself after 7 steps, and nobody was told."""

    ends_after = 7


class Saying(Small):
    """Says how long it lasts, as MiniGrid does."""

    max_steps = 9


class Unseen(Small):
    """Cannot be drawn here."""

    def render(self) -> Any:
        raise RuntimeError("no screen\nat all")


class Broken(Small):
    """Raises with a text of several lines."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise ValueError("no world:\n  file is missing\n\nsee the manual")


def made_by_a_function(**kwargs: Any) -> Small:
    return Small(**kwargs)


gymnasium.register("proctor/Worded-v0", Worded, max_episode_steps=5)
gymnasium.register("proctor/Ending-v0", Ending)
gymnasium.register("proctor/Saying-v0", Saying)
gymnasium.register("proctor/Endless-v0", Small)
gymnasium.register("proctor/Unseen-v0", Unseen, max_episode_steps=5)
gymnasium.register("proctor/Broken-v0", Broken, max_episode_steps=5)
gymnasium.register("proctor/Function-v0", made_by_a_function, max_episode_steps=5)
