"""Verdicts about trials, and who gives them: a simulated scene, or a person at the keyboard."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from proctor.control.terminal.keys import ControlKey, KeyReader
from proctor.robots.base import SimulatedScene
from proctor.runs.labels import MAX_LABEL_LENGTH


class Ruling(Enum):
    """The result of a trial."""

    SUCCESS = "success"
    FAILURE = "failure"
    VOID = "void"
    """The trial does not count and is repeated: the person disturbed it."""
    REDO = "re-done"
    """As void, without a reason."""
    QUIT = "quit"
    """The trial does not count, and the session ends."""


@dataclass(frozen=True)
class Verdict:
    """What a trial is worth."""

    ruling: Ruling
    score: float | None = None
    """Partial score from 0 to 1; None: not given."""
    reason: str = ""


class TrialSignal(Enum):
    """What a judge wants while a trial runs."""

    END = "end"
    """End the trial now and judge it."""
    QUIT = "quit"
    """End the trial and the session; the trial does not count."""


@dataclass(frozen=True)
class Briefing:
    """Instructions to the person before a trial. They do not name the policy."""

    number: int
    """From 1."""
    of_at_most: int
    scene: int
    """From 1."""
    is_new_scene: bool
    instruction: str
    is_repeat: bool = False


class Judge(Protocol):
    """Starts, ends and judges trials. No method waits."""

    by: str
    """"person" or "scene", as written in the run's protocol."""
    gives_scores: bool

    def brief(self, briefing: Briefing) -> None:
        """Say what comes next."""

    def poll_start(self) -> bool | None:
        """Return whether to start the trial (True) or to end the session (False); None: wait."""

    def begin(self) -> None:
        """Learn that the trial has started."""

    def poll_trial(self) -> TrialSignal | None:
        """Return what the judge wants of the running trial."""

    def end(self) -> None:
        """Learn that the trial has ended; ask for the verdict."""

    def poll_verdict(self) -> Verdict | None:
        """Return the verdict; None: wait."""


class SceneJudge:
    """The verdict of a simulated scene: success at any step ends the trial."""

    by = "scene"
    gives_scores = False

    def __init__(self, scene: SimulatedScene) -> None:
        self._scene = scene
        self._succeeded = False

    def brief(self, briefing: Briefing) -> None:
        """Need no briefing."""

    def poll_start(self) -> bool | None:
        """Start at once."""
        return True

    def begin(self) -> None:
        """Forget the last trial."""
        self._succeeded = False

    def poll_trial(self) -> TrialSignal | None:
        """End the trial once the task is done."""
        self._succeeded = self._succeeded or self._scene.succeeded()
        return TrialSignal.END if self._succeeded else None

    def end(self) -> None:
        """Look at the last state too."""
        self._succeeded = self._succeeded or self._scene.succeeded()

    def poll_verdict(self) -> Verdict | None:
        """Return success or failure."""
        return Verdict(Ruling.SUCCESS if self._succeeded else Ruling.FAILURE)


_START, _END = ("enter", "space"), ("enter", "space", "right", "n")
_RULINGS = {
    "s": Verdict(Ruling.SUCCESS, 1.0),
    "f": Verdict(Ruling.FAILURE, 0.0),
    **{str(digit): Verdict(Ruling.FAILURE, digit / 10) for digit in range(10)},
    "v": Verdict(Ruling.VOID),
    "r": Verdict(Ruling.REDO),
    **dict.fromkeys(ControlKey.STOP.value, Verdict(Ruling.QUIT)),
}
KEYS_BEFORE = "Enter or space: start   q: end the session"
KEYS_DURING = "s: success   f: failure   Enter or space: end and judge   Backspace: motors off"
KEYS_AFTER = (
    "s: success   f: failure   0-9: failure with a partial score of 0.0-0.9   t: reason   "
    "v: void, repeat   r: repeat   q: end the session   then Enter"
)


class KeyQueue:
    """Hands the keys of a reader over one by one."""

    def __init__(self, reader: KeyReader) -> None:
        self._reader = reader
        self._keys: deque[str] = deque()

    def next(self) -> str | None:
        """Return the next pressed key; None: there is none."""
        self._keys.extend(self._reader.poll())
        return self._keys.popleft() if self._keys else None


class PersonJudge:
    """A person's verdict by key. ``next_key`` returns a pressed key's name, or None."""

    by = "person"
    gives_scores = True

    def __init__(self, next_key: Callable[[], str | None], say: Callable[[str], None]) -> None:
        self._next_key = next_key
        self._say = say
        self._chosen: Verdict | None = None
        self._reason = ""
        self._writes_reason = False

    def brief(self, briefing: Briefing) -> None:
        """Say which trial comes next and what to do at the scene."""
        again = " again" if briefing.is_repeat else ""
        self._say(
            f"trial {briefing.number} of at most {briefing.of_at_most}{again}, scene "
            f"{briefing.scene}{f': {briefing.instruction}' if briefing.instruction else ''}"
        )
        if briefing.is_new_scene:
            self._say("arrange a new scene; its picture becomes the reference")
        else:
            self._say("restore the scene as in the reference picture (see the live page)")
        self._say(KEYS_BEFORE)

    def poll_start(self) -> bool | None:
        """Return True for Enter or space, False for q."""
        key = self._next_key()
        if key in _START:
            return True
        return False if key in ControlKey.STOP else None

    def begin(self) -> None:
        """Show the keys of a running trial."""
        self._chosen, self._reason, self._writes_reason = None, "", False
        self._say(f"running   {KEYS_DURING}")

    def poll_trial(self) -> TrialSignal | None:
        """End the trial by a verdict, Enter or space."""
        key = self._next_key()
        if key in ControlKey.STOP:
            return TrialSignal.QUIT
        if key in ("s", "f"):
            self._chosen = _RULINGS[key]
            return TrialSignal.END
        return TrialSignal.END if key in _END else None

    def end(self) -> None:
        """Ask for the verdict."""
        self._say(f"ended   {KEYS_AFTER}")
        if self._chosen is not None:
            self._show()

    def poll_verdict(self) -> Verdict | None:
        """Return the verdict once Enter confirms it."""
        key = self._next_key()
        if key is None:
            return None
        if self._writes_reason:
            self._write_reason(key)
            return None
        if key == "enter" and self._chosen is not None:
            return Verdict(self._chosen.ruling, self._chosen.score, self._reason.strip())
        if key == "t":
            self._writes_reason = True
            self._say("reason (the left arrow deletes), then Enter:")
        elif key in _RULINGS:
            self._chosen = _RULINGS[key]
            self._show()
        return None

    def _write_reason(self, key: str) -> None:
        if key == "enter":
            self._writes_reason = False
            self._show()
        elif key == "left":  # backspace is the emergency stop
            self._reason = self._reason[:-1]
        elif key == "space" or len(key) == 1:
            added = " " if key == "space" else key
            self._reason = (self._reason + added)[:MAX_LABEL_LENGTH]

    def _show(self) -> None:
        chosen = "no verdict yet"
        if self._chosen is not None:
            partial = self._chosen.ruling is Ruling.FAILURE and self._chosen.score
            score = f", partial score {self._chosen.score:g}" if partial else ""
            chosen = f"{self._chosen.ruling.value}{score}"
        reason = f" ({self._reason.strip()})" if self._reason.strip() else ""
        self._say(f"{chosen}{reason}; Enter confirms")
