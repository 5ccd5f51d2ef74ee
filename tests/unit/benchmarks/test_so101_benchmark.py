"""The benchmark so101: contract, determinism, expert, and flags."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from proctor.benchmarks.base import LocatedSim
from proctor.benchmarks.so101.benchmark import ObsType, So101, So101Config
from proctor.benchmarks.so101.expert import So101Expert
from proctor.benchmarks.so101.kinematics import CHANNELS
from proctor.benchmarks.so101.sim import So101Sim
from proctor.benchmarks.so101.world import SCENE_STATE_NAMES
from proctor.cli import main
from proctor.errors import UsageError
from proctor.features import ENVIRONMENT_STATE, IMAGES, STATE
from proctor.types import EpisodeSpec

pytest.importorskip("mujoco")

_STATES = So101Config(obs_type=ObsType.STATE)


@pytest.fixture(scope="module")
def sim() -> So101Sim:
    return So101Sim((48, 64))


def _play(sim: So101Sim, seed: int, noise_deg: float = 0.0) -> tuple[bool, list[np.ndarray]]:
    """Play the expert with noise on its actions; return the success and the physics states."""
    (task,) = So101(_STATES).tasks()
    expert, rng = So101Expert(), np.random.default_rng(seed)
    sim.reset(EpisodeSpec(task, seed, seed))
    states = []
    for _ in range(task.max_steps):
        action = expert(sim.observe([STATE, ENVIRONMENT_STATE]))
        result = sim.step(action + rng.normal(0.0, noise_deg, action.shape))
        states.append(sim.physics())
        if result.terminated:
            return bool(result.success), states
    return False, states


def test_expert_solves_the_task(sim: So101Sim) -> None:
    assert all(_play(sim, seed)[0] for seed in range(20))


def test_expert_recovers_from_disturbances(sim: So101Sim) -> None:
    solved = [_play(sim, seed, noise_deg=0.5)[0] for seed in range(10)]
    assert sum(solved) >= 9


def test_expert_moves_within_its_speed(sim: So101Sim) -> None:
    (task,) = So101(_STATES).tasks()
    sim.reset(EpisodeSpec(task, 3, 3))
    expert = So101Expert()
    for _ in range(70):
        observation = sim.observe([STATE, ENVIRONMENT_STATE])
        action = expert(observation)
        assert np.abs(action - observation[STATE])[:5].max() <= 2.5 + 1e-4
        sim.step(action)


def test_equal_seeds_give_equal_episodes(sim: So101Sim) -> None:
    first, again = _play(sim, 7)[1], _play(So101Sim((48, 64)), 7)[1]
    np.testing.assert_array_equal(np.array(first), np.array(again))


def test_actions_beyond_the_range_are_clipped(sim: So101Sim) -> None:
    (task,) = So101(_STATES).tasks()
    ends = []
    for value in (1e4, 1e5):
        sim.reset(EpisodeSpec(task, 0, 0))
        sim.step(np.full(6, value))
        ends.append(sim.physics())
    np.testing.assert_array_equal(ends[0], ends[1])


def test_it_names_where_things_are(sim: So101Sim) -> None:
    assert isinstance(sim, LocatedSim)
    names = list(sim.coordinates())
    assert names[:3] == ["cube x", "cube y", "cube z"]
    assert "robot hand z" in names


def test_states_only_shows_no_images() -> None:
    assert set(So101(_STATES).features()) == {STATE, ENVIRONMENT_STATE}
    shown = So101(So101Config()).features()
    assert {IMAGES + "front", IMAGES + "wrist"} < set(shown)
    assert shown[STATE].names == CHANNELS


@pytest.mark.parametrize(
    "change", [{"task": "Stack-v0"}, {"episode_length": 0}, {"observation_width": 0}]
)
def test_bad_flags_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        So101(replace(So101Config(), **change))


def test_recorded_demonstrations_name_their_channels(tmp_path: Path) -> None:
    flags = ["--policy.type=expert", "--env.type=so101", "--env.obs_type=state"]
    size = ["--record.n_episodes=1", "--eval.batch_size=1", f"--dataset.root={tmp_path / 'demos'}"]
    assert main(["record", *flags, *size, "--record.extra=[environment_state]"]) == 0
    features = json.loads((tmp_path / "demos/meta/info.json").read_text())["features"]
    assert features["action"]["names"] == features[STATE]["names"] == list(CHANNELS)
    assert features[ENVIRONMENT_STATE]["names"] == list(SCENE_STATE_NAMES)
