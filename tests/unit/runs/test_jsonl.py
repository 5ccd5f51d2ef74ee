"""The reader of JSON-lines logs: complete lines count, damaged ones are named, cut ones are not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from proctor.errors import RunFolderError, WriteFailed
from proctor.runs.folder import write_run_file
from proctor.runs.jsonl import read_jsonl, truncate_partial_line
from proctor.runs.sessions import read_session_totals
from proctor.runs.training import read_training_log
from proctor.runs.videos import remove_unfinished
from tests.refusals import refuses

decode = msgspec.json.Decoder(int).decode


def test_complete_lines_are_decoded_and_damaged_ones_keep_their_number(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b'1\n"text"\n\xff\n\n4\n')
    lines = list(read_jsonl(log, decode))
    assert [(line.number, line.value) for line in lines] == [
        (1, 1), (2, None), (3, None), (4, None), (5, 4),
    ]  # fmt: skip
    assert b"".join(line.text for line in lines) == log.read_bytes()


def test_a_last_line_without_its_newline_was_cut_off_and_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"1\n23")
    assert [line.value for line in read_jsonl(log, decode)] == [1]
    truncate_partial_line(log)
    assert log.read_bytes() == b"1\n"
    truncate_partial_line(log)
    assert log.read_bytes() == b"1\n"


def test_a_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert list(read_jsonl(tmp_path / "log.jsonl", decode)) == []
    truncate_partial_line(tmp_path / "log.jsonl")
    assert not (tmp_path / "log.jsonl").exists()


def test_a_folder_in_place_of_a_log_is_refused(tmp_path: Path) -> None:
    for name, read in (("log.jsonl", read_training_log), ("sessions.jsonl", read_session_totals)):
        (tmp_path / name).mkdir()
        with refuses(RunFolderError, "run.unreadable") as refused:
            read(tmp_path)
        assert str(tmp_path / name) in str(refused.value)


def test_a_removed_run_folder_is_not_created_again(tmp_path: Path) -> None:
    with pytest.raises(WriteFailed):
        write_run_file(tmp_path / "gone" / "run.json", "{}")
    assert not (tmp_path / "gone").exists()


def test_unfinished_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / "videos" / "task").mkdir(parents=True)
    unfinished = [".run.json.7.part", "videos/.warnings.json.7.part", "videos/task/a.mp4.part"]
    for name in [*unfinished, "run.json", "mine.part"]:
        (tmp_path / name).touch()
    remove_unfinished(tmp_path)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        "run.json",
        "mine.part",
    }
