"""Environments of gym before gymnasium: four values a step, a method ``seed``, ``render(mode)``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor_worker.records import Refused
from proctor_worker.worlds.gym import GymWorld, make

GYM = '''
"""The parts of gym 0.21 that the adapter uses, with one environment."""
import numpy as np
from gymnasium import spaces

__version__ = "0.21.0"


class error:
    class Error(Exception):
        pass


class OldEnvironment:
    metadata = {"render.modes": ["rgb_array"], "render_fps": 20}
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    spec = None

    @property
    def unwrapped(self):
        return self

    def seed(self, seed=None):
        self.rng = np.random.RandomState(seed)

    def reset(self):
        self.at = self.rng.uniform(-1, 1, 2).astype(np.float32)
        return self.at

    def step(self, action):
        self.at = self.at + np.float32(0.1 if action else -0.1)
        return self.at, float(self.at[0]), bool(self.at[0] > 1), {"is_success": self.at[0] > 1}

    def render(self, mode="human"):
        return np.zeros((4, 6, 3), np.uint8) if mode == "rgb_array" else None

    def close(self):
        pass


class TimeLimit:
    def __init__(self, env):
        self.env = env


class Spec:
    max_episode_steps = 30
    entry_point = OldEnvironment


def spec(name):
    if name != "Old-v0":
        raise error.Error(name)
    return Spec()


def make(name):
    return TimeLimit(OldEnvironment())


class envs:
    class registry:
        env_specs = {"Old-v0": Spec()}
'''


@pytest.fixture
def old_gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package ``gym`` of an old interpreter."""
    (tmp_path / "gym").mkdir()
    (tmp_path / "gym" / "__init__.py").write_text(GYM)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "gym", raising=False)
    import gym  # type: ignore[import-not-found]

    yield gym
    sys.modules.pop("gym", None)


def old_world(**changed: Any) -> GymWorld:
    config = {"id": "Old-v0", "kwargs": {}, "success": "info.is_success", "episode_length": None}
    return make({**config, "carryover": "none", **changed})


def test_an_environment_of_old_gym_is_described(old_gym: Any) -> None:
    described = old_world().describe()
    assert described["tasks"] == [
        {"suite": "Old-v0", "task_id": 0, "instruction": None, "horizon": 30, "fps": 20}
    ]
    assert described["features"]["observation.film"]["shape"] == (4, 6, 3)
    assert (described["carryover"], described["notes"]) == ("none", [])
    assert "gym" in " ".join(described["distributions"])


def test_its_episodes_are_those_of_the_environment_itself(old_gym: Any) -> None:
    sim = old_world().open({"suite": "Old-v0", "task_id": 0})
    env = old_gym.make("Old-v0").env
    for seed in (3, 4, 3):
        sim.reset({"seed": seed, "index": 0, "init_state": None, "max_steps": 30})
        env.seed(seed)
        assert np.array_equal(sim.physics(), env.reset())
        done = False
        while not done:
            observation, reward, done, _ = env.step(1)
            assert sim.step(np.array([0.0, 1.0])) == (reward, done, done, None)
            assert np.array_equal(
                sim.observe(["observation.state"])["observation.state"], observation
            )
    sim.close()


def test_an_unknown_environment_of_old_gym_is_refused(old_gym: Any) -> None:
    with pytest.raises(Refused) as refused:
        old_world(id="Odl-v0").describe()
    assert refused.value.code == "env.not-found"
