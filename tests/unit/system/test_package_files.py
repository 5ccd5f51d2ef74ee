"""Packages that define episodes are hashed by their files, not by their version."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from proctor.system.platform import package_files
from proctor.system.platform.package_files import package_hashes

HOURS = 7200


def aged(path: Path) -> None:
    """Let all files look as if they had been there for hours."""
    for file in (path, *path.rglob("*")):
        os.utime(file, (time.time() - HOURS,) * 2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(package_files, "_SETTLED_S", -1.0)  # a test's files have just changed
    return tmp_path / "cache" / "proctor" / "packages.json"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages with a benchmark of two files in it."""
    site = tmp_path / "site"
    (site / "gym_toy" / "assets").mkdir(parents=True)
    (site / "gym_toy" / "__init__.py").write_text("THRESHOLD = 0.95\n")
    (site / "gym_toy" / "assets" / "world.xml").write_text("<mujoco/>")
    info = site / "gym_toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gym-toy\nVersion: 1.0\n")
    (info / "RECORD").write_text("gym_toy/__init__.py,sha256=x,17\ngym_toy/assets/world.xml,,\n")
    monkeypatch.syspath_prepend(str(site))
    return site


def test_a_patched_file_changes_the_hash(site: Path) -> None:
    before = package_hashes(["gym-toy"])
    assert before == package_hashes(["gym-toy"])
    (site / "gym_toy" / "__init__.py").write_text("THRESHOLD = 0.01\n")
    code = package_hashes(["gym-toy"])
    (site / "gym_toy" / "assets" / "world.xml").write_text("<mujoko/>")
    model = package_hashes(["gym-toy"])
    assert before.keys() == {"gym_toy"}
    assert len({hashes["gym_toy"] for hashes in (before, code, model)}) == 3


def test_a_patch_that_keeps_size_and_time_changes_the_hash(site: Path) -> None:
    file = site / "gym_toy" / "__init__.py"
    aged(site)
    before, times = package_hashes(["gym-toy"]), file.stat()
    file.write_text("THRESHOLD = 0.01\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert package_hashes(["gym-toy"]) != before


def test_a_fork_that_is_found_first_is_hashed(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = package_hashes(["gym-toy"])
    shutil.copytree(site / "gym_toy", tmp_path / "fork" / "gym_toy")
    monkeypatch.syspath_prepend(str(tmp_path / "fork"))
    assert package_hashes(["gym-toy"]) == before  # the same files elsewhere
    (tmp_path / "fork" / "gym_toy" / "__init__.py").write_text("THRESHOLD = 0.01\n")
    assert package_hashes(["gym-toy"]) != before


def test_compiled_code_is_left_out(site: Path) -> None:
    before = package_hashes(["gym-toy"])
    (site / "gym_toy" / "__pycache__").mkdir()
    for name in ("__pycache__/x.cpython-311.pyc", "core.abi3.so", "libx.so.3.4", "core.dylib"):
        (site / "gym_toy" / name).write_bytes(b"x")
    assert package_hashes(["gym-toy"]) == before


@pytest.mark.parametrize("with_names", [True, False])
def test_an_editable_install_is_hashed_at_its_source(site: Path, *, with_names: bool) -> None:
    before = package_hashes(["gym-toy"])
    info = site / "gym_toy-1.0.dist-info"
    (info / "RECORD").write_text("__editable___gym_toy.pth,,\n")
    if with_names:
        (info / "top_level.txt").write_text("gym_toy\n")
    assert package_hashes(["gym-toy"]) == before


def test_a_module_of_one_file_is_hashed(site: Path) -> None:
    (site / "gym_toy-1.0.dist-info" / "RECORD").write_text("toy_module.py,sha256=x,1\n")
    (site / "toy_module.py").write_text("A = 1\n")
    before = package_hashes(["gym-toy"])
    (site / "toy_module.py").write_text("A = 2\n")
    after = package_hashes(["gym-toy"])
    assert before.keys() == after.keys() == {"toy_module"}
    assert before != after


def test_nothing_is_imported_and_missing_packages_are_left_out(site: Path) -> None:
    assert package_hashes(["gym-toy", "no-such-thing", "numpy"]).keys() == {"gym_toy"}
    assert "gym_toy" not in sys.modules


def test_unchanged_files_are_not_read_again(site: Path, cache: Path) -> None:
    before = package_hashes(["gym-toy"])
    (key,) = package_files._CACHE.read()
    other = "0" * 64
    package_files._CACHE.write({key: other})
    assert package_hashes(["gym-toy"]) == {"gym_toy": other}
    cache.write_text("[]")
    assert package_hashes(["gym-toy"]) == before


def test_hashes_of_files_that_have_just_changed_are_not_cached(
    site: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_files, "_SETTLED_S", 60.0)
    package_hashes(["gym-toy"])
    assert not cache.exists()


@pytest.mark.parametrize("spoil", [lambda c: c.mkdir(parents=True), lambda c: None])
def test_a_cache_that_cannot_be_used_costs_time_only(
    site: Path, cache: Path, spoil: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(cache)
    before = package_hashes(["gym-toy"])
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert package_hashes(["gym-toy"]) == before
