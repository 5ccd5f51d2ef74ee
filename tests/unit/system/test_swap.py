"""Swapping two folders atomically."""

from __future__ import annotations

from pathlib import Path

import pytest

from proctor.system import files
from proctor.system.files import recover_swap, swap


def two_folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "which").write_text(name)
    return tmp_path / "old", tmp_path / "new"


@pytest.mark.parametrize("in_one_step", [True, False])
def test_swapped_folders_have_each_others_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_one_step: bool
) -> None:
    if not in_one_step:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    old, new = two_folders(tmp_path)
    swap(old, new)
    assert [(old / "which").read_text(), (new / "which").read_text()] == ["new", "old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def test_swapping_with_a_missing_folder_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _ = two_folders(tmp_path)
    with pytest.raises(FileNotFoundError):
        swap(old, tmp_path / "nowhere")
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    with pytest.raises(FileNotFoundError):
        swap(old, tmp_path / "nowhere")
    assert (old / "which").read_text() == "old"


@pytest.mark.parametrize("renames", [1, 2])
def test_a_kill_between_the_renames_is_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    old, new = two_folders(tmp_path)
    done: list[Path] = []
    rename = Path.rename

    def until_killed(self: Path, target: Path) -> Path:
        if len(done) == renames:
            raise KeyboardInterrupt
        done.append(self)
        return rename(self, target)

    with monkeypatch.context() as killed:
        killed.setattr(Path, "rename", until_killed)
        with pytest.raises(KeyboardInterrupt):
            swap(old, new)
    recover_swap(old)
    assert (old / "which").read_text() == ("old" if renames == 1 else "new")
    assert (tmp_path / ".old.edited-swapped").exists() == (renames == 2)
    recover_swap(old)  # once more changes nothing
    assert (old / "which").exists()
