"""Requests to the Hugging Face Hub: bounded in bytes, pages and seconds.

The token goes to the Hub alone. Whatever answers instead of the Hub (the login page of a network, a
faulty mirror) ends a command with one line.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from proctor.errors import ProtocolError, UsageError, strip_control_codes
from proctor.system.limits import decode_json

_MAX_JSON_BYTES = 8 * 2**20
"""Size limit of one answer in JSON; a page of a listing has 1,000 files in some 500 kB."""
_MAX_PAGES = 1000
_TIMEOUT_S = 60.0
"""Longest wait for a connection, and for the next bytes."""
_STALLED_S, _STALLED_BYTES = 15.0, 1024
"""A body that brings fewer bytes in this time is not waited for."""
_MAX_WAIT_S = 300
"""Longest wait that the Hub may ask for; its own limits count requests in windows of 5 minutes."""
_RETRY_AFTER_S = (1, 2, 4)
_RETRIED = (408, 429, 500, 502, 503, 504)


def bad_answer(reason: str) -> UsageError:
    """Return the error for an answer that a Hub does not give."""
    from huggingface_hub import constants

    return UsageError(
        f"{constants.ENDPOINT} does not answer as a Hub does: {strip_control_codes(reason, 300)}; "
        "check the network (it may ask you to log in) and HF_ENDPOINT",
        code="hub.bad-answer",
    )


def hub_utils() -> Any:
    """Return the helpers of the Hub's library, which it exports lazily."""
    from huggingface_hub import utils

    return utils


def server_name() -> str:
    """Return host and port of the Hub."""
    from huggingface_hub import constants

    return urlsplit(constants.ENDPOINT).netloc.rpartition("@")[2]


def http_errors() -> type[Exception]:
    """Return the base class of the errors of the Hub library's HTTP library."""
    kind: type[Exception] = _http_library().HTTPError
    return kind


class HubClient:
    """A client that reads from the Hub; a context manager.

    Threads may share it. ``stop`` ends the requests of other threads.
    """

    def __init__(self) -> None:
        from huggingface_hub import constants

        self._endpoint = constants.ENDPOINT.rstrip("/")
        self._offline = constants.HF_HUB_OFFLINE
        self._stopped = threading.Event()
        self._http = _http_library().Client(
            headers=hub_utils().build_hf_headers(library_name="proctor"),
            follow_redirects=True,
            timeout=_TIMEOUT_S,
            event_hooks={"request": [_keep_token], "response": [_check_status]},
        )

    def __enter__(self) -> HubClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def stop(self) -> None:
        """Let the requests of all threads fail."""
        self._stopped.set()

    def json(self, path: str) -> Any:
        """Return the decoded answer to a request.

        Raises:
            UsageError: the answer is not JSON, or too large.
            HfHubHTTPError: the Hub refuses.
        """
        return next(self.pages(path))

    def pages(self, path: str) -> Iterator[Any]:
        """Yield the decoded answers to a request, page by page.

        Raises:
            UsageError: a page is not JSON, or there is no end.
            HfHubHTTPError: the Hub refuses.
        """
        for _ in range(_MAX_PAGES):
            with self._answer(path, {}) as response:
                content = b"".join(self._pieces(response, _MAX_JSON_BYTES, path))
                following = str(response.links.get("next", {}).get("url", ""))
            try:
                yield decode_json(content, _MAX_JSON_BYTES)
            except (ProtocolError, UnicodeDecodeError) as error:
                raise bad_answer(f"{path}: {error}") from None
            if not following:
                return
            address = urlsplit(following)  # a mirror may name the Hub that it mirrors
            path = f"{address.path}?{address.query}"
        raise bad_answer(f"{path}: more than {_MAX_PAGES} pages")

    @contextlib.contextmanager
    def body(
        self, path: str, max_bytes: int, start: int = 0
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield the content of a file from byte ``start``, or from 0 if the Hub gives all of it.

        Raises:
            UsageError: it has more than ``max_bytes``, or does not come.
            HfHubHTTPError: the Hub refuses.
        """
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._answer(path, headers) as response:
            begins = start if response.status_code == 206 else 0
            yield begins, self._pieces(response, max_bytes - begins, path)

    @contextlib.contextmanager
    def _answer(self, path: str, headers: dict[str, str]) -> Iterator[Any]:
        from huggingface_hub.errors import OfflineModeIsEnabled

        if self._offline:
            raise OfflineModeIsEnabled("HF_HUB_OFFLINE is set")
        for wait_s in (*_RETRY_AFTER_S, None):
            with self._http.stream("GET", self._endpoint + path, headers=headers) as response:
                if wait_s is None or response.status_code not in _RETRIED:
                    hub_utils().hf_raise_for_status(response)
                    yield response
                    return
                wait_s = _asked_wait(response) or wait_s
            if self._stopped.wait(wait_s):
                raise TimeoutError("stopped")
        raise AssertionError("unreachable")

    def _pieces(self, response: Any, max_bytes: int, path: str) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        progress = _Progress(max_bytes, path)
        for piece in response.iter_raw():
            if self._stopped.is_set():
                raise TimeoutError("stopped")
            progress.add(piece)
            yield piece


def _check_status(response: Any) -> None:
    _check_answer(response)
    if not response.is_success:  # status and headers say what is wrong, or where it is
        response.stream = _checked_stream(response.stream, None)


class _Progress:
    """Counts the bytes of a body against its limits."""

    def __init__(self, max_bytes: int, path: str) -> None:
        self._max_bytes, self._path = max_bytes, path
        self._done, self._mark, self._since = 0, 0, time.monotonic()

    def add(self, piece: bytes) -> None:
        """Count a piece."""
        self._done += len(piece)
        if self._done > self._max_bytes:
            raise bad_answer(f"{self._path} has more than {self._max_bytes} bytes")
        now = time.monotonic()
        if now - self._since > _STALLED_S:
            if self._done - self._mark < _STALLED_BYTES:
                raise bad_answer(
                    f"{self._path}: {self._done - self._mark} bytes in {now - self._since:.0f} s"
                )
            self._mark, self._since = self._done, now


def _checked_stream(stream: Any, check: Callable[[bytes], None] | None) -> Any:
    """Return a stream that checks every piece of another; without a check, an empty one."""

    class Checked(_http_library().SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            if check is not None:
                for piece in stream:
                    check(piece)
                    yield piece

        def close(self) -> None:
            stream.close()

    return Checked()


@contextlib.contextmanager
def bounded_session() -> Iterator[None]:
    """Bound the answers that the Hub's own library gets inside the block, as uploads do."""
    from huggingface_hub import get_session

    session = get_session()
    before = session.event_hooks

    def bound(response: Any) -> None:
        _check_answer(response)
        progress = _Progress(_MAX_JSON_BYTES, urlsplit(str(response.request.url)).path)
        response.stream = _checked_stream(response.stream, progress.add)
        response.headers.pop("RateLimit", None)  # it asks for waits, too

    session.event_hooks = {
        "request": [*before["request"], _keep_token],
        "response": [*before["response"], bound],
    }
    try:
        yield
    finally:
        session.event_hooks = before


def _keep_token(request: Any) -> None:
    """Leave the user's token out of requests to other hosts than the Hub; refuse compression."""
    from huggingface_hub import constants, get_token

    request.headers["Accept-Encoding"] = "identity"
    given = request.headers.get("Authorization", "")
    token = get_token()
    if token and token in given and _origin(str(request.url)) != _origin(constants.ENDPOINT):
        del request.headers["Authorization"]


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    ports = {"http": 80, "https": 443}
    return parts.scheme, parts.hostname or "", parts.port or ports.get(parts.scheme)


def _check_answer(response: Any) -> None:
    """Refuse compressed bodies, redirects that leave https, and waits without end."""
    path = urlsplit(str(response.request.url)).path
    coding = response.headers.get("Content-Encoding", "identity")
    if coding != "identity":  # it was not asked for; 1 MB may be 1 GB
        raise bad_answer(f"{path} is compressed ({coding})")
    target = response.headers.get("Location", "")
    if str(response.request.url).startswith("https:") and target.startswith("http:"):
        raise bad_answer(f"{path} redirects to an address without encryption")
    if response.status_code in _RETRIED:
        _asked_wait(response)


def _asked_wait(response: Any) -> int | None:
    """Return the seconds that the Hub asks to wait; None if it names none."""
    asked = response.headers.get("Retry-After", "").strip()
    if not asked.isdecimal():
        return None
    if len(asked) > 9 or int(asked) > _MAX_WAIT_S:
        raise UsageError(
            f"the Hub asks to wait {strip_control_codes(asked, 20)} s (HTTP "
            f"{response.status_code}); run the command again later",
            code="hub.busy",
        )
    return int(asked)


def _http_library() -> Any:
    """Return the HTTP library that the installed huggingface_hub uses."""
    from huggingface_hub import get_session

    return sys.modules[type(get_session()).__module__.partition(".")[0]]
