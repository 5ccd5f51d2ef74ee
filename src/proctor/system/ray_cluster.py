"""Joining a cluster by Ray, which says nothing by itself and reports to nobody."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from proctor.errors import UsageError, strip_control_codes
from proctor.system.optional import LOAD_ERRORS, import_failure
from proctor.system.platform_info import usable_cores

_ANSWER_S = 3.0
_OBJECT_STORE = 128 * 2**20
_LONGEST_PLACE = 18
"""Of 104 bytes of a socket's name, Ray takes 64 and the folder's own name 21."""
_SHORT_PLACE = "/tmp"  # noqa: S108  a folder of our own is made there
_SETTINGS = b"\x04"
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + b"\0\0\0\0\0"
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # what raylets say of workers that die is said by us
    "RAY_ROTATION_MAX_BYTES": "1000000",
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # what Ray starts by itself gives way to everything: not here
}


def check_cluster(address: str) -> None:
    """See that there is such a cluster, in seconds.

    Raises:
        UsageError: Ray is not installed, or nobody answers there.
    """
    if address.startswith("ray://"):
        _check_reachable(address)  # before the second that Ray takes to be imported
    ray = import_ray()
    if address != "local" and not ray.is_initialized():
        _connect(ray, address)
        ray.shutdown()


def _entrypoint_name() -> str:
    """Return what a cluster is told of the command: Ray would show its flags, which hold keys."""
    return "proctor"


def import_ray() -> Any:
    """Import Ray, which is to say nothing and to report to nobody.

    Raises:
        MissingExtra: it is not installed.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except LOAD_ERRORS as error:
        raise import_failure(error, "ray", "ray", "Ray") from None
    from ray._private import utils

    utils.get_entrypoint_name = _entrypoint_name
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    return ray


def join_cluster(address: str) -> Callable[[], None]:
    """Join the cluster at ``address``, or start one here; return how it is left.

    Raises:
        UsageError: there is none.
    """
    ray = import_ray()
    if ray.is_initialized():
        return lambda: None  # whoever joined it leaves it
    if address == "local":
        return _start(ray)
    _connect(ray, address)
    leave: Callable[[], None] = ray.shutdown
    return leave


def _start(ray: Any) -> Callable[[], None]:
    """Start a cluster of this machine alone; return how it is ended, which leaves nothing."""
    # Ray asks for a token by default; one of our own leaves no file in the user's home.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    place = _short_folder()

    def end() -> None:
        ray.shutdown()
        shutil.rmtree(place, ignore_errors=True)

    try:
        with _own_signals():
            ray.init(
                num_cpus=usable_cores(),
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=_OBJECT_STORE,
                _temp_dir=place,
            )
    except BaseException as error:
        end()
        if not isinstance(error, Exception):
            raise
        raise UsageError(f"--cluster=local: Ray cannot be started ({_first_line(error)})") from None
    return end


def _short_folder() -> str:
    """Make a folder with a name that has room for those of Ray's sockets; TMPDIR may be long."""
    usual = tempfile.gettempdir()
    short = usual if len(os.fsencode(usual)) <= _LONGEST_PLACE else _SHORT_PLACE
    return tempfile.mkdtemp(prefix="proctor-ray-", dir=short)


def _connect(ray: Any, address: str) -> None:
    """Join the cluster at ``address``.

    Raises:
        UsageError: there is none.
    """
    try:
        with _own_signals():
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:  # noqa: BLE001  a dozen kinds, and all say why there is no cluster
        way_out = "start one with `ray start --head`, or use --cluster=local"
        raise UsageError(
            f"--cluster={address}: no Ray cluster there ({_first_line(error)}); {way_out}"
        ) from None


def _first_line(error: Exception) -> str:
    return strip_control_codes(str(error).strip().split("\n")[0], 200)


def _check_reachable(address: str) -> None:
    """Refuse an address where nobody answers, or not as Ray does: it would try for half a minute.

    Ray's clients speak gRPC, whose servers answer HTTP/2's greeting with their settings.
    """
    parts = urlsplit(address)
    try:
        place = parts.hostname or "", parts.port or 0
        with socket.create_connection(place, _ANSWER_S) as line:
            if os.environ.get("RAY_USE_TLS") != "1":
                line.sendall(_GREETING)
                if line.recv(4)[3:] != _SETTINGS:
                    raise ConnectionError("it is no gRPC server")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--cluster={address}: Ray does not answer there ({error}); is its head running, with "
            "the client's port open (ray start --head, port 10001)?"
        ) from None


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep our handlers: Ray sets its own for SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
