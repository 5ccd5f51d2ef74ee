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

SOCKET_FOLDER = "PROCTOR_SOCKET_FOLDER"
"""The variable by which the parent tells the fork server where its socket is."""

PARENTS_SIGNALS = {signal.SIGINT, signal.SIGHUP}
"""They go to every process of a terminal; the parent alone decides what comes of them."""

_folder = os.environ.pop(SOCKET_FOLDER, None)  # taken out: it is no business of the workers'
if _folder is not None:
    for _signal in PARENTS_SIGNALS:
        signal.signal(_signal, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)
    # Workers end by os._exit and never come to this.
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
