"""Compiled models in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from proctor.benchmarks.mujoco import model_cache
from proctor.benchmarks.mujoco.model_cache import load_model, models_folder

mujoco = pytest.importorskip("mujoco")

XML = '<mujoco><worldbody><body><freejoint/><geom size="{size}"/></body></worldbody></mujoco>'


@pytest.fixture
def xml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "assets" / "ball.xml"
    path.parent.mkdir()
    path.write_text(XML.format(size=0.1))
    return path


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The XML files that MuJoCo compiled."""
    files = []
    real = mujoco.MjModel.from_xml_path

    def compile_and_note(path: str) -> Any:
        files.append(path)
        return real(path)

    monkeypatch.setattr(mujoco.MjModel, "from_xml_path", compile_and_note)
    monkeypatch.setattr(model_cache, "_state", model_cache._state.__wrapped__)
    return files


def load(xml: Path) -> Any:
    return load_model(xml, xml.parent)


def cached_files() -> list[Path]:
    return list(models_folder().iterdir())


def test_a_model_is_compiled_once_and_stays_the_same(xml: Path, compiled: list[str]) -> None:
    first, second = load(xml), load(xml)
    assert len(compiled) == 1
    assert second.geom_size.tobytes() == first.geom_size.tobytes()
    assert len(cached_files()) == 1


def test_a_changed_asset_is_compiled_again(xml: Path, compiled: list[str]) -> None:
    load(xml)
    xml.write_text(XML.format(size=0.25))
    assert load(xml).geom_size[0, 0] == 0.25
    assert len(compiled) == 2


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-7], lambda b: b"", lambda b: b[:99] + b"x" + b[100:]]
)
def test_a_damaged_file_is_compiled_again(xml: Path, compiled: list[str], damage: Any) -> None:
    load(xml)
    (file,) = cached_files()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    load(xml)
    assert len(compiled) == 2
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_done_without(
    xml: Path, compiled: list[str], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    assert load(xml).ngeom == 1
    assert load(xml).ngeom == 1
    assert len(compiled) == 2


def test_the_models_that_were_not_used_for_longest_make_room(
    xml: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(xml)
    (oldest,) = cached_files()
    os.utime(oldest, (1, 1))
    monkeypatch.setattr(model_cache, "_MOST_BYTES", int(1.5 * oldest.stat().st_size))
    xml.write_text(XML.format(size=0.3))
    load(xml)
    (kept,) = cached_files()
    assert kept != oldest
