from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proctor.errors import UsageError
from proctor.evaluation.run import Evaluation
from proctor.report.run.run import load_run
from proctor.report.server.serve import RunServer
from proctor.report.server.served_pages import refresh_interval_s, version_of
from proctor.runs.folder import RunFolder
from tests.conftest import evaluating_in
from tests.refusals import refuses
from tests.served import served


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    run = evaluating_in(folder)
    first = run(policy__type="expert", output_dir=str(folder / "runs/first"))
    run(output_dir=str(folder / "runs/deep/<b>second"))
    (folder / "secret.mp4").write_text("secret")
    video = first.path / first.rows[0].video
    video.parent.mkdir(parents=True)
    video.write_bytes(bytes(range(100)))
    return folder


@pytest.fixture
def runs(played: Path, tmp_path: Path) -> Path:
    """A new folder with two runs, one with a video, and a secret beside them."""
    shutil.copytree(played, tmp_path, dirs_exist_ok=True)
    return tmp_path / "runs"


@pytest.fixture
def server(runs: Path) -> Iterator[RunServer]:
    with served(runs) as server:
        yield server


def get(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=60
        ) as page:
            return page.status, page.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_list_names_every_run_with_its_rate(server: RunServer) -> None:
    status, body = get(server.url)
    page = body.decode()
    assert status == 200
    assert "expert on fake" in page
    assert "100.0% [51.0, 100.0] n=4" in page
    assert '"href":"/first/"' in page
    assert "deep/\\u003cb\\u003esecond" in page, "names are text, never markup"
    assert "<b>second" not in page


def test_a_run_is_served_as_its_page_and_follows_the_journal(server: RunServer, runs: Path) -> None:
    status, body = get(server.url + "first/")
    assert status == 200
    version = version_of(runs / "first")
    assert f'"live":"{version}"'.encode() in body
    assert b'"look_every_s":2.0' in body
    assert b"connect-src 'self'" in body
    assert get(server.url + "first/version") == (200, version.encode())
    with (runs / "first" / "episodes.jsonl").open("a") as journal:
        journal.write("\n")
    assert get(server.url + "first/version")[1] != version.encode()


def test_the_page_on_disk_asks_for_nothing(runs: Path) -> None:
    page = (runs / "first" / "report.html").read_text()
    assert '"live":' not in page
    assert "connect-src" not in page


def test_videos_are_sent_whole_or_in_part(server: RunServer, runs: Path) -> None:
    (video,) = (runs / "first").glob("videos/*/*.mp4")
    url = server.url + video.relative_to(runs).as_posix()
    assert get(url) == (200, bytes(range(100)))
    assert get(url, Range="bytes=10-19") == (206, bytes(range(10, 20)))
    assert get(url, Range="bytes=90-") == (206, bytes(range(90, 100)))
    assert get(url, Range="bytes=200-")[0] == 416


@pytest.mark.parametrize(
    "path",
    [
        "../secret.mp4",
        "%2e%2e/secret.mp4",
        "first/report.html",
        "first/.lock",
        "x/run.json",
        "first/../../secret.mp4",
        "x/",
        "compare/",
        "run.json",
    ],
)
def test_nothing_else_is_served(server: RunServer, path: str) -> None:
    with socket.create_connection(("127.0.0.1", server.server_address[1])) as raw:
        raw.sendall(f"GET /{path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
        answer = raw.makefile("rb").read()
    assert b" 404 " in answer.splitlines()[0]
    assert b"secret" not in answer


def test_the_files_of_a_run_can_be_looked_at(server: RunServer, runs: Path) -> None:
    named = b'"files":["run.json","eval_info.json","episodes.jsonl","episodes.csv"]'
    assert named in get(server.url)[1]
    for name in ("run.json", "eval_info.json", "episodes.jsonl"):
        assert get(f"{server.url}first/{name}") == (200, (runs / "first" / name).read_bytes())


def test_the_episodes_are_served_as_the_csv_that_report_writes(
    server: RunServer, runs: Path
) -> None:
    assert get(server.url + "first/episodes.csv")[1].decode() == load_run(runs / "first").to_csv()


def test_a_file_that_is_a_link_out_of_the_folder_is_not_sent(
    server: RunServer, runs: Path, tmp_path: Path
) -> None:
    (runs / "first" / "workers.log").symlink_to(tmp_path / "secret.mp4")
    status, body = get(server.url + "first/workers.log")
    assert status == 404
    assert b"secret" not in body.replace(b"secret.mp4", b"")


def test_two_runs_of_the_list_are_compared(server: RunServer) -> None:
    second = urllib.parse.quote("/deep/<b>second/")
    status, body = get(f"{server.url}compare?run=/first/&run={second}")
    assert status == 200
    assert b'"title":"\\u003cb\\u003esecond against first"' in body
    assert b'"report":"/first/"' in body, "its page as it is served, not a file"
    assert str(server.site.root).encode() not in body


@pytest.mark.parametrize("query", ["", "?run=/first/", "?run=/first/&run=/../", "?run=%00&run=/x/"])
def test_what_is_no_pair_of_runs_is_not_compared(server: RunServer, query: str) -> None:
    status, body = get(f"{server.url}compare{query}")
    assert status == 404
    assert b"runs" in body


def test_a_page_says_whether_its_run_goes_on(server: RunServer, runs: Path) -> None:
    before = version_of(runs / "first")
    assert b'"status":"complete"' in get(server.url + "first/")[1]
    with RunFolder(runs / "first").locked():
        assert b'"status":"running"' in get(server.url + "first/")[1]
        assert b'"status":"running"' in get(server.url)[1]
        assert version_of(runs / "first") != before, "a page that is open looks again"
    assert version_of(runs / "first") == before


@pytest.mark.parametrize(
    "path", ["%00", "\x00", "/[", "a" * 5000, "loop/", "first/%ff/", "http://[/", "%ed%a0%80"]
)
def test_an_address_that_cannot_be_is_refused_without_a_traceback(
    server: RunServer, runs: Path, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (runs / "loop").symlink_to(runs / "loop")
    with socket.create_connection(("127.0.0.1", server.server_address[1])) as raw:
        raw.sendall(f"GET /{path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
        status = raw.makefile("rb").readline()
    assert status.split()[1:2] in ([b"400"], [b"404"])
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("path", ["a/" * 30_000, "compare?run=" + "a/" * 30_000])
def test_an_address_of_thousands_of_folders_costs_no_time(
    server: RunServer, runs: Path, path: str
) -> None:
    before = time.process_time()
    assert get(f"{server.url}{path}")[0] == 400
    assert time.process_time() - before < 0.1


def test_a_range_of_five_thousand_digits_is_no_range(server: RunServer, runs: Path) -> None:
    (video,) = (runs / "first").glob("videos/*/*.mp4")
    url = server.url + video.relative_to(runs).as_posix()
    assert get(url, Range=f"bytes={'9' * 5000}-") == (200, bytes(range(100)))


def test_who_asks_without_a_version_is_answered_with_a_status(server: RunServer) -> None:
    with socket.create_connection(server.server_address[:2], timeout=60) as wire:
        wire.sendall(b"GET /\r\n\r\n")
        assert wire.recv(100).startswith(b"HTTP/1.1 403 ")


def test_a_cookie_that_is_none_is_refused(runs: Path) -> None:
    with served(runs, "0.0.0.0") as server:
        plain = f"http://127.0.0.1:{server.server_address[1]}/"
        assert get(plain, Cookie="a/b=(c)=\x01; proctor_token")[0] in (400, 403)


def test_a_run_whose_name_is_not_utf8_is_listed_and_served(server: RunServer, runs: Path) -> None:
    (runs / "first").rename(runs / os.fsdecode(b"run\xff"))
    assert b'"href":"/run%FF/"' in get(server.url)[1]
    assert get(server.url + "run%FF/")[0] == 200


def test_another_sites_name_for_this_machine_is_refused(server: RunServer) -> None:
    assert get(server.url, Host="evil.example")[0] == 403


def test_another_sites_page_is_refused(server: RunServer) -> None:
    assert get(server.url, Origin="https://evil.example")[0] == 403
    assert get(server.url, Origin="null")[0] == 403
    assert get(server.url, Origin=server.url.rstrip("/"))[0] == 200


def test_another_address_needs_the_token(runs: Path) -> None:
    with served(runs, "0.0.0.0") as server:
        assert server.token is not None
        plain = f"http://127.0.0.1:{server.server_address[1]}/"
        assert get(plain)[0] == 403
        assert get(plain + "?token=wrong")[0] == 403
        assert get(f"{plain}?token={server.token}")[0] == 200
        assert get(plain + "first/", Cookie=f"proctor_token={server.token}")[0] == 200


def test_a_port_in_use_is_one_line_before_anything_starts(
    run: Callable[..., Evaluation], server: RunServer, tmp_path: Path
) -> None:
    port = server.server_address[1]
    with refuses(UsageError, "serve.cannot-bind") as refused:
        run(live=True, live_port=port, output_dir=str(tmp_path / "none"))
    assert f"127.0.0.1 port {port}" in str(refused.value)
    assert not (tmp_path / "none").exists()


def test_an_empty_host_is_not_all_networks(tmp_path: Path) -> None:
    with refuses(UsageError, "serve.no-host"):
        RunServer(tmp_path, "", 0)


def test_an_unknown_host_is_not_blamed_on_the_port(tmp_path: Path) -> None:
    with refuses(UsageError, "serve.cannot-bind") as refused:
        RunServer(tmp_path, "192.0.2.1", 0)
    assert "another host" in str(refused.value)


def test_a_run_can_be_watched_while_it_goes_on(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "proctor.cli", "eval", "--policy.type=random", "--env.type=fake",
         "--env.step_ms=20", "--env.endless=true", "--eval.n_episodes=40", "--live",
         "--live_port=0", f"--output_dir={tmp_path / 'run'}"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.match(r"live: (http://127\.0\.0\.1:\d+/)", line)
    assert found, line
    while "random on fake" not in process.stderr.readline():
        pass
    status, body = get(found[1])
    assert status == 200
    assert b"random on fake" in body
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_view_serves_a_folder_until_ctrl_c(runs: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "proctor.cli", "view", str(runs), "--port=0"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    url = process.stdout.readline().split()[0]
    assert get(url)[0] == 200
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0


def test_a_page_that_is_long_in_the_making_is_asked_for_less_often() -> None:
    assert refresh_interval_s(made_in_s=0.01) == 2.0
    assert refresh_interval_s(made_in_s=0.4) == pytest.approx(8.0), "a twentieth of the run's time"
