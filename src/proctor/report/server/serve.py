"""HTTP server for pages: of a running evaluation, of a folder of runs, or of a dataset.

It serves only the answers of a site, and by default only to this machine. Bound to another address,
every request needs a token. Edits (POST) are accepted on loopback addresses only, and need a token
that is in the printed URL and in no page. Clients that send no request, or send it slowly, are
disconnected after a timeout, or at once when other clients need the connection.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import re
import resource
import secrets
import socket
import sys
import threading
import time
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit

from proctor.errors import ProctorError, UsageError
from proctor.report.server.served_pages import RunSite
from proctor.report.server.site import EditableSite, Page, Site, Video
from proctor.system.loopback import LOOPBACK, REFUSAL, is_own_request

_COOKIE = "proctor_token"
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")
_PART = 256 * 1024
_TIMEOUT_S = 10.0
"""Seconds to receive a whole request, and to send each part of a response."""
_MAX_CLIENTS, _MAX_FIELDS, _MAX_URL = 64, 64, 2**13
_MAX_BODY = 2**20
"""Bytes of an edit."""
_EDIT_HEADER = "X-Proctor-Token"
_NEVER = math.inf


class PageServer(ThreadingHTTPServer):
    """Serves a site with one thread per client."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, site: Site, host: str, port: int) -> None:
        """Bind to ``host`` and ``port`` (0: any free port)."""
        if not host:  # it would mean all networks of this computer
            raise UsageError(
                "the host to serve on is empty; 127.0.0.1 serves on this computer alone",
                code="serve.no-host",
            )
        self.site = site
        self.token = None if host in LOOPBACK else secrets.token_urlsafe(16)
        editable = isinstance(site, EditableSite) and host in LOOPBACK
        self.edit_token = secrets.token_urlsafe(16) if editable else None
        """Required for edits; None: the server accepts none."""
        # A client needs two file descriptors, for its connection and a file; runs are read too.
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.max_clients = max(1, min(_MAX_CLIENTS, limit // 4))
        self._clients: dict[socket.socket, float] = {}
        """Since when each client's request is awaited; ``_NEVER`` while it is answered."""
        self._clients_lock = threading.Lock()
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            in_use = error.errno in (errno.EADDRINUSE, errno.EACCES)
            other = "port" if in_use else "host: an address of this computer"
            raise UsageError(
                f"cannot serve on {host} port {port}: {error.strerror}; choose another {other}",
                code="serve.cannot-bind",
            ) from None

    @property
    def url(self) -> str:
        """The URL of the pages, with the token that reading needs, if any."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{host}:{port}/" + (f"?token={self.token}" if self.token else "")

    @property
    def edit_url(self) -> str:
        """The URL to open in a browser: with the token for edits, or for reading."""
        return self.url + (f"?token={self.edit_token}" if self.edit_token else "")

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accept a new client; at the limit, disconnect the one that has waited longest."""
        with self._clients_lock:
            if len(self._clients) >= 2 * self.max_clients:
                return False  # too many disconnected clients are still closing
            self._clients[request] = time.monotonic()
            if len(self._clients) > self.max_clients:
                self._disconnect(min(self._clients, key=self._clients.__getitem__))
        return True

    def shutdown_request(self, request: Any) -> None:
        """Forget a client and close its connection."""
        with self._clients_lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Disconnect clients whose request times out; called twice a second."""
        super().service_actions()
        latest = time.monotonic() - _TIMEOUT_S
        with self._clients_lock:
            for client, since in list(self._clients.items()):
                if since < latest:
                    self._disconnect(client)

    def set_waiting_since(self, client: socket.socket, since: float) -> None:
        """Note since when a client's next request is awaited; ``_NEVER``: it has arrived."""
        with self._clients_lock:
            if client in self._clients:
                self._clients[client] = since

    def _disconnect(self, client: socket.socket) -> None:
        """Shut the connection down, which wakes the thread that waits for the request."""
        self._clients[client] = _NEVER
        with contextlib.suppress(OSError):  # it is already closed
            client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print errors of the server; a client that disconnects is not an error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class RunServer(PageServer):
    """Serves the run in ``root``, or the list of runs below it."""

    def __init__(self, root: Path, host: str, port: int) -> None:
        """Bind to ``host`` and ``port``; raises as ``PageServer``."""
        super().__init__(RunSite(root.resolve(), editable=host in LOOPBACK), host, port)


class _BadAddress(Exception):
    """The URL of a request is malformed."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # a request without a version gets a status line too
    timeout = _TIMEOUT_S

    def handle_one_request(self) -> None:
        """Wait for a request, up to the timeout, and answer it."""
        self.server.set_waiting_since(self.connection, time.monotonic())
        super().handle_one_request()

    def do_GET(self) -> None:
        """Send a page, a version, a file or a video; 404 for any other URL."""
        self.server.set_waiting_since(self.connection, _NEVER)
        try:
            if self._allowed():
                self._answer()
        except ProctorError as error:
            self._send(HTTPStatus.NOT_FOUND, str(error), "text/plain")
        except _BadAddress:
            self._send(HTTPStatus.BAD_REQUEST, "malformed URL", "text/plain")
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the browser disconnected
        except OSError:  # the run was removed meanwhile
            self._send(HTTPStatus.NOT_FOUND, "there is nothing here any more", "text/plain")

    def do_POST(self) -> None:
        """Make an edit: on a loopback address, with the token, from a page of this server."""
        try:
            body = self._edit_body()
            self.server.set_waiting_since(self.connection, _NEVER)
            if body is not None:
                path, target = self._target()
                site = self.server.site
                assert isinstance(site, EditableSite)
                self._send_edited(site.post(path, target, body))
        except ProctorError as error:
            self._send(HTTPStatus.BAD_REQUEST, str(error), "text/plain")
        except _BadAddress:
            self._send(HTTPStatus.BAD_REQUEST, "malformed URL", "text/plain")
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the browser disconnected

    def _edit_body(self) -> bytes | None:
        """Return the body of a permitted edit; None: the request is refused and answered."""
        self.close_connection = True  # unless the body is read, the connection cannot be used again
        refusal = self._edit_refusal()
        if refusal is not None:
            self._send(*refusal, "text/plain")
            return None
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError
        self.close_connection = False
        return body

    def _edit_refusal(self) -> tuple[HTTPStatus, str] | None:
        """Return the status and the reason why an edit is refused; None: it is permitted."""
        hosts, origins = (self.headers.get_all(name, []) for name in ("Host", "Origin"))
        offered = self.headers.get(_EDIT_HEADER, "").encode("utf-8", "surrogatepass")
        length = self.headers.get("Content-Length", "")
        if self.server.edit_token is None:
            return HTTPStatus.FORBIDDEN, "this server accepts no edits"
        if not is_own_request(hosts, origins):
            return HTTPStatus.FORBIDDEN, REFUSAL
        if not secrets.compare_digest(offered, self.server.edit_token.encode()):
            return HTTPStatus.FORBIDDEN, "open the address with ?token= that the command printed"
        if self.headers.get_content_type() != "application/json":
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "an edit is JSON"
        if re.fullmatch("[0-9]{1,9}", length) is None:
            return HTTPStatus.LENGTH_REQUIRED, "an edit has a length"
        if int(length) > _MAX_BODY:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an edit has at most {_MAX_BODY} bytes"
        return None

    def _send_edited(self, page: Page | None) -> None:
        if page is None:
            self._send(HTTPStatus.NOT_FOUND, "there is nothing to edit here", "text/plain")
        else:
            self._send(HTTPStatus.OK, page.content, page.kind)

    def do_HEAD(self) -> None:
        """Send the headers of the GET response."""
        self.do_GET()

    def _answer(self) -> None:
        path, target = self._target()
        found = self.server.site.answer(path, target, self._query())
        if found is None:
            self._send(HTTPStatus.NOT_FOUND, "there is nothing here", "text/plain")
        elif isinstance(found, Video):
            self._send_video(found.path)
        else:
            self._send(HTTPStatus.OK, found.content, found.kind)

    @property
    def _url(self) -> str:
        if len(self.path) > _MAX_URL:  # resolving 30,000 folders takes 0.3 s
            raise _BadAddress
        return self.path

    def _target(self) -> tuple[str, Path]:
        """Return the path of the URL and the file that it names, which may be outside the root.

        Raises:
            _BadAddress: the path is not a file name, or symlinks form a cycle.
        """
        try:
            path = unquote(urlsplit(self._url).path, errors="surrogateescape")
            target = (self.server.site.root / path.lstrip("/")).resolve()
            target.is_file()
        except (ValueError, OSError, RuntimeError):
            raise _BadAddress from None
        return path, target

    def _query(self) -> dict[str, list[str]]:
        """Return the query parameters of the URL.

        Raises:
            _BadAddress: the query cannot be parsed.
        """
        try:
            requested = urlsplit(self._url).query
            return parse_qs(requested, errors="surrogateescape", max_num_fields=_MAX_FIELDS)
        except ValueError:
            raise _BadAddress from None

    def _allowed(self) -> bool:
        """Check the token; without one, check that no other web site sent the request."""
        if self.server.token is None:
            hosts, origins = (self.headers.get_all(name, []) for name in ("Host", "Origin"))
            if is_own_request(hosts, origins):
                return True
            self._send(HTTPStatus.FORBIDDEN, REFUSAL, "text/plain")
            return False
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        except CookieError:
            raise _BadAddress from None
        given = self._query().get("token", [""])[0]
        offered = given or (cookie.value if cookie else "")
        token = self.server.token.encode()
        if secrets.compare_digest(offered.encode("utf-8", "surrogatepass"), token):
            return True
        self._send(HTTPStatus.FORBIDDEN, "the address needs its ?token=...", "text/plain")
        return False

    def _send(self, status: HTTPStatus, content: str | bytes, kind: str) -> None:
        text = isinstance(content, str)
        body = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if text else kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.server.token is not None and status is HTTPStatus.OK:
            cookie = f"{_COOKIE}={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
            self.send_header("Set-Cookie", cookie)
        self.end_headers()
        self._send_parts(io.BytesIO(body), len(body))

    def _send_video(self, file: Path) -> None:
        """Send a video, or the byte range that the player requests."""
        with file.open("rb") as video:
            size = os.fstat(video.fileno()).st_size
            requested = _RANGE.fullmatch(self.headers.get("Range", ""))
            first = int(requested[1]) if requested else 0
            last = min(int(requested[2]) if requested and requested[2] else size - 1, size - 1)
            if requested and first > last:
                self._send(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "no such part", "text/plain")
                return
            self.send_response(HTTPStatus.PARTIAL_CONTENT if requested else HTTPStatus.OK)
            self.send_header("Content-Type", "video/mp4")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(last - first + 1))
            if requested:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.end_headers()
            video.seek(first)
            self._send_parts(video, last - first + 1)

    def _send_parts(self, content: BinaryIO, left: int) -> None:
        """Send the body in parts, each with its own timeout; HEAD gets no body."""
        while left > 0 and self.command != "HEAD" and (part := content.read(min(left, _PART))):
            self.wfile.write(part)
            left -= len(part)

    def log_message(self, *words: object) -> None:
        """Log nothing: the terminal is for the run."""
