"""Trials: one file operation of a command fails, then the command is completed and compared."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.files.cases import CASES, Inputs, content_of, full_hub, make_recipe
from tests.chaos.files.injection import FAULTS, Ended, Fault, FaultyDisk, Operation
from tests.loopback_hub import LoopbackHub, serving

PAIRS = [(name, fault) for name in CASES for fault in FAULTS]
_UNFINISHED = re.compile(r"\.(part|tmp|old)$|^\.proctor|\.lock\b.*\.tmp")


@dataclass
class Trial:
    """A failed operation and what came of it."""

    name: str
    fault: Fault
    failed: Operation
    ended: Ended
    survived: bool = False
    lost: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    """A hang, a traceback, or an error that is not one line."""

    @property
    def is_one_line(self) -> bool:
        return not self.survived and not self.fault.kills and not self.other

    @property
    def sound(self) -> bool:
        return not (self.lost or self.left or self.other)

    def __str__(self) -> str:
        place = f"{self.failed.number} ({self.failed.call} {self.failed.path})"
        found = "; ".join([*self.lost, *self.left, *self.other])
        last = self.ended.said.strip().splitlines()[-1:] or ["(nothing said)"]
        head = f"{self.name}, {self.fault.name}, operation {place}, exit {self.ended.code}"
        return f"{head}: {found}\n    {last[0][:300]}"


class Sweep:
    """One command on a faulty disk, and its undisturbed result."""

    def __init__(self, name: str, base: Path, library: Path, hub: LoopbackHub) -> None:
        self._name, self._case, self._hub = name, CASES[name], hub
        base.mkdir(parents=True)
        self._inputs = Inputs(base / "inputs", self._case.inputs)
        variables = {
            "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": "hf_chaos", "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }  # fmt: skip
        if name == "benchmarks install":
            variables |= make_recipe(base / "recipe")
        self._disk = FaultyDisk(base, library, variables)
        self._home = self._disk.home
        self._fresh()
        self._disk.warm(self._case.words)
        self._fresh()
        self._before = {one: content_of(self._home / one) for one in self._case.inputs}
        ended = self._disk.run(self._case.words)
        assert ended.code == 0, f"{name} ended with {ended.code}: {ended.said}"
        assert not ended.left, f"{name} leaves {ended.left}"
        self._result, self._names = self._case.result(self._home), self._listing()
        if self._case.replaced:
            self._after = content_of(self._home / self._case.replaced)
        if self._case.on_hub:
            self._hub_files = hub.files("main"), set(hub.tags)

    def close(self) -> None:
        """End the server."""
        self._disk.close()

    def points(self, fault: Fault, seed: int) -> list[Operation]:
        """Return what can fail, one operation of each group first, in random order."""
        self._fresh()
        _, operations = self._disk.trace(self._case.words, fault)
        chance = random.Random(f"{seed}/{self._name}/{fault.name}")
        chance.shuffle(operations)
        rounds: dict[str, int] = {}
        order = []
        for place, one in enumerate(operations):
            rounds[one.group] = rounds.get(one.group, -1) + 1
            order.append((rounds[one.group], place, one))
        return [one for _, _, one in sorted(order, key=lambda entry: entry[:2])]

    def run_trial(self, fault: Fault, target: int) -> Trial | None:
        """Let an operation fail and complete the command; None if it did not come to it."""
        self._fresh()
        ended = self._disk.run(self._case.words, fault, target)
        if ended.failed is None:
            return None
        trial = Trial(self._name, fault, ended.failed, ended)
        self._judge_end(trial)
        finished = self._finished(trial)
        if not trial.survived:
            self._complete(trial)
        self._judge_result(trial, finished)
        return trial

    def _fresh(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)
        shutil.rmtree(self._disk.temporary, ignore_errors=True)
        self._disk.temporary.mkdir()
        (self._home / "user/.cache").mkdir(parents=True)
        for name in self._case.inputs:
            self._inputs.put(name, self._home)
        fresh = full_hub()
        self._hub.commits, self._hub.tags = fresh.commits, fresh.tags

    def _judge_end(self, trial: Trial) -> None:
        code, said = trial.ended.code, trial.ended.said
        trial.left += trial.ended.left
        if "Traceback" in said or "Exception ignored" in said:
            trial.other.append(f"a traceback: {_tail(said)}")
        if trial.fault.kills:
            if code not in (-signal.SIGKILL, 0, 2):
                trial.other.append(f"exit code {code}")
            trial.survived = False
            return
        trial.left += [f"temporary {path.name}" for path in self._disk.temporary.iterdir()]
        errors = [line for line in said.splitlines() if line.startswith("proctor: error")]
        trial.survived = code == 0
        if trial.fault.survived and code != 0:
            trial.other.append(f"it ended with {code}: {_tail(said)}")
        if code == 2 and len(errors) != 1:
            trial.other.append(f"{len(errors)} errors: {_tail(said)}")
        elif code not in (0, 2):
            trial.other.append(f"exit code {code}: {_tail(said)}")
        elif code == 0 and errors:
            trial.other.append(f"exit code 0 after {errors}")

    def _finished(self, trial: Trial) -> set[Any]:
        """Return what is finished after the fault, and check the inputs."""
        for one, content in self._before.items():
            found = content_of(self._home / one)
            if one == self._case.replaced:
                if not trial.fault.kills and found not in (content, self._after):
                    trial.lost.append(f"{one} is neither the old nor the new one")
            elif one != "frames" and found != content:
                trial.lost.append(f"{one} has changed")
        return self._case.finished(self._home)

    def _complete(self, trial: Trial) -> None:
        words = [] if self._case.resume is None else [self._case.resume]
        said = ""
        for attempt in [*words, self._case.words]:
            ended = self._disk.run(attempt)
            trial.left += ended.left
            said += ended.said
            if "Traceback" in ended.said:
                trial.other.append(f"a traceback when completed: {_tail(ended.said)}")
            if ended.code == 0:
                return
        if not self._is_right():
            trial.lost.append(f"it cannot be completed: {_tail(said)}")

    def _is_right(self) -> bool:
        if self._case.on_hub and (self._hub.files("main"), set(self._hub.tags)) != self._hub_files:
            return False
        with contextlib.suppress(OSError):
            return bool(self._case.result(self._home) == self._result)
        return False

    def _judge_result(self, trial: Trial, finished: set[Any]) -> None:
        if not self._is_right():
            trial.lost.append("the result is another one")
        elif gone := finished - self._case.finished(self._home):
            trial.lost.append(f"finished before, and gone: {gone}")
        more = self._listing() - self._names
        trial.left += [name for name in more if Path(name).name not in self._case.spare]

    def _listing(self) -> set[str]:
        """Return the files of the command; of caches, only those that are not finished."""
        paths = {path.relative_to(self._home) for path in self._home.rglob("*")}
        return {
            str(path) for path in paths if path.parts[0] != "user" or _UNFINISHED.search(path.name)
        }


def _tail(said: str) -> str:
    return said.strip()[-700:]


@contextlib.contextmanager
def sweeping(name: str, base: Path, library: Path) -> Iterator[Sweep]:
    """Make the sweep of a command, with a Hub of its own."""
    hub = full_hub()
    with serving(hub) as hub.endpoint:
        sweep = Sweep(name, base / name.replace(" ", "_"), library, hub)
        try:
            yield sweep
        finally:
            sweep.close()
