"""LIBERO-Pro in LIBERO's simulator; tests/parity/test_libero_pro.py compares with its package."""

from __future__ import annotations

import numpy as np
import pytest

from proctor.benchmarks.libero.sim import LiberoSim
from proctor.benchmarks.libero_pro.benchmark import LiberoPro, LiberoProConfig
from proctor.benchmarks.libero_pro.task_files import find_task_files
from proctor.errors import UsageError
from tests.sim.libero_reference import needs_assets


def _has_task_files() -> bool:
    try:
        find_task_files(None)
    except (FileNotFoundError, UsageError):
        return False
    return True


pytestmark = [
    pytest.mark.sim,
    needs_assets(),
    pytest.mark.skipif(not _has_task_files(), reason="no task files: make libero-assets says why"),
]


def test_a_swapped_world_starts_as_its_init_state_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disable")
    benchmark = LiberoPro(LiberoProConfig(task="libero_object_swap", task_ids=[0]))
    (task,) = benchmark.tasks()
    sim = benchmark.make_sim(task)
    assert isinstance(sim, LiberoSim)
    sim.reset(benchmark.spec(task, 2, 1000))
    first, worlds = sim.object_positions(), [sim.physics()]
    sim.step(np.ones(7, np.float32))
    sim.reset(benchmark.spec(task, 2, 1000))
    worlds.append(sim.physics())
    assert np.array_equal(*worlds)
    init_state = benchmark._init_states(task)[2]
    for position in first.values():  # objects settle where the init state has them, on the floor
        offsets = np.abs(np.lib.stride_tricks.sliding_window_view(init_state, 2) - position[:2])
        assert offsets.max(axis=1).min() < 0.02
    sim.close()
