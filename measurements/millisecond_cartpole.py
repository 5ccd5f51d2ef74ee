"""CartPole whose steps take a millisecond in every interpreter, as with physics in C.

A world of ``foreign_worker``, also imported by Python 3.8.
"""

import time

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

_STEP_S = 0.001


class MillisecondCartPole(CartPoleEnv):
    """CartPole that computes until a millisecond has passed."""

    def step(self, action):  # type: ignore[no-untyped-def]
        """Step, and wait without sleeping."""
        end = time.perf_counter() + _STEP_S
        result = super().step(action)  # type: ignore[no-untyped-call, unused-ignore]
        while time.perf_counter() < end:
            pass
        return result


gymnasium.register(
    "MillisecondCartPole-v0", f"{__name__}:MillisecondCartPole", max_episode_steps=500
)
