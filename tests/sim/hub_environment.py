"""What a Hub repository offers: make_env. It leaves a mark when it runs, if it is told where."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

import tests.sim.small_gym  # noqa: F401  registers the environment

if "PROCTOR_TEST_MARK" in os.environ:
    # Of a fork server that a test before began, and whose folder is gone, it is not asked for.
    with contextlib.suppress(FileNotFoundError):
        Path(os.environ["PROCTOR_TEST_MARK"]).touch()


class Opaque(VectorWrapper):
    """Hides that the vector environment inside is one that could be taken apart."""


def make_env(n_envs: int = 1, use_async_envs: bool = False, cfg: Any = None) -> Any:
    def vector(mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
        one = [lambda: gymnasium.make("proctor/Reach-v0", goal=getattr(cfg, "goal", 1.0))]
        return SyncVectorEnv(one * n_envs, autoreset_mode=mode)

    if getattr(cfg, "keeping", False):
        return gymnasium.make("proctor/Keeping-v0")
    return {
        "reach": {
            0: vector(AutoresetMode.NEXT_STEP),
            1: Opaque(vector(AutoresetMode.NEXT_STEP)),
            2: Opaque(vector(AutoresetMode.SAME_STEP)),
        }
    }
