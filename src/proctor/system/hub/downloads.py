"""Downloads of single files over HTTP: bounded, verified, and complete or not there at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any

from proctor.errors import UsageError, strip_control_codes
from proctor.system.files import UNFINISHED, publish

_TIMEOUT_S = 30.0
"""Longest wait for a connection, and for the next bytes."""
_PIECE = 2**20
_MB = 10**6


@dataclass(frozen=True)
class RemoteFile:
    """A file on the web, and how to recognise it."""

    url: str
    sha256: str
    """The first hexadecimal digits of its SHA-256."""
    max_bytes: int

    @property
    def name(self) -> str:
        """The last part of the URL's path."""
        return self.url.rpartition("/")[2]


def download_file(file: RemoteFile, path: Path, advice: str) -> None:
    """Download ``file`` to ``path``, which appears only when it is complete and verified.

    Args:
        file: the file.
        path: where to store it; missing parent folders are created.
        advice: what to do without a network; it ends the error's text.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _request(file) as (response, size), part.open("xb") as target:
            found = _copy(file, size, response, target)
        if not found.startswith(file.sha256):
            raise HTTPException(
                f"its SHA-256 begins with {found[: len(file.sha256)]}, not {file.sha256}"
            )
        publish(part, path)
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise UsageError(
            f"cannot download {file.url}: {strip_control_codes(str(reason), 200)}; {advice}",
            code="download.failed",
        ) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def _request(file: RemoteFile) -> Iterator[tuple[IO[bytes], int | None]]:
    """Yield the body of the answer, and its size if the server says it."""
    if urllib.parse.urlsplit(file.url).scheme not in ("https", "http"):
        raise ValueError("only https and http are supported")
    opener = urllib.request.build_opener(_Redirects())
    request = urllib.request.Request(file.url, headers={"User-Agent": "proctor"})  # noqa: S310
    with opener.open(request, timeout=_TIMEOUT_S) as response:
        stated = response.headers.get("Content-Length", "")
        size = int(stated) if stated.isdecimal() else None
        if size is not None and size > file.max_bytes:
            raise HTTPException(f"it has {size} bytes, expected at most {file.max_bytes}")
        yield response, size


def _copy(file: RemoteFile, size: int | None, source: IO[bytes], target: IO[bytes]) -> str:
    """Copy the body, show the progress, and return its SHA-256."""
    digest, done = hashlib.sha256(), 0
    with _Progress(file.name, size) as progress:
        while piece := source.read(_PIECE):
            done += len(piece)
            if done > file.max_bytes:
                raise HTTPException(f"it has more than {file.max_bytes} bytes")
            digest.update(piece)
            target.write(piece)
            progress.show(done)
    if size is not None and done != size:
        raise HTTPException(f"the connection ended after {done} of {size} bytes")
    return digest.hexdigest()


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a few redirects, and none from https to a connection without encryption."""

    max_redirections = 5

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the next request.

        Raises:
            HTTPError: the redirect leaves https.
        """
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise urllib.error.HTTPError(newurl, code, "redirected away from https", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Progress:
    """Shows a download: a line that is redrawn on a terminal, one plain line elsewhere."""

    def __init__(self, name: str, size: int | None) -> None:
        self._redraws = sys.stderr.isatty()
        self._total = "" if size is None else f"/{size / _MB:.0f}"
        self._name = name

    def __enter__(self) -> _Progress:
        if not self._redraws:
            whole = self._total.removeprefix("/")
            print(f"downloading {self._name} ({whole or '?'} MB)", file=sys.stderr)
        return self

    def show(self, done: int) -> None:
        """Show the bytes that have arrived."""
        if self._redraws:
            text = f"downloading {self._name}: {done / _MB:.0f}{self._total} MB"
            print(f"\r{text}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: Any) -> None:
        if self._redraws:
            print(file=sys.stderr)
