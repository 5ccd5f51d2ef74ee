"""The ``proctor`` script, and ``python -m proctor`` where the script is not on the path.

Importing the command line takes a tenth of a second. Ctrl-C in that time ends the process without a
traceback, as SIGTERM does.
"""

import sys
from _signal import (  # type: ignore[import-not-found]  # ``signal`` takes some milliseconds
    SIG_DFL,
    SIGINT,
    default_int_handler,
    getsignal,
    signal,
)


def main() -> int:
    """Run the command line and return its exit code."""
    raises = getsignal(SIGINT) is default_int_handler
    if raises:
        signal(SIGINT, SIG_DFL)
    from proctor.cli import main as run_command
    from proctor.errors import EXIT_INTERRUPTED

    try:
        if raises:
            signal(SIGINT, default_int_handler)
        return run_command()
    except KeyboardInterrupt:  # before or after a command
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
