"""What the sessions of one set of trials share: the order's entropy, and the pose of every start.

``sealed.json`` lies beside the run folders. It is sealed in the sense of a blind trial: nobody who
runs trials may open it before the last one, since the order of the policies follows from it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from proctor.errors import UsageError
from proctor.runs.folder import write_run_file
from proctor.runs.records import FiniteFloat
from proctor.system.files import read_regular_file

SEALED_FILE = "sealed.json"
_ENTROPY_BYTES = 16

Pose = dict[str, FiniteFloat]


class SealedSession(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the sealed file."""

    entropy: Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{{2 * _ENTROPY_BYTES}}}$")]
    """Draws the order of the trials; hexadecimal."""
    target: Pose | None = None
    """Where the robot stood before the first trial; it returns there before every trial."""
    start: Pose | None = None
    """The measured pose at the start of the first trial, which all other starts must have."""

    @property
    def order_seed(self) -> int:
        """The entropy as a number."""
        return int(self.entropy, 16)

    def write(self, root: Path) -> None:
        """Write the file atomically."""
        write_run_file(root / SEALED_FILE, msgspec.json.encode(self) + b"\n")


def new_session() -> SealedSession:
    """Draw the order of new trials."""
    return SealedSession(entropy=secrets.token_hex(_ENTROPY_BYTES))


def read_session(root: Path) -> SealedSession:
    """Return the session that ``--resume`` goes on with."""
    file = root / SEALED_FILE
    try:
        return msgspec.json.decode(read_regular_file(file), type=SealedSession)
    except (OSError, msgspec.DecodeError) as error:
        what = "is gone" if isinstance(error, FileNotFoundError) else f"is damaged: {error}"
        raise UsageError(
            f"--resume: {file} {what}; the order and the pose of its trials are unknown, so begin "
            "new ones in another --output_dir",
            code="run.damaged",
        ) from None


def largest_deviation(
    start: Mapping[str, float], measured: Mapping[str, float]
) -> tuple[str, float]:
    """Return the channel that is farthest from the start, and how far; same names in both."""
    return max(
        ((name, abs(measured[name] - start[name])) for name in start), key=lambda one: one[1]
    )
