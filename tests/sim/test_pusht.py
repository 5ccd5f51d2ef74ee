"""PushT's world beside gym-pusht's own environment."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("gym_pusht")

from gym_pusht.envs.pusht import PushTEnv

from proctor.benchmarks.pusht.sim import PushTSim
from proctor.features import FILM, IMAGE, Array
from proctor.types import EpisodeSpec, Task

pytestmark = pytest.mark.sim
TASK = Task("pusht", 0, "PushT-v0", "", 300, 10)


class TheirSim(PushTSim):
    """gym-pusht's environment as it is, behind Proctor's interface."""

    def __init__(self) -> None:
        self._env = PushTEnv(
            obs_type="environment_state_agent_pos", visualization_height=384,
            visualization_width=384,
        )  # fmt: skip


def pushes(sim: PushTSim, seed: int) -> list[tuple[float, Array, Array, Array]]:
    """Push near the block; return rewards, states and pixels."""
    sim.reset(EpisodeSpec(TASK, 0, seed))
    rng, found = np.random.default_rng(seed), []
    for _ in range(60):
        near = [sim.coordinates()["block x"], sim.coordinates()["block y"]]
        step = sim.step(np.asarray(near + rng.normal(0, 60, 2), np.float32))
        seen = sim.observe((IMAGE, FILM))
        found.append((step.reward, sim.physics(), seen[IMAGE], seen[FILM]))
    sim.close()
    return found


def test_states_and_pixels_are_gym_pushts_and_rewards_depend_on_no_memory_address() -> None:
    ours, again = (pushes(PushTSim((96, 96), (384, 384)), 1003) for _ in range(2))
    theirs = pushes(TheirSim(), 1003)
    assert any(reward for reward, *_ in ours)
    for mine, same, their in zip(ours, again, theirs, strict=True):
        assert mine[0] == same[0]
        assert mine[0] == pytest.approx(their[0], rel=1e-12)
        for array, other in zip(mine[1:], their[1:], strict=True):
            np.testing.assert_array_equal(array, other)
