"""The guard: a small process that kills a world's process group when Proctor's process is gone.

A world may hang in C code, and it may have started programs of its own. A worker may be killed at
any time. The guard waits for the end of a pipe that only the worker holds open.
"""

import os
import select
import signal
import sys


def start_guard(life: int) -> None:
    """Fork the guard of this process's group.

    ``life`` is the reading end of the worker's pipe, or a descriptor of the worker process itself.
    """
    group = os.getpgid(0)
    if os.fork():
        os.close(life)
        return
    try:
        os.setpgid(0, 0)  # outside of the group that it kills
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.dup2(life, 3)
        os.closerange(4, 256)
        os.closerange(0, 3)
        poll = select.poll()
        poll.register(3, select.POLLIN)
        poll.poll()
        os.killpg(group, signal.SIGKILL)
    finally:
        os._exit(0)


if __name__ == "__main__":  # guard.py DESCRIPTOR COMMAND...: guard a command, and become it
    start_guard(int(sys.argv[1]))
    try:
        os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606  the user's own command
    except OSError as error:
        sys.stderr.write("%s: %s\n" % (sys.argv[2], error.strerror))
        os._exit(127)
