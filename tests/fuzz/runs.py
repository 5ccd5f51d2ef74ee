"""Kinds of cases that come as run folders: report, compare, --resume, --against, audit and view."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from proctor.serve import list_page
from tests.fuzz.hostile import Draw, json_bytes, mutated, spoiled, texts
from tests.fuzz.yard import SECRET, BrokenPromise, Yard

Files = dict[str, bytes]
"""Name -> content of every file of a folder."""

_LINK_NAMES = [
    "run.json", "run.json.part", "episodes.jsonl", "sessions.jsonl", "eval_info.json", ".lock",
    "eval_info.json.part", "report.html", "report.html.part", "compare.html.part", "workers.log",
    "videos", "videos/point_0", "videos/point_0/episode_0.mp4",
]  # fmt: skip


def write_files(folder: Path, files: Files) -> None:
    """Write a folder."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


@st.composite
def hostile_files(draw: Draw, valid: Files) -> Files:
    """Return a folder's files with one or two of them changed as their kind allows."""
    files = dict(valid)
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(valid)))
        if name.endswith(".jsonl"):
            files[name] = draw(hostile_lines(valid[name]))
        elif name.endswith(".json"):
            files[name] = draw(json_bytes(json.loads(valid[name])))
        else:
            files[name] = draw(spoiled(valid[name]))
    return files


@st.composite
def hostile_lines(draw: Draw, valid: bytes) -> bytes:
    """Return a file of JSON lines of which some were changed, cut, doubled or put in."""
    lines = valid.splitlines()
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["mutate", "mutate", "mutate", "spoil", "double", "whole"]))
        if how == "mutate" and lines[at][:1] == b"{":
            with_nan = draw(mutated(_loaded(lines[at])))
            lines[at] = json.dumps(with_nan).encode()
        elif how == "double":
            lines.insert(at, lines[draw(st.integers(0, len(lines) - 1))])
        else:
            lines[at] = draw(spoiled(lines[at]))
    return b"\n".join(lines) + draw(st.sampled_from([b"\n", b"", b"\n\n"]))


def _loaded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return {}


def plant(draw: Draw, folder: Path, yard: Yard) -> None:
    """Put something in the folder that is not a plain file, one time in four."""
    if draw(st.integers(0, 3)):
        return
    place = folder / draw(st.sampled_from(_LINK_NAMES))
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        place.unlink()
    target = draw(st.sampled_from(["new", "secret.mp4", ".", "/dev/zero", "/dev/full", "self"]))
    what = draw(st.sampled_from(["link", "link", "link", "folder", "fifo"]))
    if what == "folder":
        place.mkdir()
    elif what == "fifo":
        os.mkfifo(place)
    else:
        place.symlink_to(place.name if target == "self" else yard.outside / target)


def _hostile_run(draw: Draw, yard: Yard, name: str = "run") -> Path:
    folder = yard.inputs / name
    write_files(folder, draw(hostile_files(yard.run)))
    plant(draw, folder, yard)
    return folder


def report(draw: Draw, yard: Yard) -> None:
    """``report`` of a hostile run folder."""
    yard.ask(["report", str(_hostile_run(draw, yard))])


def compare(draw: Draw, yard: Yard) -> None:
    """``compare`` of a good run with a hostile one, in either order, and of two hostile ones."""
    good = yard.inputs / "good"
    write_files(good, yard.run)
    paths = [good, _hostile_run(draw, yard)]
    if not draw(st.integers(0, 3)):
        paths[0] = _hostile_run(draw, yard, "other")
    words = [str(path) for path in draw(st.permutations(paths))]
    words += draw(st.sampled_from([[], ["--unpaired"], ["--fail-if-worse=0.1"], ["--json=x.json"]]))
    yard.ask(["compare", *words], codes=(0, 2, 3))


def resume(draw: Draw, yard: Yard) -> None:
    """``eval --resume`` of a hostile run folder."""
    yard.ask(["eval", "--resume", f"--output_dir={_hostile_run(draw, yard)}"], codes=(0, 1, 2))


def against(draw: Draw, yard: Yard) -> None:
    """``eval --against`` a hostile run folder."""
    path = _hostile_run(draw, yard)
    yard.ask(["eval", "--policy.type=random", "--env.type=fake", f"--against={path}"])


def audit(draw: Draw, yard: Yard) -> None:
    """``audit`` of a hostile run folder."""
    yard.ask(["audit", str(_hostile_run(draw, yard)), "--episodes=2"], codes=(0, 1, 2))


class _Wire:
    """A connection that has said all it will say, and keeps the answer."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.answer = b""

    def makefile(self, mode: str, size: int = -1) -> io.BytesIO:
        return io.BytesIO(self.request)

    def sendall(self, part: bytes) -> None:
        self.answer += part

    def settimeout(self, seconds: float | None) -> None:
        """It never waits."""


_PATHS = [
    "/", "/run/", "/run/version", "/run/run.json", "/run/videos/point_0/episode_0.mp4",
    "/../secret.mp4",
    "/%2e%2e/outside/secret.mp4", "/run/..%2f..%2foutside/secret.mp4", "//", "/run", "/\0", "/%00",
    "/run/%ff/", "//[", "http://[/", "*", "/" + "a" * 5000, "/" + "../" * 50 + "etc/passwd",
    "/run/./",
    "/link/", "/link.mp4", "/loop/", "/run/version?token=x", "/?token=" + "a" * 9000,
    "/run/%0d%0aX: y/",
    "/%uffff", "/run/\x1b[2J", "/run/é/", "/run//version", "/run/videos/",
]  # fmt: skip
_HEADERS = [
    "Host: 127.0.0.1", "Host: localhost:1", "Host: [::1]", "Host: evil.example", "Host:", "X: y",
    "Range: bytes=0-", "Range: bytes=5-2", "Range: bytes=" + "9" * 5000 + "-", "Range: bytes=-5",
    "Range: bytes=0-0,1-1", "Cookie: proctor_token=x", 'Cookie: a="', "Cookie: =;;;",
    "Cookie: \x01",
    "Content-Length: 99999999999", "Transfer-Encoding: chunked", "Expect: 100-continue",
    "A" * 70000,
    "Connection: keep-alive", ": x", "no colon",
]  # fmt: skip
_paths = st.one_of(st.sampled_from(_PATHS), texts.map(lambda text: f"/{text}"))


def requests(draw: Draw, yard: Yard) -> None:
    """What a browser, or something else, sends to ``view``."""
    folder = _served(draw, yard)
    method = draw(
        st.sampled_from(["GET"] * 8 + ["POST", "HEAD", "PUT", "TRACE", "", "get", "G\x00T"])
    )
    version = draw(st.sampled_from(["HTTP/1.0"] * 6 + ["HTTP/1.1", "HTTP/9.9", "HTTP/x", ""]))
    head = ["Host: 127.0.0.1"] * draw(st.integers(0, 1))
    head += [draw(st.sampled_from(_HEADERS)) for _ in range(draw(st.integers(0, 2)))]
    lines = "\r\n".join([f"{method} {draw(_paths)} {version}", *head, "Connection: close", "", ""])
    wire = _Wire(lines.encode("utf-8", "surrogatepass"))
    server: Any = yard.server(folder, token=draw(st.sampled_from([None, None, "token"])))
    with yard.watched(repr(lines[:300])):
        server.RequestHandlerClass(wire, ("127.0.0.1", 1), server)
    status = wire.answer[:12].decode("latin-1")
    if wire.answer and not status.startswith("HTTP/"):
        raise BrokenPromise("no status", repr(wire.answer[:300]))
    if SECRET.encode() in wire.answer:
        raise BrokenPromise("leaked", repr(lines[:300]))


def _served(draw: Draw, yard: Yard) -> Path:
    folder = yard.inputs / "served"
    if draw(st.integers(0, 2)):
        write_files(folder / "run", yard.run)
    else:
        write_files(folder / "run", draw(hostile_files(yard.run)))
    (folder / "link.mp4").symlink_to(yard.outside / "secret.mp4")
    (folder / "link").symlink_to(yard.outside)
    (folder / "loop").symlink_to(folder / "loop")
    return folder


def lists(draw: Draw, yard: Yard) -> None:
    """The list of runs that ``view`` makes of a folder with hostile runs and names."""
    folder = yard.inputs / "served"
    name = draw(texts).replace("/", "_").replace("\0", "_")[:80] or "x"
    name = os.fsdecode(name.encode("utf-8", "surrogatepass"))  # what a disk can hold
    write_files(folder / "run", draw(hostile_files(yard.run)))
    odd = folder / (name if name not in (".", "..", "run") else "y")
    write_files(odd, yard.run)
    plant(draw, odd, yard)
    with yard.watched(f"the list of {odd!r}"):
        page = list_page(folder)
        page.encode()
    if "<script" in page.lower():
        raise BrokenPromise("markup", page[:3000])
