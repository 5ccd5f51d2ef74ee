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
from proctor.errors import what_happened
from proctor.machine.files import read_plain
from proctor.training.checkpoints import AVERAGED, PRETRAINED

COMMAND = (sys.executable, "-m", "proctor.cli", "eval")
_STOP_S = 10.0


@dataclass(frozen=True)
class Examined:
    """What came of one checkpoint's evaluation; ``problem`` says why there is no rate."""

    step: int
    pc_success: float | None = None
    interval: tuple[float, float] | None = None
    episodes: int = 0
    problem: str | None = None
    avg_sum_reward: float | None = None
    eval_s: float | None = None

    def __str__(self) -> str:
        if self.problem is not None:
            return f"step {self.step:,}: its evaluation ended without a rate: {self.problem}"
        ends = "" if self.interval is None else " [{:.1f}, {:.1f}]".format(*self.interval)
        rate = "n/a" if self.pc_success is None else f"{self.pc_success:.1f}%"
        return f"step {self.step:,}: success {rate}{ends} n={self.episodes}"


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


class Examiner:
    """Plays the checkpoints that it is handed, one after the other."""

    def __init__(
        self, config: TrainConfig, folder: Path, command: tuple[str, ...] = COMMAND
    ) -> None:
        self._config, self._folder, self._command = config, folder, command
        self._waiting: deque[Path] = deque()
        self._running: tuple[Path, subprocess.Popen[bytes]] | None = None

    @property
    def pending(self) -> frozenset[int]:
        """The steps whose checkpoints must stay until they are played."""
        running = [self._running[0]] if self._running is not None else []
        return frozenset(int(path.name) for path in [*self._waiting, *running])

    def ask(self, checkpoint: Path) -> None:
        """Play a checkpoint as soon as those before it are done, if it was not already."""
        if self._overall(checkpoint) is None:
            self._waiting.append(checkpoint)
            self._start_next()

    def done(self) -> Iterator[Examined]:
        """Yield what has come of evaluations since the last call, without waiting."""
        while self._running is not None and self._running[1].poll() is not None:
            checkpoint, process = self._running
            self._running = None
            self._start_next()
            yield self._result(checkpoint, process.returncode)

    def rest(self) -> Iterator[Examined]:
        """Wait for all that was asked for, and yield what comes of it."""
        while self._running is not None:
            self._running[1].wait()
            yield from self.done()

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
        if self._running is not None or not self._waiting:
            return
        checkpoint = self._waiting.popleft()
        self._folder.mkdir(exist_ok=True)
        with self._log(checkpoint).open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  our own command, with the user's own flags
                [*self._command, *self.words(checkpoint)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._running = checkpoint, process

    def _log(self, checkpoint: Path) -> Path:
        return self._folder / f"{checkpoint.name}.log"

    def words(self, checkpoint: Path) -> list[str]:
        """Return the flags of the evaluation of a checkpoint."""
        output = self._folder / checkpoint.name
        if (output / "run.json").is_file():
            return ["--resume", f"--output_dir={output}"]
        config = self._config
        averaged = config.ema.enable and config.ema.use_for_eval
        flags: dict[str, Any] = {
            "policy.path": checkpoint / (AVERAGED if averaged else PRETRAINED),
            "output_dir": output,
            "seed": config.seed,
        }
        told = config.as_dict()
        for section in ("env", "eval", "video"):
            flags |= {f"{section}.{name}": value for name, value in told[section].items()}
        return [f"--{name}={_text(value)}" for name, value in flags.items() if value is not None]

    def _result(self, checkpoint: Path, code: int) -> Examined:
        step, overall = int(checkpoint.name), self._overall(checkpoint)
        if overall is None:
            said = what_happened(self._log(checkpoint).read_text(errors="replace"))
            problem = f"exit code {code}, {said} (all of it: {self._log(checkpoint)})"
            return Examined(step, problem=problem)
        return Examined(
            step=step,
            pc_success=overall.pc_success,
            interval=overall.pc_success_interval95,
            episodes=overall.n_episodes,
            avg_sum_reward=overall.avg_sum_reward,
            eval_s=overall.eval_s,
        )

    def _overall(self, checkpoint: Path) -> _Overall | None:
        """Return what all episodes of a checkpoint gave; None where some are still to be played."""
        try:
            raw = read_plain(self._folder / checkpoint.name / "eval_info.json")
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
