"""Run folders of older versions, kept in ``data``, and of newer versions."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from proctor.cli import main
from proctor.errors import RunFolderError
from proctor.report.server.served_pages import list_page, live_page
from proctor.runs.folder import RunFolder
from proctor.runs.journal import JOURNAL_FILE, read_journal
from proctor.runs.records import PlannedTask
from proctor.system.platform.platform_info import installed_versions
from proctor.types import Perturbation
from tests.refusals import refuses
from tests.run_folders import RECORD, eight_episodes, write_run

DATA = Path(__file__).with_name("data")
FIRST, UNNUMBERED = "497bc44", "before_formats"
"""By that commit, whose protocol is of format 1; and by 4421702, the last without numbers."""


@pytest.fixture(params=[FIRST, UNNUMBERED])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return kept(request.param, tmp_path)


def kept(name: str, tmp_path: Path) -> Path:
    """Return a copy with the versions installed here and another processor."""
    folder = Path(shutil.copytree(DATA / name, tmp_path / name))
    if name == UNNUMBERED:
        known = installed_versions(("numpy",))
        here = {name: known[name] for name in ("numpy", "proctor")}
        here["python"] = ".".join(known["python"].split(".")[:2])
        change(
            folder, protocol=read(folder)["protocol"] | {"versions": here}, bit_reproducible=False
        )
    return folder


def read(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return content


def change(folder: Path, **fields: Any) -> None:
    (folder / "run.json").write_text(json.dumps(read(folder) | fields))


def test_the_kept_folders_are_from_before_the_number() -> None:
    for name in (FIRST, UNNUMBERED):
        assert "format" not in read(DATA / name)
        assert '"format"' not in (DATA / name / JOURNAL_FILE).read_text()


def test_planned_tasks_keep_their_perturbation_and_old_ones_are_clean(tmp_path: Path) -> None:
    clean = PlannedTask("easy", 3, "reach", "Reach.", 500, 5)
    moved = Perturbation("camera", 2, clean_suite="easy", clean_task_id=3)
    tasks = [clean, replace(clean, suite="easy@camera-2", perturbation=moved)]
    folder = RunFolder(write_run(tmp_path, [], replace(RECORD, tasks=tasks)))
    assert (record := folder.read())
    assert record.tasks == tasks
    old = [{key: value for key, value in asdict(clean).items() if key != "perturbation"}]
    change(tmp_path, tasks=old)
    assert (record := folder.read())
    assert record.tasks == [clean]


def test_an_old_folder_is_reported(old: Path) -> None:
    assert main(["report", str(old)]) == 0
    assert "point-1" in (old / "report.html").read_text()


def test_an_old_folder_is_shown_in_the_browser(old: Path) -> None:
    assert "point-1" in live_page(old)
    assert "0.0% [0.0, 49.0] n=4" in list_page(old.parent)


def test_an_old_folder_is_audited_by_outcomes_and_returns(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(old)]) == 0
    told = capsys.readouterr().out
    assert "digests are not compared" in told
    assert "4 episodes run again, 0 different" in told


def test_old_folders_are_compared_with_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(kept(FIRST, tmp_path)), str(kept(UNNUMBERED, tmp_path))]) == 0
    assert "with 4 pairs, a true difference of" in capsys.readouterr().out


def test_the_first_folder_is_not_resumed_and_the_last_without_a_number_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, last = kept(FIRST, tmp_path), kept(UNNUMBERED, tmp_path)
    assert main(["eval", "--resume", f"--output_dir={first}"]) == 2
    assert f"--resume: {first}" in capsys.readouterr().err
    assert main(["eval", "--resume", f"--output_dir={last}", "--eval.n_episodes=3"]) == 0
    assert read(last)["format"] == 1
    formats = [json.loads(line).get("format") for line in (last / JOURNAL_FILE).open()]
    assert formats == [None] * 4 + [1] * 2
    assert len(read_journal(last).rows) == 6


@pytest.mark.parametrize("command", ["report", "audit", "compare", "eval"])
@pytest.mark.parametrize("record", ["run.json", "protocol", "journal"])
def test_a_folder_of_a_newer_proctor_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record: str, command: str
) -> None:
    folder = kept(UNNUMBERED, tmp_path)
    if record == "run.json":
        (folder / "run.json").write_text('{"format": 2, "settings": "look different then"}')
    elif record == "protocol":
        change(folder, protocol={"format": 3})
    else:
        with (folder / JOURNAL_FILE).open("a") as journal:
            journal.write('{"format": 2, "episode": "looks different then"}\n')
    words = {
        "compare": [str(folder), str(folder)],
        "eval": ["--resume", f"--output_dir={folder}"],
    }.get(command, [str(folder)])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main([command, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is of format" in line
    assert "this Proctor reads up to" in line
    assert "is of format" in list_page(tmp_path)
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}
    assert after == before


def test_a_whole_line_of_a_higher_format_is_refused_too(tmp_path: Path) -> None:
    rows = eight_episodes()
    rows[2].format = 2
    with refuses(RunFolderError, "run.too-new") as refused:
        read_journal(write_run(tmp_path, rows))
    assert "line 3 of" in str(refused.value)
    assert "format 2" in str(refused.value)


def test_a_damaged_line_is_no_newer_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path, eight_episodes())
    with (folder / JOURNAL_FILE).open("a") as journal:
        journal.write('{"format": "2"}\n{"format": -1}\n[2]\n')
    assert read_journal(folder).damaged == [9, 10, 11]


def test_what_is_no_number_is_a_damaged_run_json(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [])
    change(folder, format="two")
    with refuses(RunFolderError, "run.damaged"):
        RunFolder(folder).read()
