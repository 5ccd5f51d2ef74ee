"""Every error Proctor raises on purpose::

    ProctorError                  one line for the user: what is wrong, where, what to do
    ├── UsageError                bad flags, values, names or folders; nothing has started
    │   ├── MissingExtra          an optional dependency is not installed
    │   ├── FailedToLoad          an optional dependency is installed and its import fails
    │   ├── DatasetError          a folder is not a dataset, or the dataset has a fault
    │   ├── CannotRead            the system cannot read a file now; nothing is known of its content
    │   ├── HubUnreachable        the Hugging Face Hub does not answer
    │   ├── NoGraphics            the run needs rendering and no GL backend works
    │   ├── PluginError           a plug-in breaks its contract; the text names file and line
    │   └── SpecMismatch          the policy's inputs do not match the benchmark's observations
    ├── PolicyError               the policy returned an invalid action chunk
    ├── ProtocolError             a peer sent an invalid message
    │   ├── ConnectionLost        a peer disconnected or timed out; another server may be tried
    │   └── EpisodeStateLost      a policy server lost an episode's state; the episode restarts
    ├── RobotError                a robot, teleoperator or camera cannot go on; motors are off
    │   ├── BusError              a motor does not answer, or answers with an error
    │   └── DeviceNotConnected    a device is not there, or is gone
    ├── TrainingError             training cannot continue; its checkpoints are complete
    ├── RunFolderError            the run folder cannot be used or written
    │   ├── WriteFailed           the disk is full, missing or read-only; the cause is the OSError
    │   └── FolderInUse           another process holds the folder's lock
    └── WorkerError               a worker process or its simulator failed; the engine retries
        ├── SimulatorUnavailable  no simulator of a task can be created: the run ends, exit code 1
        └── SimulatorFault        the simulator's own error; repeated at one step, a failed episode

Every error has a ``code`` such as "dataset.missing-column". The code is stable: programs and tests
match the code, and the wording of the text may change.
"""

from __future__ import annotations

import difflib
import itertools
import re
import signal
from collections.abc import Callable, Iterable
from typing import ClassVar

EXIT_HUNG_UP, EXIT_INTERRUPTED = 129, 130
_FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)
_MOST_TEXT = 8000
"""Longest error text in characters that is passed on; third-party errors can have any length."""


class ProctorError(Exception):
    """Base class of Proctor's errors: a text of one line and a stable code."""

    default_code: ClassVar[str] = ""
    """Code of a class that stands for one problem; others get a code where they are raised."""

    def __init__(self, text: str = "", *, code: str = "") -> None:
        super().__init__(text)
        self.code = code or self.default_code

    def __reduce__(
        self,
    ) -> tuple[Callable[..., ProctorError], tuple[object, ...], dict[str, object]]:
        return _unpickle, (type(self), self.args), self.__dict__


def _unpickle(kind: type[ProctorError], args: tuple[object, ...]) -> ProctorError:
    """Make an error of ``kind`` without its constructor, which may take other arguments."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class UsageError(ProctorError):
    """The user asked for something impossible: exit code 2, nothing has started."""


class MissingExtra(UsageError):
    """An optional dependency is missing; the text holds the pip command."""

    default_code = "extra.missing"

    def __init__(self, what: str, extra: str, then: str = "") -> None:
        super().__init__(f"{what} is not installed; run: pip install 'proctor[{extra}]'{then}")


class FailedToLoad(UsageError):
    """An optional dependency is installed and fails to load; the text holds the reason."""

    default_code = "extra.broken"

    def __init__(self, what: str, reason: str, extra: str) -> None:
        super().__init__(
            f"{what} is installed but fails to load ({reason}): check the memory limit "
            f"(ulimit -v), or install it again with pip install --upgrade 'proctor[{extra}]'"
        )


class DatasetError(UsageError):
    """A dataset cannot be read or used as asked; the text names the file and the fault."""


class CannotRead(UsageError):
    """The system cannot read a file now; whether the file is damaged is unknown."""

    default_code = "disk.read-failed"


class HubUnreachable(UsageError):
    """The Hugging Face Hub does not answer, and the requested files are not in the local cache."""

    default_code = "hub.unreachable"


class NoGraphics(UsageError):
    """The run needs rendering, and no GL backend works on this machine."""

    default_code = "gl.unavailable"


class PluginError(UsageError):
    """A user's plug-in cannot be imported, created or used; the text names file and line."""


class SpecMismatch(UsageError):
    """The policy's inputs or outputs do not match the benchmark's observations and actions."""


class PolicyError(ProctorError):
    """The policy returned NaN, or an action chunk of the wrong shape."""


class ProtocolError(ProctorError):
    """A peer sent a message that its protocol does not allow; the text quotes its first bytes."""


class ConnectionLost(ProtocolError):
    """A peer is unreachable, disconnected or timed out; another server may be tried."""

    default_code = "connection.lost"


class EpisodeStateLost(ProtocolError):
    """A policy server lost the state of an episode; the engine restarts the episode."""

    default_code = "connection.episode-state-lost"


class RobotError(ProctorError):
    """A robot, teleoperator or camera cannot go on; the text names the part and the cause."""


class BusError(RobotError):
    """A motor does not answer, answers corruptly, or refuses a request."""


class DeviceNotConnected(RobotError):
    """A port, motor or camera is not there, or is gone."""

    default_code = "robot.not-connected"


class TrainingError(ProctorError):
    """Training cannot continue: the loss is not finite, or a data loader process died."""


class RunFolderError(ProctorError):
    """The run folder is in use, belongs to another run, is not writable or is full."""


class WriteFailed(RunFolderError):
    """The disk is full, missing or read-only; ``runs/disk_errors`` adds what was kept."""

    default_code = "disk.write-failed"

    def __init__(self, path: object, error: OSError) -> None:
        super().__init__(f"cannot write {path}: {error.strerror}")


class FolderInUse(RunFolderError):
    """Another process works in the run folder."""

    default_code = "run.in-use"


class WorkerError(ProctorError):
    """A worker process died, timed out or raised; the text says why as far as it is known."""

    default_code = "worker.failed"


class SimulatorUnavailable(WorkerError):
    """Every attempt to create a task's simulator failed for the same reason.

    Its cause is a WorkerError with the traceback.
    """

    default_code = "worker.simulator-unavailable"


class SimulatorFault(WorkerError):
    """The simulator raised, or returned non-finite numbers or arrays of a wrong shape.

    Its cause, if any, is the simulator's exception. Errors of Proctor's own code around a simulator
    never have this type: they do not count in the success rate.
    """

    default_code = "worker.simulator-fault"


class ProctorWarning(UserWarning):
    """Warning of the Python API about something that may change what a result means."""


class ProctorNote(ProctorWarning):
    """Note of the Python API that a user should see once, such as a flag without effect."""


def exit_code_of(stop: KeyboardInterrupt) -> int:
    """Return the exit code for ``stop``; its argument is the signal if that is not SIGINT."""
    return EXIT_HUNG_UP if signal.SIGHUP in stop.args else EXIT_INTERRUPTED


def strip_control_codes(text: str, longest: int = 1000) -> str:
    """Return ``text`` as one line without control codes, with the middle of a long text cut.

    Error messages quote input, and input may come from an untrusted file.
    """
    if len(text) > longest:  # cut first: the text may have megabytes
        text = f"{text[: longest // 2]} ... {text[-longest // 2 :]}"
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    if len(shown) <= longest + len(" ... "):
        return shown
    return f"{shown[: longest // 2]} ... {shown[-longest // 2 :]}"


def summarize_traceback(text: str) -> str:
    """Return the exception of a traceback and the line of code that raised it, in one line.

    For text that is not a traceback, return its last line.
    """
    text = text[-_MOST_TEXT:].strip()
    frames = list(_FRAME.finditer(text))
    if not frames:
        return strip_control_codes(text.split("\n")[-1] or "no reason given")
    after = text[frames[-1].end() :].split("\n")[1:]
    said = itertools.dropwhile(lambda line: line.startswith(" "), after)
    exception = itertools.takewhile(str.strip, said)  # text printed later follows an empty line
    file = "/".join(frames[-1][1].split("/")[-2:])
    return strip_control_codes(f"{' '.join(exception)} ({file}:{frames[-1][2]})")


def printable_text(text: str) -> str:
    """Return ``text`` of several lines without control codes, cut to a readable length."""
    return "\n".join(
        strip_control_codes(line, _MOST_TEXT) for line in truncate_text(text).split("\n")
    )


def truncate_text(text: str) -> str:
    """Return ``text`` with the middle of a very long text cut; the end usually says most."""
    if len(text) <= _MOST_TEXT:
        return text
    head, tail = text[: _MOST_TEXT // 4], text[-_MOST_TEXT * 3 // 4 :]
    left_out = len(text) - len(head) - len(tail)
    return f"{head}\n[{left_out} characters left out here]\n{tail}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the nearest known word, or an empty string."""
    near = difflib.get_close_matches(word[:100], list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
