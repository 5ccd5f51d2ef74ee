"""The page server with silent or slow clients, removed runs and symlinks to outside."""

from __future__ import annotations

import re
import resource
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from proctor.report.server import serve
from proctor.report.server.serve import RunServer
from proctor.runs.journal import read_journal
from tests.run_folders import eight_episodes, write_run
from tests.served import served
from tests.unit.commands.test_cli import LONG_RUN, PROCTOR
from tests.unit.report.test_serve import get

VIDEO = "videos/point_0/episode_0.mp4"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with a run that has a video, and another run beside the folder."""
    first = write_run(tmp_path / "runs/first", eight_episodes())
    (first / VIDEO).parent.mkdir(parents=True)
    (first / VIDEO).write_bytes(bytes(100))
    write_run(tmp_path / "outside", eight_episodes())
    return tmp_path / "runs"


@pytest.fixture
def server(runs: Path) -> Iterator[RunServer]:
    with served(runs) as server:
        yield server


def connect(server: RunServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=60)


def get_in(url: str) -> tuple[int, bytes]:
    """Repeat a request until the server accepts it: disconnected clients take a moment to close."""
    until = time.monotonic() + 60
    while True:
        try:
            return get(url)
        except ConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def test_who_connects_and_says_nothing_keeps_nobody_out(server: RunServer) -> None:
    server.max_clients = 8
    before = psutil.Process().num_fds()
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connect(server))
        assert get_in(server.url + "first/")[0] == 200
        assert psutil.Process().num_fds() - before <= 100 + 2 * server.max_clients


def test_the_silent_are_sent_away_also_when_there_is_room(
    server: RunServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_TIMEOUT_S", 0.3)
    with connect(server) as silent:
        assert silent.recv(1) == b""


def test_a_request_that_comes_byte_by_byte_is_not_waited_for(
    server: RunServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte arrives in time, but the whole request would take forever."""
    monkeypatch.setattr(serve, "_TIMEOUT_S", 0.5)
    began = time.monotonic()

    def say_it_slowly(slow: socket.socket) -> None:
        slow.sendall(b"GET / HTTP/1.1\r\n")
        while time.monotonic() - began < 60:
            slow.sendall(b"X")
            time.sleep(0.05)

    with connect(server) as slow, pytest.raises(ConnectionError):
        say_it_slowly(slow)


def test_a_server_with_few_descriptors_hears_fewer_guests(runs: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
    try:
        with served(runs) as server:
            assert server.max_clients == 50
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("path", ["/", "/first/", "/first/version", f"/first/{VIDEO}", "/none"])
def test_head_is_answered_like_get_without_the_body(server: RunServer, path: str) -> None:
    answers = []
    for method in ("GET", "HEAD"):
        with connect(server) as wire:
            wire.sendall(f"{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
            answers.append(wire.makefile("rb").read().split(b"\r\n\r\n", 1))
    (got_head, body), (head, nothing) = answers
    without_date = re.compile(rb"Date: [^\r]*")
    assert without_date.sub(b"", head) == without_date.sub(b"", got_head)
    assert body
    assert nothing == b""


def test_runs_may_be_deleted_while_they_are_looked_at(
    server: RunServer, runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()

    def delete_again_and_again() -> None:
        while not over.is_set():
            shutil.copytree(runs / "first", runs / "second")
            shutil.rmtree(runs / "second")

    thread = threading.Thread(target=delete_again_and_again)
    thread.start()
    try:
        asked = ["", "second/", "second/version", f"second/{VIDEO}"] * 40
        statuses = {get(server.url + path)[0] for path in asked}
    finally:
        over.set()
        thread.join()
    assert statuses <= {200, 404}
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "gone",
    [
        "proctor.report.server.served_pages.load_run",
        "proctor.report.server.served_pages.version_of",
    ],
)
def test_a_run_that_goes_while_it_is_read_is_not_there(
    server: RunServer, runs: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    def vanish(folder: Path) -> None:
        raise FileNotFoundError(2, "No such file or directory", str(folder))

    monkeypatch.setattr(gone, vanish)
    path = "first/version" if gone.endswith("version_of") else "first/"
    assert get(server.url + path) == (404, b"there is nothing here any more")
    assert get(server.url)[0] == 200


def test_a_run_that_is_gone_when_its_turn_comes_is_not_listed(
    server: RunServer, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *asked: [*glob(*asked), runs / "gone" / "run.json"])
    assert get(server.url)[1].count(b'"place":') == 1


def test_a_folder_of_runs_that_is_gone_is_an_empty_list(server: RunServer, runs: Path) -> None:
    shutil.rmtree(runs)
    assert b"No runs here yet" in get(server.url)[1]
    assert get(server.url + "first/")[0] == 404


def test_a_run_that_a_link_leads_to_is_neither_listed_nor_served(
    server: RunServer, runs: Path
) -> None:
    (runs / "linked").symlink_to(runs.parent / "outside")
    page = get(server.url)[1].decode()
    assert page.count("random on fake") == 1
    assert "linked is a link that leads out of the folder" in page
    assert get(server.url + "linked/")[0] == 404


@pytest.mark.parametrize("name", ["run.json", "episodes.jsonl", "sessions.jsonl", "videos"])
def test_a_run_with_a_link_that_leads_out_is_not_shown(
    server: RunServer, runs: Path, name: str
) -> None:
    place, outside = runs / "first" / name, runs.parent / "outside" / name
    if place.is_dir():
        shutil.move(place, outside)
    place.unlink(missing_ok=True)
    place.symlink_to(outside)
    status, text = get(server.url + "first/")
    assert (status, text) == (404, f"{name} is a link that leads out of the folder".encode())
    assert b"random on fake" not in get(server.url)[1]


def test_a_link_inside_the_folder_is_followed(server: RunServer, runs: Path) -> None:
    (runs / "latest").symlink_to("first")
    assert get(server.url + "latest/")[0] == 200


def watched(folder: Path, *words: str) -> tuple[subprocess.Popen[str], str]:
    """Start a run with --live and return the process and the URL it prints."""
    process = subprocess.Popen(
        [*PROCTOR, *LONG_RUN, "--live", "--live_port=0", f"--output_dir={folder}", *words],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    found = re.match(r"live: (http://127\.0\.0\.1:\d+/)", process.stderr.readline())
    assert found
    return process, found[1]


def test_idle_connections_take_nothing_from_the_evaluation(tmp_path: Path) -> None:
    process, url = watched(tmp_path / "run")
    host, port = url.rstrip("/").removeprefix("http://").split(":")
    before = psutil.Process(process.pid).num_fds()
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
        assert psutil.Process(process.pid).num_fds() < before + 20
        assert get_in(url)[0] == 200
        process.communicate(timeout=120)
    assert process.returncode == 0
    assert len(read_journal(tmp_path / "run").rows) == 40


def test_the_server_of_a_killed_run_goes_with_it(tmp_path: Path) -> None:
    process, _ = watched(tmp_path / "run")
    family = psutil.Process(process.pid).children(recursive=True)
    assert any("spawn_main" in " ".join(child.cmdline()) for child in family)
    process.kill()
    process.communicate()
    assert psutil.wait_procs(family, timeout=60)[1] == []
