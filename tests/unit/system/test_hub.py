"""Downloads from a Hub that may be faulty or hostile: a server on loopback."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub")

from proctor.errors import HubUnreachable, UsageError
from proctor.system.hub import client as hub_client
from proctor.system.hub import files as hub_files
from proctor.system.hub.repositories import HubLocation, download, hub_api, revisions, uploading
from tests.loopback_hub import TOKEN, LoopbackHub, Request, entry, loopback_hub, serving
from tests.refusals import refuses

WEIGHTS = bytes(range(256)) * 64
FILES = {"config.json": b'{"type": "act"}', "model.safetensors": WEIGHTS}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    with loopback_hub(tmp_path, monkeypatch) as made:
        made.commits.append(dict(FILES))
        made.large.add("model.safetensors")
        yield made


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def on(where: str, *answers: Callable[[Request], bool]) -> Callable[[Request, str], bool]:
    """Return a hook that answers requests to paths with ``where`` one after another."""
    left = list(answers)
    return lambda request, path: (
        where in path and bool(left) and (left.pop(0) if len(left) > 1 else left[0])(request)
    )


def raw(body: bytes, **headers: str) -> Callable[[Request], bool]:
    return lambda request: request.reply(200, body, **headers)


def value(thing: object) -> Callable[[Request], bool]:
    return lambda request: request.json(thing)


def test_files_are_the_commits_and_are_asked_for_once(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = download("me/it", None)
    assert folder == tmp_path / "cache/models--me--it/snapshots" / hub.commit
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert (folder / "model.safetensors").is_symlink()
    count = len(hub.asked)
    assert download("me/it", None, ["*.json"]) == folder
    assert len(hub.asked) == count + 1  # which commit it is


def test_without_a_network_an_earlier_download_is_used(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = download("me/it", None)
    hub.hook = on("/", lambda request: request.reply(404, X_Error_Code="RepoNotFound"))
    assert download("me/it", None) == folder
    with refuses(UsageError, "hub.not-found"):
        download("me/other", None)
    assert download("me/it", hub.commit, location=HubLocation(offline=True)) == folder
    (folder / "config.json").unlink()
    with refuses(HubUnreachable, "hub.unreachable"):
        download("me/it", None, location=HubLocation(offline=True))


def test_a_flipped_bit_in_weights_is_refused_and_never_kept(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    changed = bytearray(WEIGHTS)
    changed[5000] ^= 1
    hub.hook = on("resolve/", raw(bytes(changed)))
    with refuses(UsageError, "hub.wrong-bytes") as refused:
        download("me/it", None, ["model.safetensors"])
    assert "model.safetensors" in str(refused.value)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    hub.hook = None
    blob = (download("me/it", None) / "model.safetensors").resolve()
    blob.write_bytes(changed)  # another program, or the disk
    assert (download("me/it", None) / "model.safetensors").read_bytes() == WEIGHTS
    blob.write_bytes(changed)
    with refuses(UsageError, "hub.wrong-bytes"):
        download("me/it", hub.commit, location=HubLocation(offline=True))


@pytest.mark.parametrize("header", ["ETag", "X_Linked_ETag", "X_Repo_Commit"])
def test_headers_choose_no_place_on_the_disk(hub: LoopbackHub, tmp_path: Path, header: str) -> None:
    up = "../" * 4 + "outside"
    hub.hook = on("config.json", raw(FILES["config.json"], **{header: f'"{up}"'}))
    download("me/it", None)
    assert not list(tmp_path.rglob("outside*"))


MALFORMED = {
    "a list of no files": ("/tree/", {"a": 1}),
    "an entry of null": ("/tree/", [None]),
    "a file without a path": ("/tree/", [{"type": "file", "size": 1, "oid": "0" * 40}]),
    "a negative size": ("/tree/", [{**entry("a", b"x"), "size": -1}]),
    "a size of true": ("/tree/", [{**entry("a", b"x"), "size": True}]),
    "an id that is none": ("/tree/", [{**entry("a", b"x"), "oid": "../x"}]),
    "a large file without a size": ("/tree/", [{**entry("a", b"x"), "lfs": {"oid": "0" * 64}}]),
    "a long name": ("/tree/", [entry("a" * 5000, b"x")]),
    "a name with NUL": ("/tree/", [entry("a\0b", b"x")]),
    "a name that leads out": ("/tree/", [entry("a/../../b", b"x")]),
    "an absolute name": ("/tree/", [entry("/etc/x", b"x")]),
    "a name that is no text": ("/tree/", [entry("\ud800", b"x")]),
    "two files of one name": ("/tree/", [entry("a", b"x"), entry("a", b"y")]),
    "no commit": ("/revision/", {"id": "me/it"}),
    "a commit that leads out": ("/revision/", {"sha": "../../../../outside"}),
    "a commit that is a number": ("/revision/", {"sha": 7}),
    "a list": ("/revision/", []),
    "no branches": ("/refs", {"tags": []}),
    "a branch without a name": ("/refs", {"branches": [{}], "tags": []}),
    "null": ("/refs", None),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_an_answer_that_is_not_the_hubs_is_one_line(
    hub: LoopbackHub, tmp_path: Path, name: str
) -> None:
    where, thing = MALFORMED[name]
    hub.hook = on(where, value(thing))
    with refuses(UsageError, "hub.bad-answer") as refused:
        revisions("me/it", "model") if where == "/refs" else download("me/it", None)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    "body",
    [b"<html>log in</html>", b"[" * 200_000, b"\xff\xfe", b'["' + b"x" * 9 * 2**20 + b'"]', b"NaN"],
    ids=["a page", "brackets", "bytes", "9 MB", "NaN"],
)
def test_a_body_that_is_no_small_json_is_one_line(hub: LoopbackHub, body: bytes) -> None:
    hub.hook = on("/revision/", raw(body))
    with refuses(UsageError, "hub.bad-answer"):
        download("me/it", None)


def test_a_compressed_answer_is_refused(hub: LoopbackHub) -> None:
    bomb = gzip.compress(json.dumps(["x" * 2**20]).encode())
    hub.hook = on("/tree/", raw(bomb, Content_Encoding="gzip"))
    with refuses(UsageError, "hub.bad-answer"):
        download("me/it", None)


def test_a_listing_without_end_is_refused(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def page(request: Request) -> bool:
        asked.append(1)
        more = f'<{hub.endpoint}/api/models/me/it/tree/x?cursor={len(asked)}>; rel="next"'
        return request.json([entry(f"{len(asked)}", b"")], link=more)

    hub.hook = on("/tree/", page)
    monkeypatch.setattr(hub_client, "_MAX_PAGES", 5)
    with refuses(UsageError, "hub.bad-answer"):
        download("me/it", None)
    assert len(asked) == 5
    monkeypatch.setattr(hub_files, "_MAX_FILES", 3)
    with refuses(UsageError, "hub.bad-answer"):
        download("me/it", None)
    assert len(asked) == 9


def test_the_pages_of_a_listing_are_asked_of_the_hub_alone(hub: LoopbackHub) -> None:
    other = LoopbackHub()
    with serving(other) as address:
        more = f'<{address}/api/models/me/it/tree/x?cursor=1>; rel="next"'
        listed = [entry(n, c, large=n in hub.large) for n, c in FILES.items()]
        hub.hook = on("/tree/", lambda r: r.json(listed[:1], link=more), value(listed[1:]))
        assert names(download("me/it", None)) == set(FILES)
    assert other.asked == []


def test_the_token_never_goes_to_another_host(hub: LoopbackHub) -> None:
    other = LoopbackHub(commits=[{}, dict(FILES)])
    with serving(other) as address:
        hub.hook = on(
            "/resolve/", lambda request: request.reply(302, Location=address + request.path)
        )
        assert names(download("me/it", None)) == set(FILES)
    assert {sent for _, _, sent in hub.asked} == {f"Bearer {TOKEN}"}
    assert len(other.asked) == 2
    assert {sent for _, _, sent in other.asked} == {None}


def endless(piece: bytes, go_on: threading.Event) -> Callable[[Request], bool]:
    """Return an answer that sends ``piece`` again and again until the client is gone."""

    def answer(request: Request) -> bool:
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for _ in range(20_000):
            request.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            go_on.wait(0.01)
        return True

    return answer


def test_a_body_ends_at_the_listed_size(hub: LoopbackHub, tmp_path: Path) -> None:
    go_on = threading.Event()
    go_on.set()
    hub.hook = on("config.json", endless(b"x" * 2**16, go_on))
    with refuses(UsageError, "hub.bad-answer"):
        download("me/it", None)
    left = [path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert sum(left) <= len(WEIGHTS)


def test_a_body_that_stalls_is_not_waited_for(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_client, "_STALLED_S", 0.05)
    hub.hook = on("model.safetensors", endless(b"x", threading.Event()))
    with refuses(UsageError, "hub.bad-answer"):
        download("me/it", None)


@pytest.mark.parametrize("wait", ["1000000000", "9" * 5000])
def test_a_wait_without_end_is_refused(hub: LoopbackHub, wait: str) -> None:
    hub.hook = on("config.json", lambda request: request.reply(429, Retry_After=wait))
    with refuses(UsageError, "hub.busy"):
        download("me/it", None)
    hub.hook = on("/refs", lambda request: request.reply(429, Retry_After=wait))
    with refuses(UsageError, "hub.busy"), uploading("me/it"):
        hub_api().list_repo_refs("me/it")


def test_a_short_outage_is_waited_for(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_client, "_RETRY_AFTER_S", (0, 0))
    files = lambda request: hub.answer(request, request.path, b"")  # noqa: E731
    hub.hook = on("config.json", lambda request: request.reply(503), files)
    assert names(download("me/it", None)) == set(FILES)


def test_a_connection_that_breaks_is_continued_where_it_broke(hub: LoopbackHub) -> None:
    def broken(request: Request) -> bool:
        request.send_response(200)
        request.send_header("Content-Length", str(len(WEIGHTS)))
        request.end_headers()
        request.wfile.write(WEIGHTS[:1000])
        request.close_connection = True
        return True

    ranges: list[str | None] = []

    def rest(request: Request) -> bool:
        ranges.append(request.headers.get("Range"))
        return request.reply(206, WEIGHTS[1000:])

    hub.hook = on("model.safetensors", broken, rest)
    assert (download("me/it", None) / "model.safetensors").read_bytes() == WEIGHTS
    assert ranges == ["bytes=1000-"]


def test_a_folder_holds_one_repository_at_one_commit(hub: LoopbackHub, tmp_path: Path) -> None:
    place = HubLocation(folder=tmp_path / "mine")
    hub.hook = on("model.safetensors", lambda request: request.reply(404))
    with pytest.raises(UsageError):
        download("me/it", None, location=place)
    hub.hook = None
    with refuses(UsageError, "hub.other-download"):
        download("me/other", None, location=place)
    hub.commits.append({"config.json": b"{}"})
    with refuses(UsageError, "hub.other-download"):
        download("me/it", None, location=place)
    download("me/it", f"{1:040x}", location=place)
    assert (tmp_path / "mine/model.safetensors").read_bytes() == WEIGHTS


def test_a_malformed_answer_to_an_upload_is_one_line(hub: LoopbackHub) -> None:
    for thing in (None, [], {"branches": [{}], "tags": [], "converts": []}):
        hub.hook = on("/refs", value(thing))
        with refuses(UsageError, "hub.bad-answer"), uploading("me/it"):
            hub_api().list_repo_refs("me/it")
    hub.hook = on("/refs", raw(b'["' + b"x" * 9 * 2**20 + b'"]'))
    with refuses(UsageError, "hub.bad-answer"), uploading("me/it"):
        hub_api().list_repo_refs("me/it")


def test_a_cache_that_another_program_filled_is_compared_with_its_own_names(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    folder = download("me/it", None)
    shutil.rmtree(tmp_path / "user_cache")  # the listing
    offline = HubLocation(offline=True)
    assert download("me/it", hub.commit, location=offline) == folder
    (folder / "config.json").resolve().write_bytes(b"{}")
    with refuses(UsageError, "hub.wrong-bytes"):
        download("me/it", hub.commit, location=offline)


def test_any_repository_id_is_refused_that_is_none(hub: LoopbackHub) -> None:
    for repo in ("a//b", "~x/y", "a/b/c", "../a"):
        with refuses(UsageError, "hub.invalid-id"):
            download(repo, None)
    assert hub.asked == []
