"""Kill and signal every command: python -m tests.chaos.kills --runs=500 --seed=0

Each trial starts a command, strikes it at a random moment, and then completes it. Nothing may be
lost, no process, shared memory or temporary file may be left, and the motors must be off.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.chaos import leftovers
from tests.chaos.command_cases import CASES, PROCTOR, Case, content_of, make_inputs
from tests.pty_arm import PtyArm

ROOT = Path(__file__).parents[2]
_LONGEST_S, _MOTORS_S, _ENDLESS_S, _PAUSE_S = 120.0, 10.0, 5.0, 0.5
_MOST_RETRIES = 5


def _send(number: int) -> Callable[[psutil.Process], None]:
    return lambda process: process.send_signal(number)


def _pause(process: psutil.Process) -> None:
    process.suspend()
    time.sleep(_PAUSE_S)
    process.resume()


def _kill_child(process: psutil.Process) -> None:
    children = process.children(recursive=True)
    if children:
        random.choice(children).kill()


STRIKES = {
    "SIGINT": _send(signal.SIGINT),
    "SIGTERM": _send(signal.SIGTERM),
    "SIGHUP": _send(signal.SIGHUP),
    "SIGKILL": _send(signal.SIGKILL),
    "SIGSTOP, SIGCONT": _pause,
    "a child is killed": _kill_child,
}
PAIRS = [(name, strike) for strike in STRIKES for name in CASES]


@dataclass
class Trial:
    """A trial and what was wrong with it."""

    number: int
    name: str
    strike: str
    hit: bool = False
    """Whether the command was still running."""
    lost: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not (self.lost or self.left or self.other)


class Bench:
    """The inputs of all commands, and the results and seconds of undisturbed ones."""

    def __init__(self, base: Path, names: list[str]) -> None:
        self.base, self.inputs = base, base / "inputs"
        self.inputs.mkdir(parents=True)
        make_inputs(self.inputs, {one for name in names for one in CASES[name].inputs})
        self.results: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self.retries = 0
        for name in names:
            while code := self._run_undisturbed(name):
                self.retries += 1
                assert self.retries < _MOST_RETRIES, f"{name} ends with {code}"

    def _run_undisturbed(self, name: str) -> int:
        """Note result and seconds of a command; return its exit code if it failed.

        On a busy machine the emulated arms answer too late.
        """
        case = CASES[name]
        with self.home(name, f"undisturbed{self.retries}") as (home, _):
            session, began = Session(case, home), time.monotonic()
            session.start(case.words(home))
            code = session.wait() if case.ends else session.end()
            if code not in case.codes:
                print(f"{name}, undisturbed, ended with {code}: {session.said}", flush=True)
                return code
            self.seconds[name] = time.monotonic() - began
            self.results[name] = case.result(home)
            assert not session.left(), f"{name} leaves {session.left()}"
        return 0

    @contextlib.contextmanager
    def home(self, name: str, trial: str) -> Iterator[tuple[Path, list[PtyArm]]]:
        """Make a folder with the inputs and the arms of a command."""
        home = self.base / trial / name.replace(" ", "_")
        for folder in ("tmp", "shm", "arms"):
            (home / folder).mkdir(parents=True)
        for one in CASES[name].inputs:
            shutil.copytree(self.inputs / one, home / one)
        with contextlib.ExitStack() as ending:
            yield home, [ending.enter_context(PtyArm(home / "arms", **arm)) for arm in _arms(name)]
        shutil.rmtree(home)


def _arms(name: str) -> list[dict[str, Any]]:
    ids = {"so_follower": "follower", "so_leader": "leader"}
    return [{"arm": arm, "calibration_id": ids[arm]} for arm in CASES[name].arms]


class Session:
    """One command in its folder, and its emulated arms."""

    def __init__(self, case: Case, home: Path) -> None:
        self.case, self.home, self.mark = case, home, uuid.uuid4().hex
        self.said = ""

    def start(self, words: list[str]) -> None:
        """Start a command with a temporary folder and shared memory of its own."""
        self._stderr = (self.home / "stderr").open("w+")
        own = {
            leftovers.MARK: self.mark,
            "TMPDIR": str(self.home / "tmp"),
            # PyTorch keeps one folder a user there, on purpose
            "TORCHINDUCTOR_CACHE_DIR": str(self.home / "torch"),
        }
        self.process = subprocess.Popen(
            leftovers.with_own_shared_memory([*PROCTOR, *words], self.home / "shm"),
            cwd=ROOT,
            env={**os.environ, **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            start_new_session=True,
        )

    def wait(self) -> int:
        """Wait for the command's end; kill it if it hangs."""
        try:
            code = self.process.wait(_LONGEST_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = -1000
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._stderr.seek(0)
        self.said = self._stderr.read()
        self._stderr.close()
        return code

    def end(self) -> int:
        """End a command that would go on for ever; return 0 if it ended as it should."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_ENDLESS_S)
        self.process.terminate()
        code = self.wait()
        return 0 if code in (130, -signal.SIGTERM, 1) else code

    def left(self) -> list[str]:
        """Return what is left behind, and wait for what is about to end."""
        found = leftovers.orphans(self.mark) + leftovers.segments(self.home / "shm")
        return found + leftovers.temporary_files(self.home, self.home / "tmp")


def run_trial(bench: Bench, seed: int, number: int) -> Trial:
    """Strike one command and complete it."""
    name, strike = PAIRS[number % len(PAIRS)]
    chance, trial, case = (
        random.Random(f"{seed}/{number}"),
        Trial(number, name, strike),
        CASES[name],
    )
    with bench.home(name, f"trial{number}") as (home, arms):
        before = {one: content_of(home / one) for one in case.inputs}
        session = Session(case, home)
        session.start(case.words(home))
        with contextlib.suppress(subprocess.TimeoutExpired):
            session.process.wait(chance.uniform(0, bench.seconds[name]))
        trial.hit = session.process.poll() is None
        with contextlib.suppress(psutil.NoSuchProcess):
            STRIKES[strike](psutil.Process(session.process.pid))
        goes_on = strike in ("SIGSTOP, SIGCONT", "a child is killed")
        code = session.end() if goes_on and not case.ends else session.wait()
        _judge(trial, code, session, arms)
        _complete(trial, session, bench)
        trial.left += session.left()
        for one, content in before.items():
            if content_of(home / one) != content:
                trial.lost.append(f"{one} has changed")
    return trial


def _judge(trial: Trial, code: int, session: Session, arms: list[PtyArm]) -> None:
    """Check the end of the disturbed session."""
    if code == -1000:
        trial.other.append("it hung")
    is_early = code == -signal.SIGINT or "Fatal Python error: init" in session.said
    if "Traceback" in session.said and not is_early:
        trial.other.append(f"a traceback: {session.said[-1500:]}")
    trial.left += leftovers.orphans(session.mark)
    for arm in arms:
        try:
            arm.wait_for(lambda state: not any(state["torque"].values()), _MOTORS_S)
        except AssertionError:
            trial.left.append(f"motors that are on: {arm.state()['torque']}")


def _complete(trial: Trial, session: Session, bench: Bench) -> None:
    """Resume the command, or give it again, and compare the result."""
    case, home = session.case, session.home
    words = [] if case.resume is None else [case.resume(home)]
    for attempt in [*words, case.words(home)]:
        session.start(attempt)
        code = session.wait() if case.ends else session.end()
        if code in case.codes:
            break
    else:
        trial.lost.append(f"it cannot be completed: {code}: {session.said[-1500:]}")
        return
    if "Traceback" in session.said:
        trial.other.append(f"a traceback when completed: {session.said[-1500:]}")
    if case.result(home) != bench.results[trial.name]:
        trial.lost.append("the result is another one")


def report(trials: list[Trial]) -> str:
    """Return a row for each command, and the sum."""
    rows = collections.defaultdict(list)
    for trial in trials:
        rows[trial.name].append(trial)
        rows["all"].append(trial)
    lines = ["| command | runs | hit | lost | left behind | other |", "|---|---|---|---|---|---|"]
    for name in [*(name for name in CASES if name in rows), "all"]:
        counts = [len(rows[name]), sum(trial.hit for trial in rows[name])]
        for part in ("lost", "left", "other"):
            counts.append(sum(bool(getattr(trial, part)) for trial in rows[name]))
        lines.append(f"| {name} | {' | '.join(str(count) for count in counts)} |")
    return "\n".join(lines)


def main() -> int:
    """Run the trials, print the table, and return 1 if any trial failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.kills")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--only", choices=[*CASES], action="append", help="a command")
    parser.add_argument("--lanes", type=int, default=2, help="how many at once")
    given = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="proctor-kills-"))
    wanted = given.only or CASES
    of_wanted = (n for n in itertools.count(given.first) if PAIRS[n % len(PAIRS)][0] in wanted)
    numbers = list(itertools.islice(of_wanted, given.runs))
    bench = Bench(base, list(dict.fromkeys(PAIRS[number % len(PAIRS)][0] for number in numbers)))
    trials = []
    with ThreadPoolExecutor(given.lanes) as pool:
        for trial in pool.map(lambda number: run_trial(bench, given.seed, number), numbers):
            trials.append(trial)
            if not trial.sound:
                print(trial, flush=True)
    print(report(trials))
    shutil.rmtree(base)
    return 0 if all(trial.sound for trial in trials) else 1


if __name__ == "__main__":
    sys.exit(main())
