"""Labels of episodes: the file in the run folder, and saving them from a served page."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from proctor.errors import WriteFailed
from proctor.report.run.page_data import page_data
from proctor.report.run.run import load_run
from proctor.report.server.serve import RunServer
from proctor.runs.labels import LABELS_FILE, LabelRecord, append_label, read_labels
from tests.run_folders import eight_episodes, write_run
from tests.served import served

LABEL = {"suite": "point", "task_id": 0, "episode_index": 2, "labels": ["missed the grasp"]}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "one", eight_episodes())


def post(
    server: RunServer, body: Any, path: str = "one/labels", **changed: str | None
) -> tuple[int, str]:
    """Send an edit as the page does; ``changed`` headers, None: left out."""
    headers: dict[str, str | None] = {
        "Content-Type": "application/json",
        "X-Proctor-Token": server.edit_token,
    }
    headers |= {name.replace("_", "-"): value for name, value in changed.items()}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {name: value for name, value in headers.items() if value is not None}
    request = urllib.request.Request(server.url + path, data, sent, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_last_labels_of_an_episode_count(run: Path) -> None:
    append_label(run, LabelRecord("point", 0, 2, ["missed"]))
    append_label(run, LabelRecord("point", 1, 0, ["slipped", "too slow"]))
    append_label(run, LabelRecord("point", 0, 2, ["dropped"]))
    append_label(run, LabelRecord("point", 1, 3, ["x"]))
    append_label(run, LabelRecord("point", 1, 3, []))
    assert read_labels(run) == {
        ("point", 0, 2): ["dropped"],
        ("point", 1, 0): ["slipped", "too slow"],
    }


def test_a_line_that_was_cut_off_costs_only_itself(run: Path) -> None:
    append_label(run, LabelRecord("point", 0, 0, ["kept"]))
    with (run / LABELS_FILE).open("ab") as file:
        file.write(b'{"suite": "poi')
    append_label(run, LabelRecord("point", 0, 1, ["kept too"]))
    assert len(read_labels(run)) == 2


def test_labels_are_never_written_through_a_link(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    (run / LABELS_FILE).symlink_to(target)
    with pytest.raises(WriteFailed):
        append_label(run, LabelRecord("point", 0, 0, ["x"]))
    assert not target.exists()


def test_the_page_and_the_table_of_episodes_have_the_labels(run: Path) -> None:
    append_label(run, LabelRecord("point", 1, 0, ["slipped", "=too slow"]))
    loaded = load_run(run)
    assert (
        page_data(loaded)["episodes"]["labels"]
        == [None] * 4 + [["slipped", "=too slow"]] + [None] * 3
    )
    rows = list(csv.DictReader(io.StringIO(loaded.to_csv())))
    assert [row["labels"] for row in rows][4:6] == ["slipped; =too slow", ""]


def test_a_label_of_the_served_page_is_kept_in_the_run_folder(run: Path) -> None:
    with served(run.parent) as server:
        assert post(server, LABEL) == (200, "saved")
        assert read_labels(run) == {("point", 0, 2): ["missed the grasp"]}
        assert re.fullmatch(rf"{re.escape(server.url)}\?token=.{{22}}", server.edit_url)


def test_no_page_holds_the_token_so_that_another_user_cannot_read_it(run: Path) -> None:
    with served(run.parent) as server:
        for path in ("", "one/"):
            with urllib.request.urlopen(server.url + path, timeout=60) as answer:
                assert server.edit_token is not None
                assert server.edit_token.encode() not in answer.read()


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"X_Proctor_Token": None}, 403),
        ({"X_Proctor_Token": "guessed"}, 403),
        ({"Origin": "https://example.org"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "example.org"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Length": "99999999"}, 413),
        ({"Content_Length": "-1"}, 411),
    ],
)
def test_an_edit_of_a_stranger_is_refused(
    run: Path, changed: dict[str, str | None], status: int
) -> None:
    with served(run.parent) as server:
        assert post(server, LABEL, **changed)[0] == status
        assert not (run / LABELS_FILE).exists()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 10_000,
        {},
        LABEL | {"labels": "missed"},
        LABEL | {"labels": [""]},
        LABEL | {"labels": ["x" * 201]},
        LABEL | {"labels": ["x"] * 21},
        LABEL | {"episode_index": 99},
        LABEL | {"suite": "../.."},
    ],
)
def test_a_body_that_is_no_label_of_the_run_is_refused(run: Path, body: Any) -> None:
    with served(run.parent) as server:
        assert post(server, body)[0] == 400
        assert not (run / LABELS_FILE).exists()


@pytest.mark.parametrize("path", ["labels", "one/report", "one/", "two/labels", "../labels"])
def test_only_the_labels_of_a_run_can_be_edited(run: Path, path: str) -> None:
    with served(run.parent) as server:
        assert post(server, LABEL, path)[0] == 404


def test_a_server_that_other_machines_reach_accepts_no_edits(run: Path) -> None:
    with served(run.parent, "0.0.0.0") as server:
        assert server.edit_token is None
        answer = post(server, LABEL, f"one/labels?token={server.token}")
        assert answer[0] == 403


def test_a_read_only_folder_is_answered_with_the_reason(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Any, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith(LABELS_FILE) and flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    with served(run.parent) as server:
        status, text = post(server, LABEL)
    assert (status, "Permission denied" in text) == (400, True)
