"""What the fork server does besides forking: it ignores Ctrl-C, and tidies up after the parent.

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

_folder = os.environ.pop(SOCKET_FOLDER, None)  # taken out: it is no business of the workers'
if _folder is not None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Workers end by os._exit and never come to this.
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
