from __future__ import annotations

from pathlib import Path

import pytest

from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.plan import make_plan, workers_for
from proctor.system import cgroup_quota, usable_cores


def test_the_plan_lists_every_episode_of_every_task_with_its_seed() -> None:
    plan = make_plan(Fake(FakeConfig(n_tasks=2)), indices=range(3), seed=1000)
    assert [(spec.task.task_id, spec.index, spec.seed) for spec in plan] == [
        (0, 0, 1000), (0, 1, 1001), (0, 2, 1002), (1, 0, 1000), (1, 1, 1001), (1, 2, 1002),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("batch_size", "n_episodes", "cores", "workers"),
    [(0, 100, 2, 1), (0, 100, 1, 1), (0, 100, 16, 11), (0, 5, 16, 5), (0, 500, 200, 64),
     (7, 100, 2, 7), (7, 3, 2, 3), (100, 500, 2, 100)],
)  # fmt: skip
def test_workers_follow_the_cores_or_the_flag(
    batch_size: int, n_episodes: int, cores: int, workers: int
) -> None:
    assert workers_for(batch_size, n_episodes, cores) == workers


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


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
