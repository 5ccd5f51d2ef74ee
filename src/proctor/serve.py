"""Serves run folders to a browser: one run while it goes on, or a folder of many.

Only pages made from run folders and the videos inside them are served, to this machine only unless
told otherwise; bound to another address, every request needs a token.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from proctor.errors import ProctorError, UsageError
from proctor.recorders.journal import FILE_NAME
from proctor.report.document import inline_page, markup
from proctor.report.page import page_html
from proctor.report.page_data import page_data, read_run, title
from proctor.report.summary import tally
from proctor.run import RUN_FILE

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_COOKIE = "proctor_token"
_DEEPEST = 5
_PART = 256 * 1024
_LOOK_EVERY_S = 2.0
_MOST_OF_THE_TIME = 0.05


class RunServer(ThreadingHTTPServer):
    """Serves the run in ``root``, or the list of the runs below it."""

    daemon_threads = True

    def __init__(self, root: Path, host: str, port: int) -> None:
        """Bind to ``host`` and ``port`` (0: any free one).

        Raises:
            UsageError: the port is taken, or the address is none of this machine's.
        """
        self.root = root.resolve()
        self.token = None if host in _LOOPBACK else secrets.token_urlsafe(16)
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"cannot serve on {host} port {port}: {error.strerror}; choose another port"
            ) from None

    @property
    def url(self) -> str:
        """What to open in a browser, token included."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{host}:{port}/" + (f"?token={self.token}" if self.token else "")


@contextmanager
def serving(root: Path, host: str, port: int) -> Iterator[RunServer]:
    """Serve ``root`` on a thread while the block runs."""
    server = RunServer(root, host, port)
    thread = threading.Thread(target=server.serve_forever, name="proctor-live", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def find_runs(root: Path) -> list[Path]:
    """List the run folders in and below ``root``, newest first."""
    patterns = ["/".join(["*"] * depth + [RUN_FILE]) for depth in range(_DEEPEST)]
    files = [file for pattern in patterns for file in root.glob(pattern)]
    return [file.parent for file in sorted(files, key=lambda f: f.stat().st_mtime, reverse=True)]


def list_page(root: Path) -> str:
    """Return the page that lists the runs below ``root``."""
    rows = "".join(_list_row(root, run) for run in find_runs(root))
    head = "<tr><th>Run</th><th>What</th><th>Success</th><th>Episodes</th></tr>"
    body = f"<table class='log'>{head}{rows}</table>" if rows else "<p>No runs here yet.</p>"
    heading = f"Runs in {root.name}"
    header = f"<header><h1>{markup(heading)}</h1></header>"
    return inline_page(heading, f"{header}<main>{body}</main>")


def _list_row(root: Path, folder: Path) -> str:
    place = folder.relative_to(root).as_posix()
    try:
        run = read_run(folder)
    except ProctorError as error:
        return f"<tr><td>{markup(place)}</td><td colspan='3'>{markup(str(error))}</td></tr>"
    planned = run.record.planned_episodes
    done = f"{len(run.rows)} of {planned}" if planned is not None else str(len(run.rows))
    what = title(run.record)
    cells = "".join(f"<td>{markup(text)}</td>" for text in (what, str(tally(run.rows)), done))
    return f"<tr><td><a href='/{quote(os.fsencode(place))}/'>{markup(place)}</a></td>{cells}</tr>"


class _NoAddress(Exception):
    """What was asked for cannot be the address of anything."""


class _Handler(BaseHTTPRequestHandler):
    server: RunServer
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # without a version too, the answer has a status

    def do_GET(self) -> None:
        """Answer with a page, a version or a video; with 404 to anything else."""
        try:
            if self._allowed():
                self._answer()
        except ProctorError as error:
            self._send(HTTPStatus.NOT_FOUND, str(error), "text/plain")
        except _NoAddress:
            self._send(HTTPStatus.BAD_REQUEST, "that is no address", "text/plain")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the browser went away

    def _answer(self) -> None:
        path, target = self._asked_for()
        inside = target.is_relative_to(self.server.root)
        if inside and path.endswith("/") and (target / RUN_FILE).is_file():
            self._send(HTTPStatus.OK, live_page(target), "text/html")
        elif inside and target == self.server.root and path == "/":
            self._send(HTTPStatus.OK, list_page(self.server.root), "text/html")
        elif inside and target.name == "version" and (target.parent / RUN_FILE).is_file():
            self._send(HTTPStatus.OK, version_of(target.parent), "text/plain")
        elif inside and target.suffix == ".mp4" and target.is_file():
            self._send_video(target)
        else:
            self._send(HTTPStatus.NOT_FOUND, "there is nothing here", "text/plain")

    def _asked_for(self) -> tuple[str, Path]:
        """Return the path of the address and the file that it names, wherever that lies.

        Raises:
            _NoAddress: no file can be called so, or links lead in a circle.
        """
        try:
            path = unquote(urlsplit(self.path).path, errors="surrogateescape")
            target = (self.server.root / path.lstrip("/")).resolve()
            target.is_file()
        except (ValueError, OSError, RuntimeError):
            raise _NoAddress from None
        return path, target

    def _allowed(self) -> bool:
        """Check the token, or on this machine that the page was asked for by its own address.

        The latter keeps other web sites from reading runs by pointing their name at 127.0.0.1.
        """
        if self.server.token is None:
            name = (self.headers.get("Host") or "").rsplit(":", 1)[0].strip("[]")
            if name in _LOOPBACK:
                return True
            self._send(HTTPStatus.FORBIDDEN, "ask by the address 127.0.0.1", "text/plain")
            return False
        try:
            given = parse_qs(urlsplit(self.path).query).get("token", [""])[0]
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        except (ValueError, CookieError):
            raise _NoAddress from None
        offered = given or (cookie.value if cookie else "")
        token = self.server.token.encode()
        if secrets.compare_digest(offered.encode("utf-8", "surrogatepass"), token):
            return True
        self._send(HTTPStatus.FORBIDDEN, "the address needs its ?token=...", "text/plain")
        return False

    def _send(self, status: HTTPStatus, text: str, kind: str) -> None:
        body = text.encode("utf-8", "backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.server.token is not None and status is HTTPStatus.OK:
            cookie = f"{_COOKIE}={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
            self.send_header("Set-Cookie", cookie)
        self.end_headers()
        self.wfile.write(body)

    def _send_video(self, file: Path) -> None:
        """Send a video, or the part of it that a player asks for."""
        size = file.stat().st_size
        asked = re.fullmatch(r"bytes=([0-9]{1,18})-([0-9]{0,18})", self.headers.get("Range", ""))
        first = int(asked[1]) if asked else 0
        last = min(int(asked[2]) if asked and asked[2] else size - 1, size - 1)
        if first > last:
            self._send(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "no such part", "text/plain")
            return
        self.send_response(HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK)
        self.send_header("Content-Type", "video/mp4")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last - first + 1))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        with file.open("rb") as video:
            video.seek(first)
            left = last - first + 1
            while left > 0 and (part := video.read(min(left, _PART))):
                self.wfile.write(part)
                left -= len(part)

    def log_message(self, *words: object) -> None:
        """Keep the terminal for the run."""


def live_page(folder: Path) -> str:
    """Return the run's page, one that looks for news while the run goes on."""
    version, begun_s = version_of(folder), time.thread_time()
    run = page_data(read_run(folder))
    run["folder"] = "."
    run["live"] = version
    run["look_every_s"] = look_every_s(time.thread_time() - begun_s)
    return page_html(run)


def look_every_s(made_in_s: float) -> float:
    """Return how often a page looks for news that takes so much CPU time to make.

    The process that serves it runs the evaluation, which is to keep nearly all of its time: the
    page of 10,000 episodes takes a third of a second.
    """
    return max(_LOOK_EVERY_S, made_in_s / _MOST_OF_THE_TIME)


def version_of(folder: Path) -> str:
    """Return what changes with every episode that ends."""
    journal, record = folder / FILE_NAME, folder / RUN_FILE
    size = journal.stat().st_size if journal.exists() else 0
    return f"{size}-{record.stat().st_mtime_ns}"
