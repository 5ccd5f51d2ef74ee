"""What a start is measured from: a simulator's own numbers, its physics, or an observation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim
from proctor.benchmarks.guarded_sim import GuardedSim
from proctor.benchmarks.perturbations.benchmark import PerturbedBenchmark
from proctor.benchmarks.perturbations.dimensions import BY_NAME
from proctor.benchmarks.starts import measured_start, observed_start, start_keys
from proctor.errors import PluginError, SimulatorFault
from proctor.features import Array
from proctor.starts import condensed
from proctor.types import Start

FAKE = Fake(FakeConfig())
(TASK,) = FAKE.tasks()


class Changed(FakeSim):
    """The fake simulator with another start and physics state."""

    def __init__(self, found: Any = None, state: Array | None = None) -> None:
        super().__init__(FakeConfig(), TASK)
        self._found, self._state = found, state

    def start_state(self) -> Any:
        return {} if self._found is None else self._found

    def physics(self) -> Array:
        return super().physics() if self._state is None else self._state


def measured(sim: Changed) -> Start | None:
    return measured_start(GuardedSim(sim, {}), sim.physics())


def test_numbers_are_rounded_to_a_tenth_of_the_tolerance_and_zeros_have_no_sign() -> None:
    sim = Changed({"block x": 1 / 3, "block y": -1e-12})
    start = measured(sim)
    assert start is not None
    assert (start.names, start.values) == (("block x", "block y"), (0.3333333, 0.0))
    assert str(start.values[1]) == "0.0"
    sim.start_tolerance = 0.1  # type: ignore[attr-defined]
    coarse = measured(sim)
    assert coarse is not None
    assert (coarse.values, coarse.tolerance) == ((0.33, 0.0), 0.1)
    assert coarse.digest != start.digest


def test_a_short_physics_state_is_the_start_of_a_simulator_without_start_state() -> None:
    start = measured(Changed(state=np.array([0.5, 2.0])))
    assert start is not None
    assert (start.names, start.values) == (("state 0", "state 1"), (0.5, 2.0))


@pytest.mark.parametrize("size", [65, 128, 1000])
def test_a_long_physics_state_keeps_every_difference(size: int) -> None:
    state = np.random.default_rng(0).normal(size=size)
    start = np.array(list(condensed(state).values()))
    assert len(start) == 64
    for number in range(size):
        other = state.copy()
        other[number] += 1e-3
        apart = np.abs(np.array(list(condensed(other).values())) - start).max()
        assert 4e-4 <= apart <= 1.1e-3


def test_a_world_without_state_is_told_apart_by_what_is_observed() -> None:
    assert measured(Changed(state=np.empty(0))) is None
    assert start_keys(FAKE.features()) == ("observation.state", "observation.environment_state")
    assert start_keys({"i": FAKE.features()["observation.image"]}) == ("i",)
    one, same, other = (observed_start({"state": np.full(2, n)}) for n in (1.0, 1.0, 2.0))
    assert one == same != other
    assert one.names == one.values == ()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_start_that_is_not_finite_is_a_fault_of_the_simulator(value: float) -> None:
    with pytest.raises(SimulatorFault):
        measured(Changed({"block x": value}))


@pytest.mark.parametrize(
    "found", [5, {"block x": "left"}, {f"number {n}": 0.0 for n in range(65)}], ids=str
)
def test_a_start_that_is_no_short_table_of_numbers_breaks_the_contract(found: Any) -> None:
    with pytest.raises(PluginError):
        measured(Changed(found))


@pytest.mark.parametrize("tolerance", [0.0, -1.0, np.inf, np.nan])
def test_a_tolerance_that_is_not_positive_breaks_the_contract(tolerance: float) -> None:
    sim = Changed()
    sim.start_tolerance = tolerance  # type: ignore[attr-defined]
    with pytest.raises(PluginError):
        GuardedSim(sim, {})


def test_the_start_of_a_perturbed_episode_is_that_of_its_clean_one() -> None:
    class Movable(Fake):
        """Its robot can be driven to another initial pose."""

        robot_control = replace(Fake.robot_control, joints=(0, 1), degree=0.01)  # type: ignore[type-var]

    benchmark = PerturbedBenchmark(Movable(FakeConfig()), [BY_NAME["robot_pose"]], [3])
    clean, perturbed = benchmark.tasks()
    sim = GuardedSim(benchmark.make_sim(clean), benchmark.features())
    starts, states = [], []
    for task in (clean, perturbed):
        sim.reset(benchmark.spec(task, 0, 1000))
        starts.append(measured_start(sim, sim.physics()))
        states.append(sim.physics())
    assert starts[0] == starts[1]
    assert not np.array_equal(*states)
