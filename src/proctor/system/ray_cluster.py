"""Join or start a Ray cluster, without Ray's log output and usage reports."""

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
from proctor.system.platform.environment import hidden_keys
from proctor.system.platform.optional import LOAD_ERRORS, import_failure
from proctor.system.platform.platform_info import usable_cores

_TIMEOUT_S = 3.0
_OBJECT_STORE_BYTES = 128 * 2**20
_MAX_FOLDER_BYTES = 18
"""Of a socket name's 104 bytes, Ray uses 64 and the folder's own name 21."""
_SHORT_FOLDER = "/tmp"  # noqa: S108  a folder of our own is made there
_SETTINGS = b"\x04"
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + b"\0\0\0\0\0"
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # Proctor reports workers that die
    "RAY_ROTATION_MAX_BYTES": "1000000",
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # Ray would lower its workers' priority
}


def check_cluster(address: str) -> None:
    """Check within seconds that the cluster exists."""
    if address.startswith("ray://"):
        _check_reachable(address)  # first: importing Ray takes a second
    ray = import_ray()
    if address != "local" and not ray.is_initialized():
        _connect(ray, address)
        ray.shutdown()


def _entrypoint_name() -> str:
    """Return the command's name for the cluster: Ray would show its flags, which may hold keys."""
    return "proctor"


def import_ray() -> Any:
    """Import Ray with its log output and usage reports disabled."""
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
    """Join the cluster at ``address``, or start a local one; return the function that leaves it."""
    ray = import_ray()
    if ray.is_initialized():
        return lambda: None  # the process that joined it leaves it
    if address == "local":
        return _start(ray)
    _connect(ray, address)
    leave: Callable[[], None] = ray.shutdown
    return leave


def _start(ray: Any) -> Callable[[], None]:
    """Start a cluster on this machine; return the function that stops it and removes its files."""
    # Ray requires a token by default; this one leaves no file in the user's home.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    folder = _short_folder()

    def end() -> None:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)

    try:
        with _own_signals(), _on_loopback(), hidden_keys():
            ray.init(
                num_cpus=usable_cores(),
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=folder,
            )
    except BaseException as error:
        end()
        if not isinstance(error, Exception):
            raise
        raise UsageError(
            f"--cluster=local: Ray cannot be started ({_first_line(error)})",
            code="cluster.start-failed",
        ) from None
    return end


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Make a new cluster listen on 127.0.0.1 only, as Ray does by itself on macOS and Windows.

    Ray replaces the address 127.0.0.1 by one that other machines reach, whatever is set.
    """
    from ray._private import ray_constants

    usual = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = usual


def _short_folder() -> str:
    """Create a folder with a short path, so that Ray's socket names fit; TMPDIR may be long."""
    usual = tempfile.gettempdir()
    short = usual if len(os.fsencode(usual)) <= _MAX_FOLDER_BYTES else _SHORT_FOLDER
    return tempfile.mkdtemp(prefix="proctor-ray-", dir=short)


def _connect(ray: Any, address: str) -> None:
    """Join the cluster at ``address``."""
    try:
        with _own_signals():
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:  # noqa: BLE001  Ray raises many types
        raise UsageError(
            f"--cluster={address}: no Ray cluster there ({_first_line(error)}); start one with "
            "`ray start --head`, or use --cluster=local",
            code="cluster.unreachable",
        ) from None


def _first_line(error: Exception) -> str:
    return strip_control_codes(str(error).strip().split("\n")[0], 200)


def _check_reachable(address: str) -> None:
    """Refuse an address that does not answer as Ray does; Ray itself would retry for half a minute.

    Ray's clients use gRPC, whose servers answer the HTTP/2 preface with their settings.
    """
    parts = urlsplit(address)
    try:
        host_port = parts.hostname or "", parts.port or 0
        with socket.create_connection(host_port, _TIMEOUT_S) as connection:
            if os.environ.get("RAY_USE_TLS") != "1":
                connection.sendall(_HTTP2_PREFACE)
                if connection.recv(4)[3:] != _SETTINGS:
                    raise ConnectionError("it is not a gRPC server")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--cluster={address}: Ray does not answer there ({error}); is its head running, with "
            "the client's port open (ray start --head, port 10001)?",
            code="cluster.unreachable",
        ) from None


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's signal handlers: Ray installs its own for SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
