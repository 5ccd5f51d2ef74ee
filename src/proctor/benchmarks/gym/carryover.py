"""Whether an environment carries something of an episode into the next one, found out by playing.

Some do (BipedalWalker keeps contacts of the bodies it has destroyed): the same seed then gives
other rewards in a used environment, and an episode depends on who played before it.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from proctor.system.global_rng import SEED_BEFORE_RESET, seed_global_rng

_MOST_STEPS = 100
_ENOUGH_S = 5.0
"""A slow environment is played for as many steps as fit into this."""
_QUICK_S, _ROUNDS = 0.5, 12
"""One that plays these steps so quickly is played so often: what it keeps may show late
(BipedalWalkerHardcore: after 8 episodes)."""


class Carryover(Enum):
    """What an environment keeps of earlier episodes."""

    NONE = "none"
    CARRIES_OVER = "carries over"
    """A used environment plays a seed differently, a fresh one does not."""
    UNSTEADY = "unsteady"
    """Even two fresh ones play the same seed differently."""


def detect_carryover(fresh: Any, open_another: Callable[[], Any], horizon: int | None) -> Carryover:
    """Play one seed in an environment that is ``fresh``, and again after others have been played.

    Only where they differ is another one opened, after this one is closed. Otherwise it stays open.
    """
    began = time.monotonic()
    first, steps = _course(fresh, 0, min(horizon or _MOST_STEPS, _MOST_STEPS), _ENOUGH_S)
    rounds = _ROUNDS if time.monotonic() - began < _QUICK_S else 1
    if all(_forgets(fresh, seed, steps, first) for seed in range(1, rounds + 1)):
        return Carryover.NONE
    fresh.close()
    seed_global_rng(SEED_BEFORE_RESET)
    another = open_another()
    again, _ = _course(another, 0, steps)
    another.close()
    return Carryover.CARRIES_OVER if again == first else Carryover.UNSTEADY


def _forgets(env: Any, seed: int, steps: int, first: str) -> bool:
    """Whether seed 0 is played as at ``first`` after another seed."""
    _course(env, seed, steps)
    return _course(env, 0, steps)[0] == first


def _course(env: Any, seed: int, most_steps: int, most_s: float = math.inf) -> tuple[str, int]:
    """Play random actions as an evaluation would; return a hash of all that came.

    With it comes how many steps there was time for.
    """
    from proctor.benchmarks.gym.spaces import flatten_numbers

    seed_global_rng(seed)
    env.action_space.seed(seed)
    seen, _ = env.reset(seed=seed)
    digest = hashlib.blake2b(flatten_numbers(env.observation_space, seen).tobytes())
    began, steps, ended = time.monotonic(), 0, False
    while not ended and steps < most_steps and time.monotonic() - began < most_s:
        try:
            seen, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        except Exception as error:  # noqa: BLE001  whatever an action does to it, it should do again
            digest.update(repr(error).encode())
            break
        digest.update(repr((float(reward), bool(terminated), bool(truncated))).encode())
        digest.update(flatten_numbers(env.observation_space, seen).tobytes())
        steps, ended = steps + 1, bool(terminated or truncated)
    return digest.hexdigest(), most_steps if ended else steps
