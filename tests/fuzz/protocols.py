"""Fuzzing of HTTP requests to ``view`` and ``--live``, and of run lists."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from proctor.report.server.served_pages import list_page
from tests.fuzz.hostile import Draw, texts
from tests.fuzz.runs import hostile_files, plant, write_files
from tests.fuzz.sandbox import SECRET, BrokenPromise, Sandbox


class _Wire:
    """A fake connection with a complete request, which records the reply."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.answer = b""

    def makefile(self, mode: str, size: int = -1) -> io.BytesIO:
        return io.BytesIO(self.request)

    def sendall(self, part: bytes) -> None:
        self.answer += part

    def settimeout(self, seconds: float | None) -> None:
        """Do nothing: the fake never blocks."""


_PATHS = [
    "/", "/run/", "/run/version", "/run/run.json", "/run/videos/point_0/episode_0.mp4",
    "/../secret.mp4",
    "/%2e%2e/outside/secret.mp4", "/run/..%2f..%2foutside/secret.mp4", "//", "/run", "/\0", "/%00",
    "/run/%ff/", "//[", "http://[/", "*", "/" + "a" * 5000, "/" + "../" * 50 + "etc/passwd",
    "/run/./",
    "/link/", "/link.mp4", "/loop/", "/run/version?token=x", "/?token=" + "a" * 9000,
    "/run/%0d%0aX: y/",
    "/%252e%252e/outside/secret.mp4", "/%c0%ae%c0%ae/outside/secret.mp4",
    "/..\\outside\\secret.mp4", "/．．/outside/secret.mp4",
    "/%2e%2e%5coutside/secret.mp4", "/run/%2e%2e/%2e%2e/outside/secret.mp4",
    "/..;/outside/secret.mp4", "/run/..%00/", "/run/%2e/", "/file:///etc/passwd", "/linked/",
    "/linked/version", "/linked/videos/point_0/episode_0.mp4", "/run/.claim", "/run/episodes.jsonl",
    "/compare", "/compare?run=/run/&run=/run/", "/compare?run=/run/&run=/linked/",
    "/compare?run=%00",
    "/compare?run=/loop/&run=/link/run/", "/compare?" + "run=/run/&" * 100, "/run/run.json?x",
    "/%uffff", "/run/\x1b[2J", "/run/é/", "/run//version", "/run/videos/",
]  # fmt: skip
_HEADERS = [
    "Host: 127.0.0.1", "Host: localhost:1", "Host: [::1]", "Host: evil.example", "Host:", "X: y",
    "Range: bytes=0-", "Range: bytes=5-2", "Range: bytes=" + "9" * 5000 + "-", "Range: bytes=-5",
    "Range: bytes=0-0,1-1", "Cookie: proctor_token=x", 'Cookie: a="', "Cookie: =;;;",
    "Cookie: \x01",
    "Content-Length: 99999999999", "Transfer-Encoding: chunked", "Expect: 100-continue",
    "A" * 70000,
    "Connection: keep-alive", ": x", "no colon", "X: y\r\n" * 150 + "X: y",
    "X:\tz\x00",
    " folded", "Content-Length: -1", "Content-Length: x", "Upgrade: h2c", "Range: bytes=a-b",
    "If-None-Match: *", "Host: 127.0.0.1:99999999", "Host: 127.0.0.1@evil.example",
]  # fmt: skip
_NO_REQUESTS = [
    b"", b"\r\n", b"\n\n\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00" * 5000,
    b"\xff" * 70_000, b"GET", b"GET /", b"GET / HTTP/1.1", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\nHost: 127.0.0.1\n",
    b"GET " + b"/" * 70_000, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000, b"SSH-2.0-x\r\n",
]  # fmt: skip
"""Requests that no browser sends."""
_paths = st.one_of(st.sampled_from(_PATHS), texts.map(lambda text: f"/{text}"))


@st.composite
def _request(draw: Draw) -> bytes:
    method = draw(
        st.sampled_from(["GET"] * 8 + ["HEAD"] * 3 + ["POST", "PUT", "TRACE", "", "get", "G\x00T"])
    )
    version = draw(st.sampled_from(["HTTP/1.0"] * 6 + ["HTTP/1.1", "HTTP/9.9", "HTTP/x", ""]))
    head = ["Host: 127.0.0.1"] * draw(st.integers(0, 1))
    head += [draw(st.sampled_from(_HEADERS)) for _ in range(draw(st.integers(0, 2)))]
    head += ["Connection: close"] * draw(st.integers(0, 1))
    lines = "\r\n".join([f"{method} {draw(_paths)} {version}", *head, "", ""])
    return lines.encode("utf-8", "surrogatepass")


_sent = st.one_of(
    _request(),
    _request(),
    st.lists(_request(), min_size=2, max_size=3).map(b"".join),  # one after the other
    st.sampled_from(_NO_REQUESTS),
    st.binary(max_size=200),
)


def requests(draw: Draw, sandbox: Sandbox) -> None:
    """HTTP requests to ``view``, from a browser or another client."""
    folder, sent = _served(draw, sandbox), draw(_sent)
    wire = _Wire(sent)
    server: Any = sandbox.server(folder, token=draw(st.sampled_from([None, None, "token"])))
    with sandbox.watched(repr(sent[:300])):
        server.RequestHandlerClass(wire, ("127.0.0.1", 1), server)
    status = wire.answer[:12].decode("latin-1")
    if wire.answer and not status.startswith("HTTP/"):
        raise BrokenPromise("no status", repr(wire.answer[:300]))
    if SECRET.encode() in wire.answer:
        raise BrokenPromise("leaked", repr(sent[:300]))
    understood = sent.count(b"\r\n\r\n") == 1 and status[9:12] in ("200", "206", "403", "404")
    if understood and sent.startswith(b"HEAD ") and not wire.answer.endswith(b"\r\n\r\n"):
        raise BrokenPromise("a body", repr(sent[:300]))


def _served(draw: Draw, sandbox: Sandbox) -> Path:
    folder = sandbox.inputs / "served"
    if draw(st.integers(0, 2)):
        write_files(folder / "run", sandbox.run)
    else:
        write_files(folder / "run", draw(hostile_files(sandbox.run)))
        plant(draw, folder / "run", sandbox)
    (folder / "linked").symlink_to(sandbox.outside / "run")
    (folder / "link.mp4").symlink_to(sandbox.outside / "secret.mp4")
    (folder / "link").symlink_to(sandbox.outside)
    (folder / "loop").symlink_to(folder / "loop")
    return folder


def lists(draw: Draw, sandbox: Sandbox) -> None:
    """The run list of ``view`` for a folder with hostile runs and names."""
    folder = sandbox.inputs / "served"
    name = draw(texts).replace("/", "_").replace("\0", "_")[:80] or "x"
    name = os.fsdecode(name.encode("utf-8", "surrogatepass"))  # what a disk can hold
    write_files(folder / "run", draw(hostile_files(sandbox.run)))
    odd = folder / (name if name not in (".", "..", "run") else "y")
    write_files(odd, sandbox.run)
    plant(draw, odd, sandbox)
    (folder / "linked").symlink_to(sandbox.outside / "run")
    with sandbox.watched(f"the list of {odd!r}"):
        page = list_page(folder)
        page.encode()
    if SECRET in page:
        raise BrokenPromise("leaked", page[:3000])
    if page.lower().count("<script") != 2 or page.count("<b>") or "<img" in page.lower():
        raise BrokenPromise("markup", page[:3000])
