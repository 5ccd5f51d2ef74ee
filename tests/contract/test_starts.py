"""The measured start of every benchmark: equal for one spec, and clearly apart otherwise."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.base import Benchmark, Sim, with_defaults
from proctor.benchmarks.guarded_sim import GuardedSim
from proctor.benchmarks.starts import measured_start
from proctor.config.builder import benchmark_config_from
from proctor.plugins import find_benchmark
from proctor.system.global_rng import SEED_BEFORE_RESET, seed_global_rng
from proctor.types import EpisodeSpec, Start, Task
from tests.sim.libero_reference import needs_assets

SIM = pytest.mark.sim
GAP = 10
HIL = {"type": "gym_hil", "task": "PandaPickCube-v0"}
SMALL = [
    pytest.param({"type": "fake"}, id="fake"),
    pytest.param({"type": "so101"}, id="so101"),
    pytest.param({"type": "pusht"}, marks=SIM, id="pusht"),
    pytest.param({"type": "aloha", "task": "AlohaInsertion-v0"}, marks=SIM, id="insertion"),
    pytest.param({"type": "aloha", "task": "AlohaTransferCube-v0"}, marks=SIM, id="transfer"),
    pytest.param(HIL, marks=SIM, id="pick"),
    pytest.param(HIL | {"random_block_position": False}, marks=SIM, id="fixed-cube"),
    pytest.param({"type": "gym_hil", "task": "PandaArrangeBoxes-v0"}, marks=SIM, id="arrange"),
    pytest.param({"type": "gym", "id": "Pendulum-v1", "success": "none"}, marks=SIM, id="gym"),
    *(
        pytest.param({"type": "metaworld", "task": name}, marks=SIM, id=name)
        for name in ("reach-v3", "plate-slide-back-v3", "drawer-close-v3")
    ),
    pytest.param({"type": "metaworld", "task": "mt50"}, marks=[SIM, pytest.mark.slow], id="mt50"),
]


def opened(benchmark: Benchmark, task: Task) -> Sim:
    seed_global_rng(SEED_BEFORE_RESET)
    return GuardedSim(benchmark.make_sim(task), benchmark.features())


def start_of(sim: Sim, spec: EpisodeSpec) -> Start:
    seed_global_rng(spec.seed)
    sim.reset(spec)
    start = measured_start(sim, sim.physics())
    assert start is not None
    return start


def distance(one: Start, other: Start) -> float:
    assert one.names == other.names
    return float(np.abs(np.subtract(one.values, other.values)).max())


def made(settings: dict[str, Any]) -> Benchmark:
    pytest.importorskip("mujoco")
    config = benchmark_config_from(settings)
    try:
        return with_defaults(find_benchmark(config.type).make(config))
    except ImportError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("settings", SMALL)
def test_equal_starts_are_equal_and_different_ones_are_clearly_apart(
    settings: dict[str, Any],
) -> None:
    benchmark = made(settings)
    for task in benchmark.tasks():
        used, fresh = opened(benchmark, task), opened(benchmark, task)
        starts = [start_of(used, benchmark.spec(task, index, 1000)) for index in range(6)]
        again = start_of(used, benchmark.spec(task, 0, 1000))
        assert start_of(fresh, benchmark.spec(task, 0, 1000)) == again == starts[0]
        tolerance = again.tolerance
        apart = [distance(*pair) for pair in combinations(starts, 2)]
        assert all(found <= tolerance or found >= GAP * tolerance for found in apart)
        fixed = settings.get("random_block_position") is False
        assert max(apart) == 0.0 if fixed else max(apart) >= GAP * tolerance
        used.close()
        fresh.close()


@pytest.mark.sim
def test_a_random_and_a_fixed_cube_of_one_seed_are_different_starts() -> None:
    pytest.importorskip("gym_hil")
    random, fixed = (
        made(HIL | {"random_block_position": is_random}) for is_random in (True, False)
    )
    (task,) = random.tasks()
    spec = random.spec(task, 0, 1000)
    starts = [start_of(opened(benchmark, task), spec) for benchmark in (random, fixed)]
    assert distance(*starts) >= GAP * starts[0].tolerance


@pytest.mark.sim
@needs_assets()
@pytest.mark.parametrize("suite", ["libero_object", "libero_spatial"])
def test_the_starts_of_libero_are_its_init_states_whatever_the_seed(suite: str) -> None:
    task_id = {"libero_object": 0, "libero_spatial": 4}[suite]  # 4: an object inside a fixture
    benchmark = made({"type": "libero", "task": suite, "task_ids": [task_id]})
    (task,) = benchmark.tasks()
    sim = opened(benchmark, task)
    starts = [start_of(sim, benchmark.spec(task, index, 1000)) for index in range(3)]
    others = [start_of(sim, benchmark.spec(task, index, 5000)) for index in range(3)]
    sim.close()
    tolerance = starts[0].tolerance
    assert all(distance(*pair) <= tolerance for pair in zip(starts, others, strict=True))
    assert all(distance(*pair) >= GAP * tolerance for pair in combinations(starts, 2))
