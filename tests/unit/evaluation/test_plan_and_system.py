"""The plan of episodes, and the number of simulators for a machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.evaluation.plan import (
    InferencePlacement,
    WorkerLoad,
    best_simulators,
    make_plan,
    max_batch,
    n_workers,
    workers_for,
)
from proctor.evaluation.preparing import prepare
from proctor.system.platform.platform_info import cgroup_quota, usable_cores


def test_the_plan_lists_every_episode_of_every_task_with_its_seed() -> None:
    plan = make_plan(Fake(FakeConfig(n_tasks=2)), indices=range(3), seed=1000)
    assert [(spec.task.task_id, spec.index, spec.seed) for spec in plan] == [
        (0, 0, 1000), (0, 1, 1001), (0, 2, 1002), (1, 0, 1000), (1, 1, 1001), (1, 2, 1002),
    ]  # fmt: skip


GIB = 2**30


@pytest.mark.parametrize(
    ("thinking", "cores", "workers"),
    [(InferencePlacement.BESIDE, 1, 1), (InferencePlacement.BESIDE, 2, 2),
     (InferencePlacement.BESIDE, 16, 16), (InferencePlacement.CPU, 1, 2),
     (InferencePlacement.CPU, 2, 2), (InferencePlacement.CPU, 16, 16),
     (InferencePlacement.ACCELERATOR, 1, 2), (InferencePlacement.ACCELERATOR, 2, 3),
     (InferencePlacement.ACCELERATOR, 16, 24),
     (InferencePlacement.LIGHT, 2, 2), (InferencePlacement.LIGHT, 200, 64)],
)  # fmt: skip
def test_the_best_number_of_simulators_follows_the_cores_and_who_else_needs_them(
    thinking: InferencePlacement, cores: int, workers: int
) -> None:
    assert best_simulators(WorkerLoad(thinking, cores, 500 * GIB)) == workers


def test_no_more_simulators_are_started_by_default_than_memory_holds() -> None:
    assert best_simulators(WorkerLoad(InferencePlacement.BESIDE, 16, GIB)) == 4
    assert best_simulators(WorkerLoad(InferencePlacement.BESIDE, 16, GIB // 100)) == 1


@pytest.mark.parametrize(
    ("batch_size", "n_episodes", "workers"),
    [(0, 100, 16), (0, 5, 5), (7, 100, 7), (7, 3, 3), (100, 500, 100)],
)
def test_the_flag_decides_and_no_simulator_is_without_an_episode(
    batch_size: int, n_episodes: int, workers: int
) -> None:
    assert (
        workers_for(batch_size, n_episodes, WorkerLoad(InferencePlacement.BESIDE, 16, 500 * GIB))
        == workers
    )


@pytest.mark.parametrize(
    ("policy", "device", "workers"),
    [("expert", None, 16), ("zero", None, 16), ("zero", "cpu", 16), ("zero", "cuda", 24)],
)
def test_a_run_asks_its_policy_where_it_thinks(
    policy: str, device: str | None, workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("proctor.evaluation.plan.usable_cores", lambda: 16)
    monkeypatch.setattr("proctor.evaluation.plan.usable_memory_bytes", lambda: 500 * GIB)
    words = {"policy.type": policy, "env.type": "fake", "output_dir": str(tmp_path / "run")}
    prepared = prepare(build(EvalConfig, words))
    if device is not None:
        spec = replace(prepared.policy.spec, device_type=device)
        monkeypatch.setattr(prepared.policy, "spec", spec)
    assert n_workers(prepared.settings(), prepared.policy.spec, 100) == workers


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("of_the_policy", "asked"),
    [({}, 14), ({"max_rows": 8}, 8), ({"max_rows": 32}, 14), ({"in_flight": 4}, 1)],
)
def test_a_policy_is_asked_about_no_more_than_its_device_computes_at_once(
    of_the_policy: dict[str, int],
    asked: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    words = {"policy.type": "zero", "env.type": "fake", "output_dir": str(tmp_path / "run")}
    prepared = prepare(build(EvalConfig, words))
    spec = replace(prepared.policy.spec, **of_the_policy)
    monkeypatch.setattr(prepared.policy, "spec", spec)
    assert max_batch(prepared.policy.spec, 14) == asked


def test_the_tightest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    write(tmp_path / "self", "0::/pod/container\n")
    write(tmp_path / "fs/pod/container/cpu.max", "max 100000\n")
    write(tmp_path / "fs/pod/cpu.max", "350000 100000\n")
    assert cgroup_quota(tmp_path / "self", tmp_path / "fs") == 3.5


def test_version_one_quotas_are_read(tmp_path: Path) -> None:
    write(tmp_path / "self", "4:cpu,cpuacct:/box\n3:memory:/box\n")
    write(tmp_path / "fs/cpu/box/cpu.cfs_quota_us", "200000")
    write(tmp_path / "fs/cpu/box/cpu.cfs_period_us", "100000")
    assert cgroup_quota(tmp_path / "self", tmp_path / "fs") == 2.0


def test_no_limit_is_no_quota(tmp_path: Path) -> None:
    write(tmp_path / "self", "0::/\n")
    write(tmp_path / "fs/cpu.max", "max 100000\n")
    assert cgroup_quota(tmp_path / "self", tmp_path / "fs") is None
    assert cgroup_quota(tmp_path / "missing", tmp_path / "fs") is None


def test_usable_cores_is_at_least_one_and_no_more_than_the_affinity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert 1 <= usable_cores() <= 3
