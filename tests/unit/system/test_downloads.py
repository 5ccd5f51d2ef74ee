"""Downloads of single files: complete and verified, or one line and nothing left behind."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from proctor.errors import UsageError
from proctor.system.hub.downloads import RemoteFile, _Redirects, download_file
from tests.refusals import refuses

CONTENT = bytes(range(256)) * 5000
HASH = hashlib.sha256(CONTENT).hexdigest()[:8]


class Answers(BaseHTTPRequestHandler):
    """Serves the file, and faults by other names."""

    def do_GET(self) -> None:
        if self.path == "/file.bin":
            self.answer(len(CONTENT), CONTENT)
        elif self.path == "/cut.bin":
            self.answer(len(CONTENT) + 1, CONTENT)
        elif self.path == "/endless.bin":
            self.answer(None, CONTENT)
        elif self.path == "/moved.bin":
            self.redirect("/file.bin")
        elif self.path == "/circle.bin":
            self.redirect("/circle.bin")
        elif self.path == "/disk.bin":
            self.redirect("file:///etc/passwd")
        else:
            self.send_error(404)

    def answer(self, size: int | None, content: bytes) -> None:
        self.send_response(200)
        if size is not None:
            self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(content)

    def redirect(self, where: str) -> None:
        self.send_response(302)
        self.send_header("Location", where)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def host() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def remote(url: str, sha256: str = HASH, most: int = 10**7) -> RemoteFile:
    return RemoteFile(url, sha256, most)


@pytest.mark.parametrize("name", ["file.bin", "moved.bin", "endless.bin"])
def test_a_file_arrives_whole(host: str, tmp_path: Path, name: str) -> None:
    path = tmp_path / "new" / "folder" / "file.bin"
    download_file(remote(f"{host}/{name}"), path, "try later")
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


def test_a_download_is_shown(host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    download_file(remote(f"{host}/file.bin"), tmp_path / "file.bin", "try later")
    assert capsys.readouterr().err == "downloading file.bin (1 MB)\n"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cut.bin", "bytes"),
        ("circle.bin", "redirect"),
        ("disk.bin", "not allowed"),
        ("none.bin", "Not Found"),
    ],
)
def test_a_fault_is_one_line_with_the_advice_and_leaves_nothing(
    host: str, tmp_path: Path, name: str, reason: str
) -> None:
    with refuses(UsageError, "download.failed") as refused:
        download_file(remote(f"{host}/{name}"), tmp_path / "file.bin", "put it there")
    text = str(refused.value)
    assert text.startswith(f"cannot download {host}/{name}: ")
    assert reason in text
    assert text.endswith("; put it there")
    assert "\n" not in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["file.bin", "endless.bin"])
def test_a_file_that_is_too_large_is_not_stored(host: str, tmp_path: Path, name: str) -> None:
    with refuses(UsageError, "download.failed"):
        download_file(remote(f"{host}/{name}", most=len(CONTENT) - 1), tmp_path / "f", "no")
    assert list(tmp_path.iterdir()) == []


def test_another_content_is_refused(host: str, tmp_path: Path) -> None:
    with refuses(UsageError, "download.failed") as refused:
        download_file(remote(f"{host}/file.bin", "00000000"), tmp_path / "f", "no")
    assert f"its SHA-256 begins with {HASH}, not 00000000" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_the_advice_is_given(tmp_path: Path) -> None:
    with refuses(UsageError, "download.failed") as refused:
        download_file(remote("http://127.0.0.1:9/file.bin"), tmp_path / "f", "put it there")
    assert "refused; put it there" in str(refused.value)


def test_only_http_is_asked_for(tmp_path: Path) -> None:
    with refuses(UsageError, "download.failed"):
        download_file(remote(f"file://{tmp_path}/x"), tmp_path / "f", "no")


def test_no_redirect_leaves_https() -> None:
    import io
    import urllib.error
    import urllib.request
    from http.client import HTTPMessage

    request = urllib.request.Request("https://example.org/file.bin")
    with pytest.raises(urllib.error.HTTPError, match="away from https"):
        _Redirects().redirect_request(
            request, io.BytesIO(), 302, "", HTTPMessage(), "http://example.org/file.bin"
        )
