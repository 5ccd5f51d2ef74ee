"""Evaluations of checkpoints while the training goes on: each a process of its own.

Always the same episodes, so that checkpoints can be compared pair by pair. One runs at a time, the
others wait for it; what breaks costs a line and no training. RUN/eval/000200 is an ordinary run of
`proctor eval`, RUN/eval/000200.log what it said.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from proctor.config.training import TrainConfig
from proctor.errors import summarize_traceback
from proctor.fingerprint import without_secrets
from proctor.runs.training import EvaluationLogRow
from proctor.system.files import MAX_JOURNAL_BYTES, read_regular_file
from proctor.training.checkpoints import AVERAGED, PRETRAINED

COMMAND = (sys.executable, "-m", "proctor.cli", "eval")
_STOP_S = 10.0


@dataclass(frozen=True)
class _Overall:
    """What eval_info.json says of all episodes."""

    pc_success: float | None
    n_episodes: int
    pc_success_interval95: tuple[float, float] | None = None
    avg_sum_reward: float | None = None
    eval_s: float | None = None


@dataclass(frozen=True)
class _Ours:
    complete: bool
    stopped: str | None = None


@dataclass(frozen=True)
class _Info:
    overall: _Overall
    proctor: _Ours


class CheckpointEvaluator:
    """Plays the checkpoints that it is handed, one after the other."""

    def __init__(
        self, config: TrainConfig, folder: Path, command: tuple[str, ...] = COMMAND
    ) -> None:
        self._config, self._folder, self._command = config, folder, command
        self._waiting: deque[Path] = deque()
        self._running: tuple[Path, subprocess.Popen[bytes]] | None = None
        self._unstarted: list[EvaluationLogRow] = []

    @property
    def pending(self) -> frozenset[int]:
        """The steps whose checkpoints must stay until they are played."""
        running = [self._running[0]] if self._running is not None else []
        return frozenset(int(path.name) for path in [*self._waiting, *running])

    def submit(self, checkpoint: Path) -> None:
        """Play a checkpoint as soon as those before it are done, if it was not already."""
        if self.result_of(checkpoint) is None:
            self._waiting.append(checkpoint)
            self._start_next()

    def result_of(self, checkpoint: Path) -> EvaluationLogRow | None:
        """Return what came of a checkpoint; None where some episodes are still to be played."""
        overall = self._overall(checkpoint)
        if overall is None:
            return None
        return EvaluationLogRow(
            step=int(checkpoint.name),
            pc_success=overall.pc_success,
            interval=overall.pc_success_interval95,
            episodes=overall.n_episodes,
            avg_sum_reward=overall.avg_sum_reward,
            eval_s=overall.eval_s,
        )

    def finished(self) -> Iterator[EvaluationLogRow]:
        """Yield what has come of evaluations since the last call, without waiting."""
        while self._running is not None and self._running[1].poll() is not None:
            checkpoint, process = self._running
            self._running = None
            self._start_next()
            yield self._result(checkpoint, process.returncode)
        unstarted, self._unstarted = self._unstarted, []
        yield from unstarted

    def wait_for_all(self) -> Iterator[EvaluationLogRow]:
        """Wait for all that was asked for, and yield what comes of it."""
        while self._running is not None:
            self._running[1].wait()
            yield from self.finished()
        yield from self.finished()

    def stop(self) -> None:
        """End what is running: its episodes are kept, and a resumed training goes on with them."""
        self._waiting.clear()
        if self._running is not None:
            process = self._running[1]
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._running = None

    def _start_next(self) -> None:
        """Start the next one that can be: no process or no space left is no end of a training."""
        while self._running is None and self._waiting:
            checkpoint = self._waiting.popleft()
            try:
                self._running = checkpoint, self._started(checkpoint)
            except OSError as error:
                problem = f"it could not be started: {error.strerror or error}"
                self._unstarted.append(EvaluationLogRow(int(checkpoint.name), problem=problem))

    def _started(self, checkpoint: Path) -> subprocess.Popen[bytes]:
        self._folder.mkdir(exist_ok=True)
        with self._log(checkpoint).open("ab") as log:
            return subprocess.Popen(  # noqa: S603  our own command, with the user's own flags
                [*self._command, *self.eval_flags(checkpoint)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _log(self, checkpoint: Path) -> Path:
        return self._folder / f"{checkpoint.name}.log"

    def eval_flags(self, checkpoint: Path) -> list[str]:
        """Return the flags of the evaluation of a checkpoint."""
        output = self._folder / checkpoint.name
        if (output / "run.json").is_file():
            return ["--resume", f"--output_dir={output}"]
        config = self._config
        flags: dict[str, Any] = {
            "policy.path": checkpoint / (AVERAGED if config.ema.played else PRETRAINED),
            "output_dir": output,
            "seed": config.seed,
        }
        told = without_secrets(config, config.as_dict())  # other users see a process's flags
        for section in ("env", "eval", "video"):
            flags |= {f"{section}.{name}": value for name, value in told[section].items()}
        return [f"--{name}={_text(value)}" for name, value in flags.items() if value is not None]

    def _result(self, checkpoint: Path, code: int) -> EvaluationLogRow:
        found = self.result_of(checkpoint)
        if found is not None:
            return found
        try:
            text = read_regular_file(self._log(checkpoint), MAX_JOURNAL_BYTES).decode(
                errors="replace"
            )
        except OSError as error:
            text = f"its log cannot be read: {error.strerror}"
        said = summarize_traceback(text)
        problem = f"exit code {code}, {said} (all of it: {self._log(checkpoint)})"
        return EvaluationLogRow(int(checkpoint.name), problem=problem)

    def _overall(self, checkpoint: Path) -> _Overall | None:
        """Return what all episodes of a checkpoint gave; None where some are still to be played."""
        try:
            raw = read_regular_file(self._folder / checkpoint.name / "eval_info.json")
            info = msgspec.json.decode(raw, type=_Info)
        except (OSError, msgspec.MsgspecError):
            return None
        ours = info.proctor
        return info.overall if ours.complete or ours.stopped is not None else None


def _text(value: Any) -> str:
    """Return a value as it is typed."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, list | dict) else str(value)
