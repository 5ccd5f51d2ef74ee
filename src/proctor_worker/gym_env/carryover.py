"""Detection of environments that carry state from one episode into the next.

Some do (BipedalWalker keeps contacts of bodies that it has destroyed). The same seed then gives
other rewards in a used environment, and an episode depends on the episodes before it.
"""

import hashlib
import math
import time
from enum import Enum
from typing import Any, Callable, Optional, Tuple

from proctor_worker.gym_env.spaces import flatten_numbers
from proctor_worker.rng import SEED_BEFORE_RESET, seed_global_rng

_MOST_STEPS = 100
_ENOUGH_S = 5.0
"""Seconds for the first episode: a slow environment runs fewer steps."""
_QUICK_S, _ROUNDS = 0.5, 12
"""An environment that runs these steps within ``_QUICK_S`` gets ``_ROUNDS`` episodes, since state
may show late (BipedalWalkerHardcore: after 8 episodes)."""


class Carryover(Enum):
    """Whether an environment carries state from one episode into the next."""

    NONE = "none"
    CARRIES_OVER = "carries over"
    """A used environment gives another episode for the same seed, a new one the same."""
    UNSTEADY = "unsteady"
    """Even two new environments give different episodes for the same seed."""


def detect_carryover(
    fresh: Any, open_another: Callable[[], Any], horizon: Optional[int]
) -> Carryover:
    """Run one seed in a ``fresh`` environment, and again after episodes of other seeds.

    If the two differ, close the environment and run the seed in another one. Otherwise ``fresh``
    stays open.
    """
    began = time.monotonic()
    first, steps = _episode_hash(fresh, 0, min(horizon or _MOST_STEPS, _MOST_STEPS), _ENOUGH_S)
    rounds = _ROUNDS if time.monotonic() - began < _QUICK_S else 1
    if all(_same_after(fresh, seed, steps, first) for seed in range(1, rounds + 1)):
        return Carryover.NONE
    fresh.close()
    seed_global_rng(SEED_BEFORE_RESET)
    another = open_another()
    again, _ = _episode_hash(another, 0, steps)
    another.close()
    return Carryover.CARRIES_OVER if again == first else Carryover.UNSTEADY


def _same_after(env: Any, seed: int, steps: int, first: str) -> bool:
    """Whether seed 0 gives the episode ``first`` again after an episode of ``seed``."""
    _episode_hash(env, seed, steps)
    return _episode_hash(env, 0, steps)[0] == first


def _episode_hash(
    env: Any, seed: int, most_steps: int, most_s: float = math.inf
) -> Tuple[str, int]:
    """Run random actions as an evaluation would; return a hash of the episode.

    Also return the number of steps that there was time for.
    """
    seed_global_rng(seed)
    env.action_space.seed(seed)
    observation, _ = env.reset(seed=seed)
    digest = hashlib.blake2b(flatten_numbers(env.observation_space, observation).tobytes())
    began, steps, ended = time.monotonic(), 0, False
    while not ended and steps < most_steps and time.monotonic() - began < most_s:
        try:
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        except Exception as error:  # noqa: BLE001  an error should occur again with the same seed
            digest.update(repr(error).encode())
            break
        digest.update(repr((float(reward), bool(terminated), bool(truncated))).encode())
        digest.update(flatten_numbers(env.observation_space, observation).tobytes())
        steps, ended = steps + 1, bool(terminated or truncated)
    return digest.hexdigest(), most_steps if ended else steps
