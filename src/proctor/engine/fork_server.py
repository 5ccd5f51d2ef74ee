"""What the fork server does besides forking: it leaves Ctrl-C and the terminal's end to the parent,
and tidies up after it.

Imported by the fork server before anything else. multiprocessing keeps the server's socket in a
temporary folder that only the parent removes, at its exit: one that is killed would leave it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from multiprocessing import util
from pathlib import Path

from proctor.errors import UsageError

SOCKET_FOLDER = "PROCTOR_SOCKET_FOLDER"
"""The variable by which the parent tells the fork server where its socket is."""

PARENTS_SIGNALS = {signal.SIGINT, signal.SIGHUP}
"""They go to every process of a terminal; the parent alone decides what comes of them."""

_LONGEST_NAME = 104
"""Of a Unix socket, in bytes and with the zero at its end, where it is shortest (macOS)."""
_ADDED = len("/pymp-12345678/listener-12345678")
_SHORT_PLACES = ("/tmp", "/var/tmp")  # noqa: S108  a folder of our own is made there


def socket_folder() -> str:
    """Return multiprocessing's temporary folder, in a place that a socket's name has room for.

    TMPDIR may be long: clusters give each job one. What else is temporary stays there.

    Raises:
        UsageError: no folder can be written, or none with a name that is short enough.
    """
    before = tempfile.tempdir
    try:
        usual = tempfile.gettempdir()
        for place in (usual, *_SHORT_PLACES):
            if len(os.fsencode(place)) + _ADDED < _LONGEST_NAME and os.access(place, os.W_OK):
                tempfile.tempdir = str(Path(place))
                return util.get_temp_dir()
    except OSError as error:
        raise UsageError(f"no temporary folder can be made: {error.strerror}") from None
    finally:
        tempfile.tempdir = before
    longest = _LONGEST_NAME - _ADDED - 1
    raise UsageError(f"TMPDIR={usual} is too long for a socket's name; {longest} bytes fit")


_folder = os.environ.pop(SOCKET_FOLDER, None)  # taken out: it is no business of the workers'
if _folder is not None:
    for _signal in PARENTS_SIGNALS:
        signal.signal(_signal, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)
    # Workers end by os._exit and never come to this.
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
