"""`proctor train` in a process of its own, which is stopped and resumed on larger datasets."""

from __future__ import annotations

import json
import shlex
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from measurements.command import PROCTOR
from proctor.runs.training import CHECKPOINTS
from proctor.training.checkpoints.saving import Checkpoints

_EVERY_S = 0.2
_STOP_S = 300
_MOST_DIVERGENCES = 3
_INTERRUPTED = 128 + signal.SIGINT


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint of a training; after a divergence the last good one.

    It is the checkpoint's own folder: the link ``last`` moves while the training goes on.
    """
    return Checkpoints(folder / CHECKPOINTS).newest()


class RunningTraining:
    """One training. If it diverges, it goes on from its last good checkpoint at half the rate."""

    def __init__(self, folder: Path, lr: float) -> None:
        self.folder = folder
        self._lr, self._divergences = lr, 0
        self._further: Callable[[], Sequence[str]] = tuple
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint that it would go on from."""
        return newest_checkpoint(self.folder)

    @property
    def step(self) -> int:
        """Step of that checkpoint; 0: there is none."""
        found = self.checkpoint
        return int(found.name) if found is not None else 0

    def steps_per_s(self) -> float:
        """Return the median speed of the last lines of the log, without pauses for checkpoints."""
        lines = (self.folder / "log.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
        return 1 / float(statistics.median(row["step_s"] for row in rows[-10:]))

    def start(self, *flags: str) -> None:
        """Begin the training; ``flags`` are those of `proctor train`."""
        words = ["train", *flags, f"--optimizer.lr={self._lr}", f"--output_dir={self.folder}"]
        print("$ proctor", shlex.join(words), "&", flush=True)
        self._process = subprocess.Popen([*PROCTOR, *words])  # noqa: S603  our own command

    def resume(self, further: Callable[[], Sequence[str]] = tuple) -> None:
        """Continue from that checkpoint, with ``further`` flags; again after a divergence."""
        self._further = further
        self.start("--resume", *further())

    def stop(self) -> None:
        """Let it write a checkpoint and end, as Ctrl-C does."""
        process = self._running()
        process.send_signal(signal.SIGINT)
        code = process.wait(_STOP_S)
        if code not in (0, _INTERRUPTED):
            self._recover(code)
            self.stop()

    def wait_for(self, step: int) -> None:
        """Wait for a checkpoint of ``step`` or a later one."""
        while self.step < step:
            code = self._running().poll()
            if code == 0:
                return
            if code is not None:
                self._recover(code)
            time.sleep(_EVERY_S)

    def wait(self) -> None:
        """Wait for the end of the training."""
        while code := self._running().wait():
            self._recover(code)

    def kill(self) -> None:
        """End it at once, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the training was not started")
        return self._process

    def _recover(self, code: int) -> None:
        """Resume at half the rate after a divergence.

        Raises:
            SystemExit: it ended for another reason, or diverged too often.
        """
        self._divergences += 1
        records = self.folder / "divergence.jsonl"
        if not records.exists() or self.checkpoint is None or self._divergences > _MOST_DIVERGENCES:
            raise SystemExit(f"the training ended with exit code {code}")
        records.rename(self.folder / f"divergence-{self._divergences}.jsonl")
        self._lr /= 2
        print(f"== diverged after step {self.step}: on at {self._lr:g}", flush=True)
        self.resume(self._further)
