"""The key that ``proctor robot-host`` and ``--robot.type=lekiwi_client`` share, in a file."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from proctor.errors import UsageError

_KEY_BYTES = 32
_TEXT = re.compile(r"[0-9a-f]{64}\n?")


def read_host_key(path: Path, flag: str) -> bytes:
    """Read a key."""
    try:
        with path.expanduser().open(encoding="ascii") as file:
            text = file.read(2 * _KEY_BYTES + 2)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(
            f"{flag}={path} cannot be read: {reason}; copy it from the robot's computer, where "
            "proctor robot-host made it",
            code="robot.host-key-file",
        ) from None
    if not _TEXT.fullmatch(text):
        raise UsageError(
            f"{flag}={path} is not a key: one line of {2 * _KEY_BYTES} hexadecimal digits is "
            "expected; copy it again from the robot's computer",
            code="robot.host-key-file",
        )
    return bytes.fromhex(text)


def make_host_key(path: Path) -> bool:
    """Make a key file that only this user can read; return False if there is a file."""
    try:
        made = os.open(path.expanduser(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(
            f"--host.key_file={path} cannot be written: {error.strerror}",
            code="robot.host-key-file",
        ) from None
    with os.fdopen(made, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(_KEY_BYTES) + "\n")
    return True
