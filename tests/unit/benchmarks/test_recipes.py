"""Recipes of benchmarks with an interpreter of their own: the record, the search for a Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from proctor.benchmarks.recipes import catalog
from proctor.benchmarks.recipes.health import pinned_versions
from proctor.benchmarks.recipes.python_search import find_python
from proctor.benchmarks.recipes.recipe import read_recipe
from proctor.errors import UsageError
from tests.refusals import refuses

HERE = "{}.{}".format(*sys.version_info)
TEXT = """
summary = "a world"
licence = "MIT"
pythons = ["3.11"]
requirements = ["numpy==1.26.4", "some[extra]==2.0; python_version >= '3.8'"]
download_mb = 1
disk_mb = 2
minutes = 1
"""


@pytest.mark.parametrize("name", catalog.recipe_names())
def test_every_recipe_reads_and_pins_all_it_installs(name: str) -> None:
    recipe = catalog.find_recipe(name)
    free = [text for text in (*recipe.requirements, *recipe.no_deps) if not _is_pinned(text)]
    assert free == []
    assert recipe.modules
    assert recipe.disk_mb >= recipe.download_mb // 2
    assert all(len(asset.sha256) in (0, 64) for asset in recipe.assets)


def _is_pinned(text: str) -> bool:
    """Whether a requirement names a version, or a commit of 40 digits."""
    return "==" in text or len(text.rpartition("@")[2].partition("#")[0]) == 40


def test_an_unknown_name_gets_the_nearest_recipe() -> None:
    with refuses(UsageError, "benchmark.no-recipe"):
        catalog.find_recipe("maniskil")


@pytest.mark.parametrize(
    "change",
    [
        "unknown = 1",
        "name = 'other'",
        "[[assets]]\nurl = 'https://x/y.zip'\ninto = '../out'\nmegabytes = 1",
        "[[assets]]\nurl = 'https://x/y.zip'\ninto = '/out'\nmegabytes = 1",
    ],
)
def test_a_wrong_recipe_is_refused(change: str) -> None:
    with pytest.raises(ValueError):
        read_recipe("world", TEXT + change)


def test_the_digest_follows_what_is_installed_and_not_the_texts() -> None:
    first = read_recipe("world", TEXT)
    assert read_recipe("world", TEXT.replace("a world", "another")).digest() == first.digest()
    assert read_recipe("world", TEXT.replace("1.26.4", "1.26.3")).digest() != first.digest()


def test_pins_are_read_with_extras_and_markers() -> None:
    assert pinned_versions(read_recipe("world", TEXT)) == {"numpy": "1.26.4", "some": "2.0"}


def test_our_own_interpreter_serves_its_own_version() -> None:
    assert find_python(["1.0", HERE], "world") == Path(sys.executable)


def _fake_python(path: Path, prints: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{prints}\n")
    path.chmod(0o755)
    return path


def test_a_shim_that_does_not_start_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_python(tmp_path / "shims" / "python2.9", "exit 127")
    for patch in (9, 13):
        where = tmp_path / "pyenv" / "versions" / f"2.9.{patch}" / "bin" / "python2.9"
        newest = _fake_python(where, "echo 2.9")
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}{os.pathsep}/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert find_python(["2.9"], "world") == newest


def test_uv_is_asked_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = _fake_python(tmp_path / "uv-python" / "python2.9", "echo 2.9")
    _fake_python(tmp_path / "bin" / "uv", f"echo {python}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "none"))
    assert find_python(["2.9"], "world") == python


def test_a_missing_version_is_one_line_with_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with refuses(UsageError, "benchmark.no-python"):
        find_python(["2.9"], "world")
