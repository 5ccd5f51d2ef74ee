"""Evaluates checkpoints during training, each in a process of its own.

All checkpoints run the same episodes, so that they can be compared pairwise. One evaluation runs at
a time. A failed evaluation is logged and does not stop the training; a resumed training tries it
again. RUN/eval/000200 is a run of `proctor eval`, and RUN/eval/000200.log is its output. The
process ends with the training, also with a killed one.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from proctor.config.base import MOST_SEED
from proctor.config.online_training import OnlineTrainConfig
from proctor.config.training import TrainConfig
from proctor.errors import RunFolderError, summarize_traceback
from proctor.fingerprint import without_keys
from proctor.permissions import permitting
from proctor.runs.folder import RunFolder, RunRecord
from proctor.runs.training import EvaluationLogRow
from proctor.system.files import MAX_JOURNAL_BYTES, read_regular_file
from proctor.system.locks import is_locked
from proctor.training.checkpoints.saving import AVERAGED, PRETRAINED

COMMAND = (sys.executable, "-m", "proctor.system.dependent_process", "proctor.cli", "eval")
SELECTION_SEEDS = 2_000_000
"""Added to the training's seed for evaluations that select the best checkpoint."""
_STOP_S = 10.0
_LOCK_POLL_S = 0.5


@dataclass(frozen=True)
class _Overall:
    """The results over all episodes in eval_info.json."""

    pc_success: float | None
    n_episodes: int
    n_errors: int = 0
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
    """Evaluates submitted checkpoints, one after the other."""

    def __init__(
        self,
        config: TrainConfig | OnlineTrainConfig,
        folder: Path,
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        self._config, self._folder, self._command = config, folder, command
        averaged = isinstance(config, TrainConfig) and config.ema.is_evaluated
        self._weights = AVERAGED if averaged else PRETRAINED
        self._waiting: deque[Path] = deque()
        self._running: tuple[Path, subprocess.Popen[bytes]] | None = None
        self._without_process: list[EvaluationLogRow] = []
        """Results of evaluations that this evaluator did not start."""

    @property
    def pending(self) -> frozenset[int]:
        """Steps whose checkpoints wait for their evaluation, and must be kept until then."""
        running = [self._running[0]] if self._running is not None else []
        return frozenset(int(path.name) for path in [*self._waiting, *running])

    def submit(self, checkpoint: Path) -> None:
        """Queue a checkpoint, unless it was evaluated already."""
        if self.result_of(checkpoint) is None:
            self._waiting.append(checkpoint)
            self._start_next()

    def result_of(self, checkpoint: Path) -> EvaluationLogRow | None:
        """Return the results of a checkpoint; None if its evaluation is not complete."""
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
            errors=overall.n_errors,
        )

    def finished(self) -> Iterator[EvaluationLogRow]:
        """Yield the results of evaluations that have ended since the last call, without waiting."""
        self._start_next()
        while self._running is not None and self._running[1].poll() is not None:
            checkpoint, process = self._running
            self._leave(process)
            if self.result_of(checkpoint) is None and self._is_in_use(checkpoint):
                self._waiting.appendleft(checkpoint)
                self._start_next()
                continue
            self._start_next()
            yield self._result(checkpoint, process.returncode)
        found, self._without_process = self._without_process, []
        yield from found

    def wait_for_all(self) -> Iterator[EvaluationLogRow]:
        """Wait for all submitted evaluations and yield their results.

        Also wait for a process that uses the run folder of a submitted evaluation.
        """
        while self._running is not None or self._waiting:
            if self._running is not None:
                self._running[1].wait()
            else:
                time.sleep(_LOCK_POLL_S)
            yield from self.finished()
        yield from self.finished()

    def terminate(self) -> None:
        """Ask the running evaluation to stop, without waiting for it."""
        self._waiting.clear()
        if self._running is not None:
            self._running[1].terminate()

    def stop(self) -> None:
        """Stop the running evaluation; a resumed training continues it from its episodes."""
        self.terminate()
        if self._running is not None:
            process = self._running[1]
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._leave(process)

    def _leave(self, process: subprocess.Popen[bytes]) -> None:
        """Close the pipe of an evaluation that has ended."""
        if process.stdin is not None:
            process.stdin.close()
        self._running = None

    def _start_next(self) -> None:
        """Start the next evaluation; a failed start is logged and does not stop the training.

        An evaluation whose run folder is in use, such as by `proctor eval --resume`, waits for it.
        """
        while self._running is None and self._waiting and not self._is_in_use(self._waiting[0]):
            checkpoint = self._waiting.popleft()
            found = self.result_of(checkpoint)
            if found is not None:  # the other process has completed it
                self._without_process.append(found)
                continue
            try:
                self._running = checkpoint, self._started(checkpoint)
            except OSError as error:
                problem = f"the evaluation could not be started: {error.strerror or error}"
                row = EvaluationLogRow(int(checkpoint.name), problem=problem)
                self._without_process.append(row)

    def _is_in_use(self, checkpoint: Path) -> bool:
        """Return whether a process uses the run folder of the checkpoint's evaluation."""
        return is_locked(self._folder / checkpoint.name)

    def _started(self, checkpoint: Path) -> subprocess.Popen[bytes]:
        self._folder.mkdir(exist_ok=True)
        with self._log(checkpoint).open("ab") as log:
            return subprocess.Popen(  # noqa: S603  our own command, with the user's own flags
                [*self._command, *self.eval_flags(checkpoint)],
                stdin=subprocess.PIPE,  # its end tells the process that the training has ended
                stdout=log,
                stderr=log,
            )

    def _log(self, checkpoint: Path) -> Path:
        return self._folder / f"{checkpoint.name}.log"

    def eval_flags(self, checkpoint: Path) -> list[str]:
        """Return the flags of `proctor eval` for a checkpoint."""
        output, config = self._folder / checkpoint.name, self._config
        flags: dict[str, Any] = {"policy.path": checkpoint / self._weights, "seed": self._seed()}
        settings = without_keys(config, config.as_dict())  # other users can see flags
        for section in ("env", "eval", "video"):
            flags |= {f"{section}.{name}": value for name, value in settings[section].items()}
        begun = (output / "run.json").is_file()
        if begun:  # which has all other settings
            flags = permitting(flags)
        flags["output_dir"] = output
        words = [f"--{name}={_text(value)}" for name, value in flags.items() if value is not None]
        return [*(["--resume"] if begun else []), *words]

    def _seed(self) -> int:
        """Return the seed of all evaluations: that of an earlier one, or one that eval never uses.

        A training selects its best checkpoint by these episodes, so a later evaluation by default
        runs others.
        """
        record: RunRecord | None = None
        for file in sorted(self._folder.glob("*/run.json")):
            with contextlib.suppress(RunFolderError):  # its own evaluation names the damage
                record = RunFolder(file.parent).read()
            if record is not None and isinstance(seed := record.resolved.get("seed"), int):
                return seed
        return (self._config.seed + SELECTION_SEEDS) % MOST_SEED

    def _result(self, checkpoint: Path, code: int) -> EvaluationLogRow:
        found = self.result_of(checkpoint)
        if found is not None:
            return found
        try:
            text = read_regular_file(self._log(checkpoint), MAX_JOURNAL_BYTES).decode(
                errors="replace"
            )
        except OSError as error:
            text = f"the log cannot be read: {error.strerror}"
        reason = summarize_traceback(text)
        problem = f"exit code {code}, {reason} (log: {self._log(checkpoint)})"
        return EvaluationLogRow(int(checkpoint.name), problem=problem)

    def _overall(self, checkpoint: Path) -> _Overall | None:
        """Return the overall results of a checkpoint; None if its evaluation is not complete."""
        try:
            raw = read_regular_file(self._folder / checkpoint.name / "eval_info.json")
            info = msgspec.json.decode(raw, type=_Info)
        except (OSError, msgspec.MsgspecError):
            return None
        ours = info.proctor
        return info.overall if ours.complete or ours.stopped is not None else None


def _text(value: Any) -> str:
    """Return a flag's value as text."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, list | dict) else str(value)
