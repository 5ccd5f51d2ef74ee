"""Uploads hold the files of a format only, and show no path of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from proctor.system.hub.uploads import exactly, other_files, without_local_paths


def test_local_paths_lose_their_folders_and_hub_ids_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data/pusht").mkdir(parents=True)
    settings = {
        "output_dir": "outputs/train/first",
        "dataset": {"root": "/home/me/pusht", "repo_id": "lerobot/pusht"},
        "policy": {
            "tokenizer": "/home/me/clip",
            "pretrained_path": "/home/me/act",
            "tags": ["~/a"],
        },
        "pretrained_path": "me/act",
        "path": "data/pusht",
        "instruction": "push the T",
        "checkpoint": "/home/me/first/checkpoints/000010/pretrained_model",
    }
    assert without_local_paths(settings) == {
        "output_dir": None,
        "dataset": {"root": None, "repo_id": "lerobot/pusht"},
        "policy": {"tokenizer": "clip", "pretrained_path": None, "tags": ["a"]},
        "pretrained_path": "me/act",
        "path": "pusht",
        "instruction": "push the T",
        "checkpoint": "first/checkpoints/000010/pretrained_model",
    }


def test_a_hidden_file_needs_a_pattern_of_its_own(tmp_path: Path) -> None:
    for name in ("a.json", ".env", "data/.hidden/b.json", "data/[c].json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert other_files(tmp_path, ["*"]) == [".env", "data/.hidden/b.json"]
    assert other_files(tmp_path, ["*", ".*", *exactly(["data/.hidden/b.json"])]) == []
    assert "data/[c].json" not in other_files(tmp_path, exactly(["data/[c].json"]))
