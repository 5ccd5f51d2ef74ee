"""Workers that open their simulator while the policy is loaded change no episode."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proctor.engine.processes.warm_workers import WarmWorkers
from proctor.errors import SpecMismatch
from proctor.evaluation import preparing
from proctor.evaluation.run import Evaluation
from tests.conftest import digests
from tests.refusals import refuses

IMAGES = {"policy__inputs": "observation.image", "policy__n_action_steps": 3, "env__n_tasks": 2}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let the random policy list its image as a checkpoint does; return which slots were warm."""
    check, take = preparing.check_policy_settings, WarmWorkers.take
    slots: list[bool] = []

    def lists_images(config: Any) -> Any:
        plugin = check(config)
        return replace(plugin, has_network=True, image_inputs=lambda _: ("observation.image",))

    def noted(self: WarmWorkers, *args: Any) -> Any:
        found = take(self, *args)
        slots.append(found is not None)
        return found

    monkeypatch.setattr(preparing, "check_policy_settings", lists_images)
    monkeypatch.setattr(WarmWorkers, "take", noted)
    return slots


@pytest.mark.parametrize("more", [{}, {"env__max_parallel_tasks": 1}, {"eval__latency_steps": 2}])
def test_a_warm_worker_plays_the_same_episodes(
    run: Callable[..., Evaluation], taken: list[bool], more: dict[str, Any]
) -> None:
    warm = run(**IMAGES, **more, eval__batch_size=2)
    assert taken[0]
    cold = run(**IMAGES, **more, eval__batch_size=2, eval__use_async_envs=False)
    assert digests(warm) == digests(cold)
    assert [row.renders for row in warm.rows] == [row.renders for row in cold.rows]


@pytest.mark.parametrize("fault", ["raise", "kill"])
def test_a_simulator_that_breaks_early_costs_no_episode(
    run: Callable[..., Evaluation], taken: list[bool], tmp_path: Path, fault: str
) -> None:
    broken = {"env__faults": {"0/0/0": fault}, "env__break_once_in": str(tmp_path)}
    found = run(**IMAGES, **broken, eval__batch_size=1)
    assert digests(found) == digests(run(**IMAGES, eval__batch_size=1))


def test_a_refused_policy_leaves_no_worker(
    run: Callable[..., Evaluation], taken: list[bool]
) -> None:
    before = set(multiprocessing.active_children())
    with refuses(SpecMismatch, "policy.missing-input"):
        run(policy__inputs="observation.missing")
    assert set(multiprocessing.active_children()) <= before
    assert not taken
