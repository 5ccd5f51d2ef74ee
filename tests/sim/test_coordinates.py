"""Where things are in real simulators: the coordinates that the report page shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.base import LocatedSim, Sim
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.plugins import find_benchmark

CASES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "pusht": ("gym_pusht", {}, "block x", "robot finger x"),
    "metaworld": ("metaworld", {"task": "push-v3"}, "object x", "robot hand x"),
    "gym_hil": ("gym_hil", {}, "block x", "robot hand x"),
    "so101": ("mujoco", {}, "cube x", "robot hand x"),
    "aloha": ("gym_aloha", {"task": "AlohaInsertion-v0"}, "peg x", "robot left gripper x"),
    "gym": ("gymnasium", {"id": "CartPole-v1", "success": "none"}, "state 0", "state 3"),
}


def opened(name: str, settings: dict[str, Any]) -> tuple[Sim, Any]:
    config = build(EvalConfig, {"env": {"type": name, **settings}, "policy": {"type": "random"}})
    benchmark = find_benchmark(name).maker(config.env)()
    task = benchmark.tasks()[0]
    sim = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 1000))
    return sim, benchmark.action


@pytest.mark.parametrize("name", CASES)
def test_a_simulator_names_its_coordinates_and_reading_them_changes_nothing(name: str) -> None:
    package, settings, first, robot = CASES[name]
    pytest.importorskip(package)
    sim, action = opened(name, settings)
    assert isinstance(sim, LocatedSim)
    try:
        before = sim.physics()
        found = sim.coordinates()
        assert next(iter(found)) == first
        assert robot in found
        assert all(np.isfinite(value) for value in found.values())
        assert np.array_equal(sim.physics(), before)
        low, high = action.bounds
        towards = np.clip(np.ones(action.size, np.float32), low, high)
        for _ in range(3):
            sim.step(towards)
        assert sim.coordinates() != found
    finally:
        sim.close()
