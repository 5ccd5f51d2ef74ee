"""Datasets of versions 2.1 and 2.0 become 3.0: the same frames in fewer files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from proctor.datasets.edit import operations
from proctor.datasets.edit.build import edit
from proctor.datasets.edit.destination import in_place_destination, new_destination
from proctor.datasets.format.episodes import read_episode_stats
from proctor.datasets.format.info_file import read_info
from proctor.datasets.format.tables import read_stats
from proctor.errors import UsageError
from proctor.system import files
from tests.refusals import refuses
from tests.unit.datasets.edit.test_edit import (
    assert_clean,
    assert_same_frames,
    golden_items,
    items,
    packets,
)
from tests.unit.datasets.making import GOLDEN, TOP, turn_old


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "sync", lambda fd: None)
    root = Path(shutil.copytree(GOLDEN / "video3ep", tmp_path / "old"))
    turn_old(root, "v2.1")
    return root


def write_stats_lines(root: Path) -> None:
    """As v2.1 has them: a line an episode, without quantiles."""
    golden = GOLDEN / "video3ep"
    lines = []
    for index, stats in enumerate(read_episode_stats(golden, read_info(golden))):
        plain = {
            key: {name: value.tolist() for name, value in of_key.items() if name[0] != "q"}
            for key, of_key in stats.items()
        }
        lines.append(json.dumps({"episode_index": index, "stats": plain}))
    (root / "meta/episodes_stats.jsonl").write_text("\n".join(lines))


def test_the_same_frames_lie_in_one_table_and_one_video(old: Path, tmp_path: Path) -> None:
    write_stats_lines(old)
    (old / "README.md").write_text("my card")
    edit(old, new_destination(tmp_path / "new"), operations.convert)
    new = tmp_path / "new"
    assert_clean(new)
    assert_same_frames(items(new), golden_items())
    assert [packets(new, i) for i in range(3)] == [
        packets(GOLDEN / "video3ep", i) for i in range(3)
    ]
    assert sorted(
        path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file()
    ) == [
        "README.md",
        "data/chunk-000/file-000.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "meta/info.json",
        "meta/stats.json",
        "meta/tasks.parquet",
        f"videos/{TOP}/chunk-000/file-000.mp4",
    ]
    info = read_info(new)
    assert (info.version, info.chunks_size, info.fps) == ("v3.0", 1000, 10)


def test_statistics_that_old_versions_lack_are_worked_out(old: Path, tmp_path: Path) -> None:
    edit(old, new_destination(tmp_path / "new"), operations.convert)
    golden = GOLDEN / "video3ep"
    assert_clean(tmp_path / "new")
    found = read_stats(tmp_path / "new")
    for key, of_key in read_stats(golden).items():
        for name in ("min", "max", "mean", "std", "count"):
            loose = 0.02 if key == TOP else 1e-6  # AV1 changes pixels a little
            np.testing.assert_allclose(found[key][name], of_key[name], atol=loose, rtol=1e-5)


@pytest.mark.parametrize("version", ["v2.1", "v2.0"])
def test_a_dataset_is_converted_in_place_and_then_edited(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "sync", lambda fd: None)
    root = Path(shutil.copytree(GOLDEN / "video3ep", tmp_path / "old"))
    turn_old(root, version)
    with refuses(UsageError, "dataset.old-version") as refused:
        edit(root, in_place_destination(root), lambda s: operations.delete(s, [0]))
    assert version in str(refused.value)
    edit(root, in_place_destination(root), operations.convert)
    edit(root, in_place_destination(root), lambda s: operations.delete(s, [0]))
    assert_clean(root)
    assert_same_frames(items(root), golden_items()[12:])


def test_old_datasets_are_merged_with_new_ones(old: Path, tmp_path: Path) -> None:
    from proctor.datasets.edit.build import build
    from proctor.datasets.edit.edit_plan import open_source

    golden = GOLDEN / "video3ep"
    merged = operations.merge([open_source(golden), open_source(old)])
    build(merged, new_destination(tmp_path / "new"))
    assert_clean(tmp_path / "new")
    assert_same_frames(items(tmp_path / "new"), golden_items() * 2)
