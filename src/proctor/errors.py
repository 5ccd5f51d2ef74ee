"""Every error Proctor raises on purpose.

ProctorError                  one line for the user: what, where, what to do
├── UsageError                bad flags, values, names or folders; nothing has started
│   ├── MissingExtra          an optional dependency is not installed
│   ├── FailedToLoad          it is installed, and its import fails: memory, a broken library
│   ├── DatasetError          not a dataset, or one with a fault; the text names the file
│   ├── HubUnreachable        a repository of the Hugging Face Hub, and no way there
│   ├── NoGraphics            pixels are needed and no GL backend works
│   ├── PluginError           a plug-in is not what it must be; the text names file and line
│   └── SpecMismatch          the policy's inputs are not what the benchmark offers
├── PolicyError               the policy returned something that is not an action chunk
├── WireError                 a peer said what its protocol does not know, or nothing
│   ├── PeerLost              it is gone, or too slow: another may be asked
│   └── EpisodeLost           it is gone with what it remembered of an episode, which begins anew
├── TrainingError             a training cannot go on; its checkpoints are whole
├── RunFolderError            the run folder cannot be used or written
│   ├── NotWritten            the disk did not take a file; its cause is the OSError
│   └── FolderInUse           another process works in it
└── WorkerError               a worker or its simulator broke (retried, then an errored episode)
    ├── CannotOpen            no simulator of a task can be opened here: the run ends, exit code 1
    └── SimulatorFault        the simulator's own error; repeated at one step, a failed episode
"""

from __future__ import annotations

import difflib
import itertools
import re
import signal
from collections.abc import Iterable

EXIT_HUNG_UP, EXIT_INTERRUPTED = 129, 130
_FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)
_MOST_TEXT = 8000
"""Characters of an error that are handed around: the text is someone else's, of any length."""


class ProctorError(Exception):
    """Base of all our errors; its text is one line that a user can act on."""


class UsageError(ProctorError):
    """The user asked for something that cannot be: exit code 2, nothing started."""


class MissingExtra(UsageError):
    """An optional dependency is missing; the text holds the pip command."""

    def __init__(self, what: str, extra: str, then: str = "") -> None:
        super().__init__(f"{what} is not installed; run: pip install 'proctor[{extra}]'{then}")


class FailedToLoad(UsageError):
    """An optional dependency is installed and fails to load; the text holds the reason."""

    def __init__(self, what: str, reason: str, extra: str) -> None:
        super().__init__(
            f"{what} is installed but fails to load ({reason}): check the memory limit "
            f"(ulimit -v), or install it again with pip install --upgrade 'proctor[{extra}]'"
        )


class DatasetError(UsageError):
    """A dataset cannot be read or used as asked; the text names the file and what is wrong."""


class HubUnreachable(UsageError):
    """The Hub does not answer, and what is asked for was not downloaded before."""


class NoGraphics(UsageError):
    """Pixels are needed but nothing on this machine can render them."""


class PluginError(UsageError):
    """Somebody's plug-in cannot be imported, made or used; the text names file and line."""


class SpecMismatch(UsageError):
    """The policy wants what the benchmark does not offer."""


class PolicyError(ProctorError):
    """The policy returned NaN, or a chunk of the wrong shape."""


class WireError(ProctorError):
    """A peer said something that is none of its protocol's; the text has its first bytes."""


class PeerLost(WireError):
    """A peer cannot be reached, went away or takes too long: another may be asked."""


class EpisodeLost(WireError):
    """What a policy remembered of an episode is gone: whoever plays it begins it anew."""


class TrainingError(ProctorError):
    """The loss is no number, or a loader process is gone."""


class RunFolderError(ProctorError):
    """The run folder is taken, foreign, unwritable or full."""


class NotWritten(RunFolderError):
    """The disk is full, gone or read-only; who knows what is kept adds that (``runs/kept``)."""

    def __init__(self, path: object, error: OSError) -> None:
        super().__init__(f"cannot write {path}: {error.strerror}")


class FolderInUse(RunFolderError):
    """Another process works in the run folder."""


class WorkerError(ProctorError):
    """A worker died, hung or raised; carries what is known about why."""


class CannotOpen(WorkerError):
    """No simulator of a task can be opened, always for the same reason: there is no use going on.

    Its cause is a WorkerError with the traceback.
    """


class ProctorWarning(UserWarning):
    """The category of what the Python API warns of: it may change what a result means."""


class ProctorNote(ProctorWarning):
    """The category of what a user should see once: flags that change nothing, a checkpoint's."""


class SimulatorFault(WorkerError):
    """The simulator raised, or returned numbers that are not finite or arrays of a wrong shape.

    Its cause, if any, is what the simulator raised. Errors of our own code around a simulator are
    never of this type: they are outside the success rate.
    """


def exit_code_of(stop: KeyboardInterrupt) -> int:
    """Return the exit code of what was stopped; a signal other than Ctrl-C is its argument."""
    return EXIT_HUNG_UP if signal.SIGHUP in stop.args else EXIT_INTERRUPTED


def one_line(text: str, longest: int = 1000) -> str:
    """Return ``text`` fit for a terminal: one line, no control codes, the middle of long ones cut.

    Errors quote what was given, and what was given may come from a file of someone else's.
    """
    if len(text) > longest:  # first: of a megabyte, most is not worth a look
        text = f"{text[: longest // 2]} ... {text[-longest // 2 :]}"
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    if len(shown) <= longest + len(" ... "):
        return shown
    return f"{shown[: longest // 2]} ... {shown[-longest // 2 :]}"


def what_happened(text: str) -> str:
    """Return the exception of a traceback and the line of code it came from, fit for a terminal.

    Of other text, its last line.
    """
    text = text[-_MOST_TEXT:].strip()
    frames = list(_FRAME.finditer(text))
    if not frames:
        return one_line(text.split("\n")[-1] or "no reason given")
    after = text[frames[-1].end() :].split("\n")[1:]
    said = itertools.dropwhile(lambda line: line.startswith(" "), after)
    exception = itertools.takewhile(str.strip, said)  # what is printed later comes after a gap
    file = "/".join(frames[-1][1].split("/")[-2:])
    return one_line(f"{' '.join(exception)} ({file}:{frames[-1][2]})")


def plain_text(text: str) -> str:
    """Return ``text`` of several lines fit for a terminal: no control codes, and not too much."""
    return "\n".join(one_line(line, _MOST_TEXT) for line in bounded(text).split("\n"))


def bounded(text: str) -> str:
    """Return ``text``, the middle of a very long one cut: its end says most, its start some."""
    if len(text) <= _MOST_TEXT:
        return text
    head, tail = text[: _MOST_TEXT // 4], text[-_MOST_TEXT * 3 // 4 :]
    left_out = len(text) - len(head) - len(tail)
    return f"{head}\n[{left_out} characters left out here]\n{tail}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the nearest known word, or an empty string."""
    near = difflib.get_close_matches(word[:100], list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
