"""Runs in the fork server: ignores the terminal's signals, and removes its folder at exit.

The fork server imports this module first. multiprocessing keeps the server's socket in a temporary
folder that only the parent removes at its exit. A killed parent would leave it behind.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
from multiprocessing import util
from pathlib import Path

from proctor.errors import UsageError

SOCKET_FOLDER = "PROCTOR_SOCKET_FOLDER"
"""Environment variable by which the parent tells the fork server the folder of its socket."""

PARENT_SIGNALS = {signal.SIGINT, signal.SIGHUP}
"""Signals that reach every process of a terminal; only the parent handles them."""

_LONGEST_NAME = 104
"""Longest path of a Unix socket in bytes with the final zero, on the strictest system (macOS)."""
_ADDED = len("/pymp-12345678/listener-12345678")
_SHORT_PLACES = ("/tmp", "/var/tmp")  # noqa: S108  a folder of our own is made there


def socket_folder() -> str:
    """Return multiprocessing's temporary folder, at a path short enough for a socket.

    TMPDIR may be long: clusters give each job one. Other temporary files stay there.
    """
    before = tempfile.tempdir
    try:
        usual = tempfile.gettempdir()
        for place in (usual, *_SHORT_PLACES):
            if len(os.fsencode(place)) + _ADDED < _LONGEST_NAME and os.access(place, os.W_OK):
                tempfile.tempdir = str(Path(place))
                return util.get_temp_dir()
    except OSError as error:
        raise UsageError(
            f"no temporary folder can be made: {error.strerror}", code="disk.no-temporary-folder"
        ) from None
    finally:
        tempfile.tempdir = before
    longest = _LONGEST_NAME - _ADDED - 1
    raise UsageError(
        f"TMPDIR={usual} is too long for a socket's name; {longest} bytes fit",
        code="disk.temporary-path-too-long",
    )


def _resume_collection() -> None:
    """Collect garbage in a forked process, except for the modules of the server."""
    gc.freeze()
    gc.enable()


_folder = os.environ.pop(SOCKET_FOLDER, None)  # removed: workers do not need it
if _folder is not None:
    for _signal in PARENT_SIGNALS:
        signal.signal(_signal, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENT_SIGNALS)
    # Workers end by os._exit, which skips this handler.
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    gc.disable()  # the modules that it imports stay: they need no collection
    os.register_at_fork(after_in_child=_resume_collection)
