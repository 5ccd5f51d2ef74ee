"""A Hub of one repository on loopback, for the real client: it keeps commits, and may misbehave."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

TOKEN = "hf_token_of_the_user"
_ACTIONS = re.compile(
    r"(?:/api)?/(?:(?:datasets|models)/)?(?P<repo>[^/]+/[^/]+?)"
    r"/(?P<action>resolve|tree|refs|revision|commit|preupload|tag)\b/?(?P<rest>.*)"
)


def blob_id(content: bytes) -> str:
    """Return git's blob id."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def entry(path: str, content: bytes, *, large: bool = False) -> dict[str, Any]:
    """Return a file as a listing shows it."""
    found = {"type": "file", "path": path, "size": len(content), "oid": blob_id(content)}
    if large:
        sha256 = hashlib.sha256(content).hexdigest()
        found["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 100}
    return found


class Request(BaseHTTPRequestHandler):
    """A request to the Hub."""

    protocol_version = "HTTP/1.1"
    hub: LoopbackHub

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def reply(self, status: int, body: bytes = b"", **headers: str) -> bool:
        """Answer with a body."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return True

    def json(self, value: object, status: int = 200, **headers: str) -> bool:
        """Answer with JSON."""
        return self.reply(
            status, json.dumps(value).encode(), Content_Type="application/json", **headers
        )

    def do_GET(self) -> None:
        """Answer any request."""
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        path = urllib.parse.unquote(self.path)
        self.hub.asked.append((self.command, path, self.headers.get("Authorization")))
        self.hub.sent.append(b"\n".join([self.path.encode(), self.headers.as_bytes(), body]))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if not (self.hub.hook and self.hub.hook(self, path)):
                self.hub.answer(self, path, body)

    do_HEAD = do_POST = do_DELETE = do_GET  # noqa: N815


@dataclass
class LoopbackHub:
    """One repository: its commits, oldest first, and its tags."""

    endpoint: str = ""
    commits: list[dict[str, bytes]] = field(default_factory=lambda: [{}])
    tags: dict[str, str] = field(default_factory=dict)
    large: set[str] = field(default_factory=set)
    """Paths of large files."""
    private: bool | None = None
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and Authorization of every request."""
    sent: list[bytes] = field(default_factory=list)
    """Address, headers and body of every request."""
    hook: Callable[[Request, str], bool] | None = None
    """Answers before the Hub does, and returns whether it did."""

    @property
    def commit(self) -> str:
        """Id of the newest commit."""
        return f"{len(self.commits) - 1:040x}"

    def hold(self, folder: Path) -> None:
        """Let a new commit have the files of a folder."""
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        self.commits.append(files)

    def files(self, revision: str) -> dict[str, bytes] | None:
        """Return the files of a branch, tag or commit."""
        commit = self.tags.get(revision, self.commit if revision == "main" else revision)
        known = len(commit) == 40 and int(commit, 16) < len(self.commits)
        return self.commits[int(commit, 16)] if known else None

    def answer(self, request: Request, path: str, body: bytes) -> bool:
        """Answer as the Hub does."""
        if path == "/api/repos/create":
            said = json.loads(body)
            self.private = said.get("visibility") == "private" or bool(said.get("private"))
            kind = "datasets/" if said.get("type") == "dataset" else ""
            name = f"{said['organization']}/{said['name']}"
            return request.json({"url": f"{self.endpoint}/{kind}{name}", "name": name, "id": name})
        if path.startswith("/api/whoami"):
            return request.json({"name": "me", "type": "user", "orgs": []})
        found = _ACTIONS.match(path.partition("?")[0])
        action, rest = (found["action"], found["rest"]) if found else ("", "")
        if action == "refs":
            tags = [
                {"name": n, "ref": f"refs/tags/{n}", "targetCommit": c}
                for n, c in self.tags.items()
            ]
            main = {"name": "main", "ref": "refs/heads/main", "targetCommit": self.commit}
            return request.json({"branches": [main], "tags": tags, "converts": []})
        if action == "tag":
            return self._tag(request, rest, body)
        if action == "preupload":
            modes = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            paths = [said["path"] for said in json.loads(body)["files"]]
            return request.json({"files": [{"path": path, **modes} for path in paths]})
        if action == "commit":
            return self._commit(request, body)
        revision, _, name = rest.partition("/")
        files = self.files(revision or "main")
        if files is None:
            return request.reply(404, X_Error_Code="RevisionNotFound")
        if action == "tree":
            return request.json([entry(n, c, large=n in self.large) for n, c in files.items()])
        if action == "resolve":
            if name not in files:
                return request.reply(404, X_Error_Code="EntryNotFound")
            content = files[name]
            return request.reply(
                200, content, ETag=f'"{blob_id(content)}"', X_Repo_Commit=self.commit
            )
        commit = self.tags.get(revision, self.commit)
        return request.json({"id": "me/it", "sha": commit, "siblings": [], "private": False})

    def _tag(self, request: Request, rest: str, body: bytes) -> bool:
        if request.command == "DELETE":
            del self.tags[rest]
            return request.json({})
        name = json.loads(body)["tag"]
        if name in self.tags:
            return request.json({"error": "there is one"}, 409)
        self.tags[name] = rest
        return request.json({})

    def _commit(self, request: Request, body: bytes) -> bool:
        files = dict(self.commits[-1])
        for line in body.splitlines():
            said = json.loads(line)
            if said["key"] == "file":
                files[said["value"]["path"]] = base64.b64decode(said["value"]["content"])
            elif said["key"] == "deletedFile":
                del files[said["value"]["path"]]
        self.commits.append(files)
        made = {"commitOid": self.commit, "success": True}
        return request.json({"commitUrl": f"{self.endpoint}/me/it/commit/{self.commit}", **made})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Print nothing when a client goes away."""


@contextlib.contextmanager
def serving(hub: LoopbackHub) -> Iterator[str]:
    """Serve a Hub on loopback; yield its address."""
    handler = type("HubRequest", (Request,), {"hub": hub})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def loopback_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: LoopbackHub | None = None
) -> Iterator[LoopbackHub]:
    """Let the real client of this process use a Hub on loopback, with caches in ``tmp_path``."""
    hub = hub or LoopbackHub()
    with serving(hub) as hub.endpoint:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)
        address = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user_cache"))
        yield hub
