"""Edits of a dataset from its page: what they do, what they refuse, and who may ask for them."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proctor.cli import main
from proctor.commands.data import view as data_view
from proctor.datasets.format.info_file import read_info
from proctor.datasets.format.tasks import read_tasks
from proctor.report.dataset import edits as dataset_edits
from proctor.report.dataset.edits import EditState, dataset_version, parse_edit
from proctor.report.dataset.site import DatasetSite
from proctor.report.server.serve import PageServer
from proctor.system import files
from tests.refusals import refuses
from tests.served import serving
from tests.unit.datasets.damage import VIDEO, copy_of
from tests.unit.report.test_dataset_page import get, values_of


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "sync", lambda fd: None)  # nothing here cuts the power
    return copy_of(VIDEO, tmp_path)


@pytest.fixture
def server(root: Path) -> Iterator[PageServer]:
    with serving(DatasetSite(root, editable=True)) as server:
        yield server


def editor(server: PageServer) -> dataset_edits.DatasetEditor:
    assert isinstance(server.site, DatasetSite)
    return server.site.editor


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def post(
    server: PageServer, operation: str, episodes: list[int], **given: str
) -> tuple[int, dict[str, Any] | str]:
    """Send an edit as the page does."""
    values = {"operation": operation, "episodes": episodes}
    values |= {"version": dataset_version(server.site.root)} | given
    return send(server, json.dumps(values).encode())


def send(server: PageServer, body: bytes, **changed: str | None) -> tuple[int, Any]:
    headers: dict[str, str | None] = {
        "Content-Type": "application/json",
        "X-Proctor-Token": server.edit_token,
    }
    headers |= {name.replace("_", "-"): value for name, value in changed.items()}
    sent = {name: value for name, value in headers.items() if value is not None}
    request = urllib.request.Request(server.url + "edit", body, sent, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def ended(server: PageServer) -> dict[str, Any]:
    editor(server).wait()
    status: dict[str, Any] = json.loads(get(f"{server.url}edit")[1])
    return status


def test_marked_episodes_are_deleted_and_the_page_shows_the_rest(
    server: PageServer, root: Path
) -> None:
    code, begun = post(server, "delete", [0, 2])
    assert (code, begun["state"], begun["title"]) == (200, "running", "delete 2 episodes")
    status = ended(server)
    backup = root.with_name(f"{root.name}_old")
    assert (status["state"], status["backup"]) == ("done", str(backup))
    assert status["written"] == [f"{root} (1 episode)"]
    assert read_info(backup).total_episodes == 3
    values = values_of(get(server.url)[1].decode())
    assert values["episodes"]["length"] == [7]
    assert values["edit"] == status
    said = json.loads(get(f"{server.url}episode/0?v={values['version']}")[1])
    assert said["said"] == [[0, "lift the cup"]]
    assert get(f"{server.url}{said['media'][0]['url']}?v={values['version']}")[0] == 200


def test_marked_episodes_get_another_task(server: PageServer, root: Path) -> None:
    assert post(server, "relabel", [1, 1], task=" wipe the table ")[0] == 200
    assert ended(server)["title"] == "relabel 1 episode: wipe the table"
    assert read_tasks(root, read_info(root)) == ("push the block", "wipe the table")
    kept = root.with_name(f"{root.name}_old")
    assert read_tasks(kept, read_info(kept)) == ("push the block", "lift the cup")


@pytest.mark.parametrize("others", ["", "train"])
def test_marked_episodes_become_a_dataset_of_their_own(
    server: PageServer, root: Path, others: str
) -> None:
    before = contents(root)
    assert post(server, "split", [2, 0], marked_name="val", others_name=others)[0] == 200
    status = ended(server)
    assert status["backup"] is None, "the dataset is not changed"
    written = {path.name: read_info(path).total_episodes for path in root.parent.iterdir()}
    expected = {root.name: 3, f"{root.name}_val": 2}
    assert written == expected | ({f"{root.name}_train": 1} if others else {})
    assert contents(root) == before


@pytest.mark.parametrize(
    ("operation", "episodes", "given", "why"),
    [
        ("delete", [0, 1, 2], {}, "none would remain"),
        ("delete", [3], {}, "no episode 3"),
        ("relabel", [0], {"task": "  "}, "cannot be empty"),
        ("split", [0], {"marked_name": ""}, "name of a folder"),
        ("split", [0], {"marked_name": "../x"}, "'../x'"),
        ("split", [0], {"marked_name": "a", "others_name": "a"}, "two names"),
        ("split", [0, 1, 2], {"marked_name": "a", "others_name": "b"}, "'b' has no episodes"),
        ("split", [0], {"marked_name": "x" * 300}, "too long"),
    ],
)
def test_an_edit_that_fails_leaves_the_dataset_and_says_why(
    server: PageServer, root: Path, operation: str, episodes: list[int], given: Any, why: str
) -> None:
    before = contents(root.parent)
    assert post(server, operation, episodes, **given)[0] == 200
    status = ended(server)
    assert status["state"] == "failed"
    assert why in status["reason"]
    assert "\n" not in status["reason"]
    assert contents(root.parent) == before
    assert post(server, "delete", [0])[0] == 200, "and the next one runs"
    assert ended(server)["state"] == "done"


def test_a_second_edit_is_refused_while_one_runs(
    server: PageServer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, make = threading.Event(), dataset_edits.edit

    def slow(*words: Any) -> Any:
        assert go_on.wait(60)
        return make(*words)

    monkeypatch.setattr(dataset_edits, "edit", slow)
    assert post(server, "delete", [0])[0] == 200
    assert json.loads(get(f"{server.url}edit")[1])["state"] == "running"
    code, text = post(server, "delete", [1])
    assert (code, "another edit is running (delete 1 episode)" in text) == (400, True)
    go_on.set()
    assert ended(server)["state"] == "done"
    assert read_info(root).total_episodes == 2


def test_a_page_of_an_older_dataset_edits_nothing_and_shows_nothing(
    server: PageServer, root: Path
) -> None:
    old = dataset_version(root)
    assert main(["data", "delete", str(root), "--episodes=0", "--in_place"]) == 0
    code, text = post(server, "delete", [0], version=old)
    assert (code, "reload the page" in text) == (400, True)
    assert values_of(get(server.url)[1].decode())["total"] == 2, "a reload shows the new one"
    for path in ("episode/0", "video/0/0/0.mp4", "picture/0/0/0.jpg"):
        assert get(f"{server.url}{path}?v={old}")[0] == 404
    assert read_info(root).total_episodes == 2


def test_a_dataset_that_changes_before_it_is_locked_is_not_edited(
    server: PageServer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = dataset_edits.edit

    def late(*words: Any) -> Any:
        main(["data", "delete", str(root), "--episodes=0", "--in_place"])
        return make(*words)

    monkeypatch.setattr(dataset_edits, "edit", late)
    post(server, "delete", [0])
    assert "has changed" in ended(server)["reason"]
    assert read_info(root).total_episodes == 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"operation": "format", "episodes": [0], "version": ""}',
        b'{"operation": "delete", "episodes": [], "version": ""}',
        b'{"operation": "delete", "episodes": [-1], "version": ""}',
        b'{"operation": "delete", "episodes": ["0"], "version": ""}',
        b'{"operation": "delete", "episodes": [0]}',
    ],
)
def test_what_is_no_edit_is_refused(body: bytes) -> None:
    with refuses(dataset_edits.UsageError, "edit.invalid") as refused:
        parse_edit(body)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"X_Proctor_Token": None},
        {"X_Proctor_Token": "guessed"},
        {"Origin": "https://example.org"},
        {"Origin": "null"},
        {"Host": "example.org"},
    ],
)
def test_only_who_has_the_token_edits(
    server: PageServer, root: Path, changed: dict[str, str | None]
) -> None:
    values = {"operation": "delete", "episodes": [0], "version": dataset_version(root)}
    assert send(server, json.dumps(values).encode(), **changed)[0] == 403
    assert editor(server).status.state is EditState.NONE
    assert server.edit_token is not None
    for path in ("", "edit", "episode/0"):
        assert server.edit_token.encode() not in get(server.url + path)[1]


def test_a_server_that_others_reach_accepts_no_edit(root: Path) -> None:
    server = PageServer(DatasetSite(root, editable=False), "0.0.0.0", 0)
    assert server.edit_token is None
    server.server_close()
    site = DatasetSite(root, editable=False)
    assert site.post("/edit", root, b"{}") is None


def test_ctrl_c_waits_for_a_running_edit(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on, make, wait = threading.Event(), dataset_edits.edit, dataset_edits.DatasetEditor.wait

    def slow(*words: Any) -> Any:
        assert go_on.wait(60)
        return make(*words)

    def waiting(waited_for: dataset_edits.DatasetEditor) -> None:
        go_on.set()
        wait(waited_for)

    monkeypatch.setattr(dataset_edits, "edit", slow)
    monkeypatch.setattr(dataset_edits.DatasetEditor, "wait", waiting)

    def serve(server: PageServer) -> int:
        assert isinstance(server.site, DatasetSite)
        values = {"operation": "delete", "episodes": [0], "version": dataset_version(root)}
        server.site.post("/edit", root, json.dumps(values).encode())
        server.server_close()
        return 0

    monkeypatch.setattr(data_view, "serve_until_interrupted", serve)
    assert main(["view", str(root), "--port=0"]) == 0
    out = capsys.readouterr().out
    assert "waiting for the running edit (delete 1 episode)" in out
    assert f"backup: {root.with_name(root.name + '_old')}" in out
    assert read_info(root).total_episodes == 2
