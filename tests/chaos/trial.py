"""One trial: a run is disturbed, resumed, and compared with an undisturbed one."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from proctor.runs.folder import RUN_FILE
from proctor.runs.journal import JOURNAL_FILE, EpisodeRecord, read_journal
from proctor.types import EpisodeKey, Outcome
from tests.chaos import leftovers
from tests.chaos.attacks import (
    FILLER,
    SESSIONS_FILE,
    Target,
    damage_journal,
    episodes_in,
    small_disk,
    strike,
    wait_for,
)
from tests.chaos.scenario import (
    PLAN,
    Attack,
    Mode,
    Scenario,
    Surrounding,
    common_flags,
    marks_in,
)

ROOT = Path(__file__).parents[2]
_PROCTOR = [sys.executable, "-m", "proctor.cli", "eval"]
_LONGEST_S = 90.0

_CODES = {
    Attack.INTERRUPT: (0, 130, -signal.SIGINT),
    Attack.TERMINATE: (0, 130, -signal.SIGTERM),
    Attack.HANG_UP: (0, 129, -signal.SIGHUP),
}
"""Allowed exit codes of a stopped session: done before, as documented, or before its handlers."""

_SHELL = {
    Surrounding.CLOSED: [f'exec "$@" {how}' for how in (">&-", "2>&-", "<&- >&- 2>&-", "<&-")],
    Surrounding.FULL: [f'exec "$@" {how}' for how in (">/dev/full", ">/dev/full 2>&1")],
    Surrounding.FEW_FILES: ['ulimit -Sn 40 && exec "$@"'],
}
"""Commands that start a session in these surroundings."""

Course = tuple[str, str | None, int | None]
"""Outcome, digest and steps, which must not change."""


@dataclass
class Verdict:
    """The result of a trial."""

    scenario: Scenario
    landed: bool = False
    """Whether the fault hit a running session."""
    sessions: int = 0
    lost: int = 0
    duplicated: int = 0
    changed: int = 0
    left: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """A session that hung, a raw traceback, or a failed resume."""

    def hold_against(self, rows: list[EpisodeRecord], expected: dict[EpisodeKey, Course]) -> None:
        """Count missing, duplicated and changed episodes."""
        final: dict[EpisodeKey, EpisodeRecord] = {}
        for row in rows:
            earlier = final.get(row.key)
            # An error may be followed by a retry; a result is final.
            self.duplicated += earlier is not None and earlier.outcome is not Outcome.ERROR
            final[row.key] = row
        self.lost = len(set(expected) - set(final))
        self.changed = sum(course(row) != expected.get(row.key) for row in final.values())

    @property
    def sound(self) -> bool:
        return not (self.lost or self.duplicated or self.changed or self.left or self.complaints)


def undisturbed(base: Path) -> dict[EpisodeKey, Course]:
    """Return the episodes of an undisturbed run, sequentially in one process."""
    folder = base / "undisturbed"
    words = [*common_flags("ENGINE"), "--eval.batch_size=1", "--eval.use_async_envs=false"]
    words.append(f"--output_dir={folder}")
    subprocess.run([*_PROCTOR, *words], cwd=ROOT, check=True, capture_output=True)
    courses = {row.key: course(row) for row in read_journal(folder).rows}
    assert sorted(courses) == sorted(PLAN)
    return courses


def run_trial(scenario: Scenario, home: Path, expected: dict[EpisodeKey, Course]) -> Verdict:
    """Disturb, resume and check one run in ``home``, which is kept only if something is wrong."""
    trial = _Trial(scenario, home)
    fills = scenario.kind.attack is Attack.FILL_DISK
    with small_disk(trial.disk) if fills else contextlib.nullcontext():
        trial.disturb()
        trial.complete()
        trial.check(expected)
        if not trial.verdict.sound and trial.folder.exists():
            shutil.copytree(trial.folder, home / "evidence")
    if trial.verdict.sound:
        shutil.rmtree(home)
    return trial.verdict


class _Trial:
    def __init__(self, scenario: Scenario, home: Path) -> None:
        self.disk = home / "disk"
        self.folder = self.disk / "run"
        self.verdict = Verdict(scenario)
        self._scenario = scenario
        self._home = home
        self._temporary = home / "tmp"
        self._marks = marks_in(home)
        self._mark = uuid.uuid4().hex
        self._rng = random.Random(f"{scenario.seed}/{scenario.number}/strike")
        self._shared_memory = home / "shm"
        for folder in (self.disk, self._temporary, self._shared_memory, self._marks):
            folder.mkdir(parents=True)

    def disturb(self) -> None:
        """Run the disturbed sessions; after each, no process may be alive."""
        kind = self._scenario.kind
        for moment in self._scenario.moments:
            before = episodes_in(self.folder)
            target = self._start()
            if kind.attack is not None:
                wait_for(moment, target, before)
                try:
                    self.verdict.landed |= strike(kind.attack, target)
                except AssertionError as wrong:
                    self.verdict.complaints.append(str(wrong))
            code = self._wait(target.process)
            if code not in _CODES.get(kind.attack, (code,)):
                self.verdict.complaints.append(f"it ended with {code}")
            if self._scenario.survived and not self._got_over(code):
                self.verdict.complaints.append(f"the run did not get over it and ended with {code}")
            self.verdict.left += leftovers.orphans(self._mark)
            (self.disk / FILLER).unlink(missing_ok=True)
            if (self.folder / SESSIONS_FILE).is_dir():
                (self.folder / SESSIONS_FILE).rmdir()
            if kind.damage is not None:
                cut = self._rng.random()
                self.verdict.landed &= damage_journal(kind.damage, self.folder, cut)
        if kind.attack is None:
            self.verdict.landed = kind.surroundings is not None or any(self._marks.iterdir())

    def _got_over(self, code: int) -> bool:
        """Return whether the session ended well; of two in one folder, one did all the work."""
        if self._scenario.kind.attack is Attack.SECOND_RUN and code == 2:
            return episodes_in(self.folder) == len(PLAN)
        return code == 0

    def complete(self) -> None:
        """Resume until the run is complete; one resume must do, unless a fault is left.

        A fault that did not occur before the run was disturbed may occur now.
        """
        for _ in range(2):
            fresh = not any(self._marks.iterdir())
            code = self._wait(self._start().process)
            if code == 0:
                return
            if not (fresh and any(self._marks.iterdir())):
                break
        self.verdict.complaints.append(f"the resumed run ended with {code}")

    def check(self, expected: dict[EpisodeKey, Course]) -> None:
        """Compare the journal with the plan and look for leftovers."""
        rows, verdict = whole_rows(self.folder), self.verdict
        verdict.hold_against(rows, expected)
        if self._scenario.kind.attack is Attack.SUSPEND and any(row.attempts > 1 for row in rows):
            verdict.complaints.append("a pause was taken for a hang")
        verdict.left += leftovers.orphans(self._mark)
        verdict.left += leftovers.segments(self._shared_memory)
        verdict.left += leftovers.held_lock(self.folder)
        verdict.left += leftovers.temporary_files(self.folder, self._temporary)

    def _start(self) -> Target:
        process = self._launch()
        return Target(
            process=process,
            folder=self.folder,
            pick=self._rng.choice,
            to_group=self._scenario.to_group,
            start_second=lambda: self._wait(self._launch()),
        )

    def _launch(self) -> subprocess.Popen[bytes]:
        """Start a session: a new run, or the continuation of an existing one."""
        self.verdict.sessions += 1
        resumes = (self.folder / RUN_FILE).exists()
        # A run folder permits nothing: name our policy, and the folder of its faults, again.
        own_words = ("--policy.type=", "--policy.break_once_in=", "--env.break_once_in=")
        again = [flag for flag in self._scenario.flags if flag.startswith(own_words)]
        flags = ("--resume", *again) if resumes else self._scenario.flags
        own = {leftovers.MARK: self._mark, "TMPDIR": str(self._temporary)}
        command = [*_PROCTOR, *flags, f"--output_dir={self.folder}"]
        around = self._scenario.kind.surroundings
        if around is Surrounding.NO_LOCKS:
            own["PYTHONPATH"] = str(ROOT / "tests" / "no_locks")
        if around in _SHELL:
            command = ["sh", "-c", self._rng.choice(_SHELL[around]), "sh", *command]
        piped = self._scenario.kind.attack is Attack.CLOSE_PIPE
        with self._stderr().open("wb") as stderr:
            return subprocess.Popen(
                leftovers.with_own_shared_memory(command, self._shared_memory),
                cwd=ROOT,
                env={**os.environ, **own},
                stdout=subprocess.PIPE if piped else subprocess.DEVNULL,
                stderr=subprocess.STDOUT if piped else stderr,
                start_new_session=True,
            )

    def _stderr(self) -> Path:
        return self._home / f"stderr{self.verdict.sessions}"

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for a session's end and check its output."""
        said = self._stderr()
        try:
            code = process.wait(_LONGEST_S)
        except subprocess.TimeoutExpired:
            self.verdict.complaints.append(f"a session was still there after {_LONGEST_S:g} s")
            process.kill()
            return process.wait()
        kind = self._scenario.kind
        expected = kind.policy_fault is not None or self._scenario.mode is Mode.LOCKSTEP
        interrupted_before_main = code == -signal.SIGINT  # Python's own traceback, not ours
        if b"Traceback" in said.read_bytes() and not (expected or interrupted_before_main):
            self.verdict.complaints.append(f"a traceback, see {said}")
        if any(byte < ord(" ") and byte != ord("\n") for byte in said.read_bytes()):
            self.verdict.complaints.append(f"control codes, see {said}")
        return code


def whole_rows(folder: Path) -> list[EpisodeRecord]:
    """Return every readable line, duplicates included."""
    rows = []
    path = folder / JOURNAL_FILE
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            rows.append(msgspec.json.decode(line, type=EpisodeRecord))
    return rows


def course(row: EpisodeRecord) -> Course:
    return (row.outcome.value, row.digest, row.steps)
