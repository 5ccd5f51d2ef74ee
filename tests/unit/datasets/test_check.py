"""``proctor.datasets.check``: each kind of damage has its finding, and a good dataset has none."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from proctor.cli import main
from proctor.datasets.check import check, repair
from proctor.datasets.checks.findings import FindingLevel
from proctor.datasets.format.info_file import read_info
from proctor.datasets.format.tasks import read_tasks
from proctor.datasets.writer import DatasetWriter
from proctor.errors import DatasetError
from proctor.number_text import number_ranges
from tests.refusals import refuses
from tests.unit.datasets.damage import (
    CAMERA,
    DATA,
    EPISODES,
    IMAGES,
    INFO,
    MOVIE,
    STATS,
    TASKS,
    VIDEO,
    Damage,
    as_v2,
    bytes_with,
    column_with,
    copied,
    copy_of,
    entry,
    json_with,
    removed,
    table_with,
)

FROM, TO = (f"videos/{CAMERA}/{end}_timestamp" for end in ("from", "to"))


def renamed(table: pa.Table, old: str, new: str) -> pa.Table:
    return table.rename_columns([new if name == old else name for name in table.column_names])


def cast(table: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, table[name].cast(kind))


def replaced(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def hurt(content: bytes) -> bytes:
    """Overwrite the coded picture of frame 15, the fourth of episode 1."""
    return content[:1395] + bytes(10) + content[1405:]


def second_file(root: Path) -> None:
    """Say that episode 2 is in a file of its own, where nothing is."""
    copied(DATA, "data/chunk-000/file-001.parquet")(root)
    table_with("data/chunk-000/file-001.parquet", lambda table: table[:0])(root)
    column_with(EPISODES, "data/file_index", entry(2, 1))(root)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "info.totals episodes": (
        json_with(INFO, entry("total_episodes", 4)),
        "total_episodes is 4, the tables have 3",
    ),
    "info.totals frames": (
        json_with(INFO, entry("total_frames", 29)),
        "total_frames is 29, the tables have 28",
    ),
    "info.totals tasks": (
        json_with(INFO, entry("total_tasks", 1)),
        "total_tasks is 1, the tables have 2",
    ),
    "info.unreadable": (json_with(INFO, entry("codebase_version", "v9.0")), "'v9.0'"),
    "tasks.index": (
        table_with(TASKS, lambda t: t.replace_schema_metadata(None)),
        "LeRobot would return numbers",
    ),
    "tasks.order": (table_with(TASKS, lambda t: t.take([1, 0])), "order of task_index"),
    "tasks.numbers": (column_with(TASKS, "task_index", entry(1, 5)), "task_index is not 0 to 1"),
    "tasks.twice": (column_with(TASKS, "task", entry(1, "push the block")), "more than once"),
    "tasks.unreadable": (removed(TASKS), "missing"),
    "tasks.unknown": (column_with(EPISODES, "tasks", entry(1, ["dance"])), "'dance'"),
    "episodes.unreadable": (bytes_with(EPISODES, lambda b: b[:-100]), "file-000.parquet"),
    "episodes.numbers": (column_with(EPISODES, "episode_index", entry(1, 7)), "row 1 is 7"),
    "episodes.length": (column_with(EPISODES, "length", entry(1, 8)), "not the length"),
    "episodes.gap": (column_with(EPISODES, "dataset_from_index", entry(2, 21)), "leave a gap"),
    "episodes.gap overlap": (column_with(EPISODES, "dataset_from_index", entry(2, 18)), "overlap"),
    "episodes.empty": (column_with(EPISODES, "length", entry(1, 0)), "no frames"),
    "episodes.place": (
        column_with(EPISODES, "meta/episodes/file_index", entry(1, 3)),
        "another file",
    ),
    "episodes.beyond": (
        json_with(INFO, lambda i: i.update(total_episodes=2, total_frames=19)),
        "1 more episodes",
    ),
    "data.missing": (removed(DATA), "no such file"),
    "data.unreadable": (bytes_with(DATA, lambda b: b[: len(b) // 2]), "file-000.parquet"),
    "data.unreadable struct": (
        table_with(DATA, lambda t: replaced(t, "frame_index", pa.array([{"a": 1}] * len(t)))),
        "column frame_index holds struct<a: int64>",
    ),
    "data.unreadable twice": (
        table_with(DATA, lambda t: t.append_column("action", t["action"])),
        "column 'action'",
    ),
    "columns.missing": (table_with(DATA, lambda t: t.drop_columns(["action"])), "no column action"),
    "columns.undeclared": (
        table_with(DATA, lambda t: renamed(t, "note", "remark")),
        "remark is not declared",
    ),
    "columns.type": (
        table_with(DATA, lambda t: cast(t, "next.reward", pa.string())),
        "info.json says float32",
    ),
    "columns.type size": (
        json_with(INFO, lambda i: i["features"]["action"].update(shape=[3], names=None)),
        "holds 2 numbers, info.json says 3",
    ),
    "columns.width": (table_with(DATA, lambda t: cast(t, "next.reward", pa.float64())), "double"),
    "rows.length": (
        table_with(DATA, lambda t: pa.concat_tables([t[:5], t[6:]])),
        "11 rows, its length is 12",
    ),
    "rows.missing": (table_with(DATA, lambda t: t[:19]), "none of its rows"),
    "rows.orphaned": (second_file, "another file"),
    "rows.beyond": (
        column_with(DATA, "episode_index", entry(slice(19, 28), [9] * 9)),
        "info.json does not count",
    ),
    "rows.scattered": (
        column_with(DATA, "episode_index", entry(27, 0)),
        "do not follow each other",
    ),
    "rows.frame_index": (column_with(DATA, "frame_index", entry(14, 3)), "jumps from 1 to 3"),
    "rows.index": (
        column_with(DATA, "index", entry(14, 99)),
        "index of frame 2 is 99, expected 14",
    ),
    "rows.timestamp": (
        column_with(DATA, "timestamp", entry(14, 0.25)),
        "is 0.2500 s, at 10 fps it is 0.2000",
    ),
    "rows.task": (column_with(DATA, "task_index", entry(14, 2)), "there are 2 tasks"),
    "rows.finite": (
        column_with(DATA, "next.reward", entry(14, float("nan"))),
        "next.reward is not finite",
    ),
    "rows.null": (column_with(DATA, "next.reward", entry(14, None)), "without a value"),
    "rows.position": (copied(DATA, "data/chunk-000/file--01.parquet"), "position 28"),
    "video.missing": (removed(MOVIE), "no such file"),
    "video.unreadable": (bytes_with(MOVIE, lambda b: b"no video" * 50), "file-000.mp4"),
    "video.span": (column_with(EPISODES, TO, entry(2, 2.5)), "not the time of 9 frames"),
    "video.overlap": (column_with(EPISODES, FROM, entry(2, 1.6)), "has ended"),
    "video.gap": (column_with(EPISODES, FROM, entry(0, 0.2)), "belong to no episode"),
    "video.size": (
        json_with(INFO, lambda i: i["features"][CAMERA].update(shape=[32, 32, 3])),
        "96x64, info.json says 32x32",
    ),
    "video.fps": (json_with(INFO, entry("fps", 20)), "info.json says 20"),
    "video.undecodable": (bytes_with(MOVIE, hurt), "frame 3 cannot be decoded"),
    "video.short": (column_with(EPISODES, FROM, entry(2, 2.4)), "28 frames, 33 are needed"),
    "stats.missing": (json_with(STATS, lambda s: s.pop("action")), "action: no statistics"),
    "stats.differ entry": (json_with(STATS, lambda s: s["action"].pop("std")), "no std"),
    "stats.differ": (
        json_with(STATS, lambda s: s["action"].update(max=[9.0, 9.0])),
        "max of component 0 is 9, the data have",
    ),
    "stats.differ order": (
        json_with(STATS, lambda s: s["action"].update(q90=[-9.0, -9.0])),
        "q50 is greater than q90",
    ),
    "stats.differ count": (
        json_with(STATS, lambda s: s["action"].update(count=[27])),
        "count is 27, the data have 28",
    ),
    "stats.differ shape": (
        json_with(STATS, lambda s: s[CAMERA].update(mean=[0.3, 0.3, 0.3])),
        "expected [3, 1, 1]",
    ),
    "stats.differ colours": (
        json_with(STATS, lambda s: s[CAMERA].update(mean=[[[0.6]]] * 3)),
        "mean is [0.6, 0.6, 0.6]",
    ),
    "stats.differ scale": (
        json_with(STATS, lambda s: s[CAMERA].update(max=[[[255.0]]] * 3)),
        "from 0 to 1",
    ),
    "stats.unknown": (json_with(STATS, lambda s: s.update(wheels=s["action"])), "no such feature"),
    "stats.unreadable": (bytes_with(STATS, lambda b: b[:50]), "not JSON"),
    "stats.episodes": (
        column_with(EPISODES, "stats/action/max", entry(1, [7.0, 7.0])),
        "max of component 0 is 7",
    ),
    "files.orphaned data": (copied(DATA, "data/chunk-000/file-007.parquet"), "no episode"),
    "files.orphaned video": (copied(MOVIE, "videos/left/chunk-000/file-000.mp4"), "no episode"),
    "files.link": (lambda root: (root / "notes").symlink_to(".."), "leads out"),
    "files.unfinished": (copied(STATS, "images/top/frame.png"), "not finished"),
}
"""By the kind of the finding (and which of several), what is done and some of its words."""


@pytest.mark.parametrize("source", [VIDEO, IMAGES], ids=lambda path: path.name)
def test_a_dataset_that_lerobot_wrote_has_nothing_wrong(source: Path) -> None:
    assert check(source).findings == ()
    assert check(source, decode=False).findings == ()


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_has_its_finding(name: str, tmp_path: Path) -> None:
    kind, (damage, words) = name.split()[0], DAMAGES[name]
    checked = check(copy_of(VIDEO, tmp_path, damage))
    found = [finding for finding in checked.findings if finding.kind == kind]
    assert found, checked.findings
    assert any(words in finding.what for finding in found), found
    for finding in checked.findings:
        assert "\n" not in finding.what
        assert str(tmp_path) not in finding.where + finding.what, "paths are told from the folder"


def test_kinds_of_findings_are_all_tried() -> None:
    """What no damage shows may be wrong itself."""
    folder = Path(check.__code__.co_filename).parent
    text = "".join(path.read_text() for path in [folder / "check.py", *folder.glob("checks/*.py")])
    rooms = "info|tasks|episodes|data|columns|rows|video|stats|files|pictures"
    kinds = set(re.findall(rf'"((?:{rooms})\.[a-z_]+)"', text))
    tried_below = {"episodes.none", "pictures.undecodable", "rows.shape", "video.long"}
    assert kinds == {name.split()[0] for name in DAMAGES} | tried_below


def kinds_of(root: Path, **how: bool) -> list[str]:
    return [finding.kind for finding in check(root, **how).findings]


def test_frames_that_no_episode_is_of_are_found_at_the_end_of_a_video(tmp_path: Path) -> None:
    two = json_with(INFO, lambda said: said.update(total_episodes=2, total_frames=19))
    root = copy_of(VIDEO, tmp_path, two, table_with(EPISODES, lambda t: t[:2]))
    assert "video.long" in kinds_of(root)
    assert "video.long" in kinds_of(root, decode=False)


def test_lists_of_several_lengths_are_found(tmp_path: Path) -> None:
    def loosened(table: pa.Table) -> pa.Table:
        values = table["action"].to_pylist()
        values[3] = [1.0, 2.0, 3.0]
        place = table.column_names.index("action")
        return table.set_column(place, "action", pa.array(values, pa.list_(pa.float32())))

    assert "rows.shape" in kinds_of(copy_of(VIDEO, tmp_path, table_with(DATA, loosened)))


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"bytes": b"\x89PNG no picture", "path": None}, "frame 2: "),
        ({"bytes": None, "path": "frame-000002.png"}, "frame 2: "),
    ],
)
def test_pictures_in_tables_are_decoded(stored: dict[str, Any], words: str, tmp_path: Path) -> None:
    root = copy_of(IMAGES, tmp_path, column_with(DATA, CAMERA, entry(2, stored)))
    found = {finding.kind: finding.what for finding in check(root).findings}
    assert words in found["pictures.undecodable"]
    assert kinds_of(root, decode=False) == []


def test_pictures_whose_frames_have_no_numbers_break_nothing(tmp_path: Path) -> None:
    gone = table_with(DATA, lambda table: table.drop_columns("frame_index"))
    empty = column_with(DATA, "frame_index", entry(2, None))
    for name, damage in (("gone", gone), ("empty", empty)):
        found = check(copy_of(IMAGES, tmp_path / name, damage)).findings
        assert any("frame_index" in finding.what for finding in found)


def test_what_only_decoding_shows_is_not_found_without_it(tmp_path: Path) -> None:
    root = copy_of(VIDEO, tmp_path, bytes_with(MOVIE, hurt))
    assert kinds_of(root) == ["video.undecodable"]
    assert kinds_of(root, decode=False) == []


def test_a_finding_of_some_episodes_is_mended_by_leaving_them_out(tmp_path: Path) -> None:
    root = copy_of(VIDEO, tmp_path, column_with(DATA, "timestamp", entry(14, 0.25)))
    (finding,) = check(root).findings
    assert finding.where == f"{DATA}, episode 1"
    assert finding.mend == f"proctor data delete {root} --episodes=1 --output={root}_mended"


def test_the_empty_folder_of_pictures_that_lerobot_leaves_is_nothing(tmp_path: Path) -> None:
    root = copy_of(VIDEO, tmp_path)
    (root / "images/observation.images.top").mkdir(parents=True)
    assert kinds_of(root, decode=False) == []


def test_ranges_are_written_short() -> None:
    assert number_ranges([1, 4, 5, 6, 7, 9]) == "1,4-7,9"


@pytest.mark.parametrize("name", ["tasks.index", "tasks.order", "info.totals frames"])
def test_what_follows_from_the_rest_is_mended(name: str, tmp_path: Path) -> None:
    damage, _ = DAMAGES[name]
    root = copy_of(VIDEO, tmp_path, damage)
    (finding,) = check(root).findings
    assert finding.mend == f"proctor data check {root} --mend"
    replaced = root / TASKS if name.startswith("tasks") else root / "meta/info.json"
    before = replaced.read_bytes()
    _, backup = repair(root)
    kept = root.with_name(f"{root.name}_meta_old")
    assert str(kept) in backup
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == {replaced.name: before}
    assert check(root).findings == ()
    assert read_info(root) == read_info(VIDEO)
    assert read_tasks(root, read_info(root)) == ("push the block", "lift the cup")
    assert repair(root) == []


UNCOUNTED = json_with(INFO, lambda said: said.update(total_episodes=1, total_frames=12))


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_complete_episodes_that_info_json_does_not_count_are_counted_in(
    version: str, tmp_path: Path
) -> None:
    root = tmp_path / "d"
    copy = shutil.copytree(VIDEO, root) if version == "v3.0" else as_v2(VIDEO, root, version)
    whole = read_info(copy)
    UNCOUNTED(root)
    (finding,) = check(root).findings
    assert (finding.kind, finding.level) == ("episodes.beyond", FindingLevel.WARNING)
    assert finding.mend == f"proctor data check {root} --mend"
    repair(root)
    assert read_info(root) == replace(whole, splits={"train": "0:3"})
    assert check(root).findings == ()
    assert repair(root) == []


@pytest.mark.parametrize(
    "damage",
    [
        table_with(DATA, lambda table: table[:-1]),
        column_with(EPISODES, TO, entry(2, 2.5)),
        column_with(EPISODES, FROM, lambda values: values.__setitem__(2, 2.4)),
        column_with(EPISODES, "dataset_from_index", entry(2, 21)),
    ],
    ids=["rows", "span", "video", "gap"],
)
def test_incomplete_episodes_that_info_json_does_not_count_stay_left_out(
    damage: Damage, tmp_path: Path
) -> None:
    root = copy_of(VIDEO, tmp_path, UNCOUNTED, damage)
    assert any("episode 2, incomplete" in done for done in repair(root))
    assert read_info(root).total_episodes == 2
    found = {finding.kind: finding.mend for finding in check(root).findings}
    assert found["episodes.beyond"] == f"proctor data stats {root} --in_place"
    assert main(shlex.split(found["episodes.beyond"])[1:]) == 0
    assert read_info(root).total_episodes == 2
    assert "episodes.beyond" not in kinds_of(root)


def test_a_recording_without_episodes_yet_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "begun"
    features = {"action": {"dtype": "float32", "shape": [2], "names": None}}
    DatasetWriter.create(root, 10, features).close()
    (finding,) = check(root).findings
    assert (finding.kind, finding.level) == ("episodes.none", FindingLevel.WARNING)
    assert finding.mend == f"proctor record --dataset.root={root} --resume"
    assert main(["data", "check", str(root), "--mend"]) == 0
    assert finding.mend in capsys.readouterr().out


def test_tasks_whose_numbers_are_lost_are_not_mended_by_guessing(tmp_path: Path) -> None:
    root = copy_of(VIDEO, tmp_path, column_with(TASKS, "task_index", entry(1, 5)))
    before = (root / TASKS).read_bytes()
    with refuses(DatasetError, "dataset.task-numbering"):
        repair(root)
    assert (root / TASKS).read_bytes() == before


def heading(root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    main(["data", "check", str(root)])
    return capsys.readouterr().out.splitlines()[0]


def test_pictures_of_a_missing_video_do_not_count_as_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of(VIDEO, tmp_path)
    assert heading(root, capsys).endswith("1 camera, every image decoded")
    (root / MOVIE).unlink()
    assert heading(root, capsys).endswith("1 camera, no image decoded")
    main(["data", "check", str(root), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (told["decoded"], told["images"], told["images_decoded"]) == (False, 28, 0)


def test_broken_pictures_are_not_counted_as_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, _ = DAMAGES["video.undecodable"]
    root = copy_of(VIDEO, tmp_path, damage)
    assert re.search(r"1 camera, \d+ of 28 images decoded$", heading(root, capsys))


MENDED = ["tasks.index", "episodes.gap", "columns.missing", "rows.scattered", "rows.null",
          "rows.position", "video.missing", "video.undecodable", "stats.differ",
          "stats.differ colours", "files.orphaned video"]  # fmt: skip
NOBODY_KNOWS = {
    "data.unreadable struct",
    "data.unreadable twice",
    "info.unreadable", "tasks.numbers", "tasks.unreadable", "episodes.unreadable",
    "episodes.numbers", "data.missing", "data.unreadable", "video.size", "video.fps",
}  # fmt: skip
"""What only who made the dataset can mend."""


def run_mend(command: str) -> Path:
    """Run the command of a finding and return the folder of what it made."""
    words = shlex.split(command)
    if words[0] == "rm":
        subprocess.run(words, check=True)
        return Path(words[-1])
    assert words[:2] == ["proctor", "data"]
    assert main(words[1:]) in (0, 1), command
    output = next((word for word in words if word.startswith("--output=")), f"={words[3]}")
    return Path(output.partition("=")[2])


def mended(root: Path) -> list[str]:
    """Mend the first finding that has a command, and again; return what is left."""
    for _ in range(4):
        found = check(root).findings
        command = next((finding.mend for finding in found if finding.mend), None)
        if command is None:
            return [finding.kind for finding in found]
        made = run_mend(command)
        root = made if (made / INFO).exists() else root
    return [finding.kind for finding in check(root).findings]


@pytest.mark.parametrize(
    "name",
    [
        *MENDED,
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in DAMAGES
            if name not in {*MENDED, *NOBODY_KNOWS}
        ),
    ],
)
def test_the_command_of_a_finding_mends_it(name: str, tmp_path: Path) -> None:
    root = copy_of(VIDEO, tmp_path, DAMAGES[name][0])
    before = check(root).findings
    assert any(finding.mend for finding in before), before
    left = mended(root)
    assert set(left) <= {"video.gap", "video.long"}, "frames of nobody stay in a whole video"


@pytest.mark.parametrize("name", sorted(NOBODY_KNOWS))
def test_what_nobody_knows_has_no_command(name: str, tmp_path: Path) -> None:
    found = check(copy_of(VIDEO, tmp_path, DAMAGES[name][0]), decode=False).findings
    assert [finding.mend for finding in found if finding.kind == name.split()[0]] == [""]


@pytest.mark.parametrize("version", ["v2.1", "v2.0"])
def test_older_versions_are_checked_as_they_lie(version: str, tmp_path: Path) -> None:
    root = as_v2(VIDEO, tmp_path / "old", version)
    assert check(root).findings == ()
    movie = f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
    table = "data/chunk-000/episode_000001.parquet"
    assert kinds_of(copy_of(root, tmp_path / "a", removed(movie))) == ["video.missing"]
    damage = column_with(table, "timestamp", entry(3, 9.0))
    assert kinds_of(copy_of(root, tmp_path / "b", damage)) == ["rows.timestamp"]
    lines = (root / "meta/episodes.jsonl").read_text().replace('"length": 7', '"length": 8')
    damaged = copy_of(root, tmp_path / "c")
    (damaged / "meta/episodes.jsonl").write_text(lines)
    assert {"info.totals", "rows.length", "video.short"} <= set(kinds_of(damaged))


def test_the_exit_code_tells_errors_from_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "check", str(VIDEO)]) == 0
    assert capsys.readouterr().out.endswith("every image decoded\nnothing is wrong\n")
    warned = copy_of(VIDEO, tmp_path / "a", DAMAGES["files.unfinished"][0])
    assert main(["data", "check", str(warned), "--fast"]) == 0
    assert capsys.readouterr().out.endswith("0 errors, 1 warning\n")
    wrong = copy_of(VIDEO, tmp_path / "b", DAMAGES["tasks.index"][0])
    assert main(["data", "check", str(wrong), "--fast"]) == 1
    out = capsys.readouterr().out
    assert f"mend: proctor data check {wrong} --mend" in out
    assert main(["data", "check", str(wrong), "--fast", "--mend"]) == 0
    assert main(["data", "check", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_findings_as_json_are_for_scripts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of(VIDEO, tmp_path, DAMAGES["data.missing"][0])
    assert main(["data", "check", str(root), "--fast", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["version"], said["errors"], said["decoded"]) == ("v3.0", 1, False)
    assert said["findings"][0] == {
        "level": FindingLevel.ERROR.value,
        "kind": "data.missing",
        "what": "no such file",
        "where": f"{DATA}, episodes 0, 1, 2",
        "mend": None,
    }


def test_control_codes_of_others_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of(VIDEO, tmp_path, column_with(EPISODES, "tasks", entry(1, ["\x1b[2J"])))
    assert main(["data", "check", str(root), "--fast"]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "x1b[2J" in out


def test_a_number_that_never_changes_has_a_deviation_of_rounding_and_that_is_no_finding(
    tmp_path: Path,
) -> None:
    root = tmp_path / "still"
    features = {"observation.state": {"dtype": "float32", "shape": [2], "names": None}}
    features["action"] = dict(features["observation.state"])
    with DatasetWriter.create(root, 10, features) as writer:
        for frame in range(100):
            state = np.array([0.0194092, frame / 100], np.float32)
            writer.add_frame({"observation.state": state, "action": state}, "stay")
        writer.end_episode()
    assert check(root).findings == ()
