"""One training session, from config to checkpoints. An observer prints; this module does not."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from rich.console import Console

from proctor.benchmarks.perturbations.training_wordings import wordings_digest
from proctor.callbacks import wandb
from proctor.callbacks.progress_updates import UpdateSender
from proctor.config.training import TrainConfig
from proctor.policies.lerobot.checkpoint.pretrained import PretrainedConfig, pin
from proctor.runs.training import CHECKPOINTS, EVALUATIONS
from proctor.system.files import require_utf8
from proctor.training.checkpoints.folder import SessionData, TrainingFolder
from proctor.training.checkpoints.publishing import (
    Publication,
    check_publication,
    parse_publication,
    publish,
)
from proctor.training.checkpoints.saving import STATE
from proctor.training.checkpoints.state import read_step
from proctor.training.distributed import process_group
from proctor.training.loop import Trainer
from proctor.training.metrics.monitor import TrainingMonitor
from proctor.training.metrics.stopping import StopRequests
from proctor.training.setup import TrainingSetup, prepare


class SessionObserver:
    """Receives the events of a training session. Every method does nothing by default."""

    def __init__(self, console: Console, sender: UpdateSender | None = None) -> None:
        """Let the session show its progress on ``console``, and pass it to ``sender``."""
        self.console = console
        self.sender = sender
        self.announces_stops = True
        """Whether a stop signal is answered by a line on the terminal."""

    def on_prepared(self, setup: TrainingSetup) -> None:
        """The training is prepared, and nothing is written yet."""

    def on_note(self, text: str) -> None:
        """Receive a note about the session."""

    def on_interrupted_setup(self, folder: TrainingFolder, resumed: Path | None) -> None:
        """A stop signal came before the training began."""

    def on_stopped(self, folder: TrainingFolder, trainer: Trainer) -> None:
        """A stop signal ended the training; its checkpoint is written."""

    def on_end(self, folder: TrainingFolder, config: TrainConfig, page: Path) -> None:
        """All steps are done, and the report is written."""

    def on_upload(self, text: str) -> None:
        """Receive a line about the upload of the policy."""


@dataclass(frozen=True)
class SessionResult:
    """The end of a training session."""

    folder: Path
    interrupt: KeyboardInterrupt | None = None
    """The stop signal that ended it; None: all steps are done."""


def run_session(
    config: TrainConfig, given: dict[str, Any], resumed: Path | None, observer: SessionObserver
) -> SessionResult:
    """Train, and write log, checkpoints and report.

    Args:
        config: the settings.
        given: the settings as given, which ``train.json`` records.
        resumed: the checkpoint to continue from.
        observer: receives the events of the session.

    Raises:
        ProctorError: in one line, with what to change.
        Exception: what the function that receives progress raised, after a checkpoint.
    """
    config, given = _with_pinned_checkpoint(config, given)
    folder = TrainingFolder(config.output_dir or _default_folder(config))
    require_utf8(folder.path)
    publication = parse_publication(given)
    if config.wandb.active:
        wandb.require_wandb(config.wandb)
    with StopRequests() as stop, process_group() as distributed:
        stop.is_announced = distributed.is_main_process and observer.announces_stops
        try:
            with distributed.local_main_first():
                setup = prepare(config, resumed, distributed)
                if publication is not None and distributed.is_main_process:
                    check_publication(publication, setup.parts.base)
        except KeyboardInterrupt as interrupt:
            if distributed.is_main_process:
                observer.on_interrupted_setup(folder, resumed)
            return SessionResult(folder.path, interrupt)
        session = _Session(folder, setup, resumed, stop)
        try:
            if distributed.is_main_process:
                observer.on_prepared(setup)
                interrupted = session.train_and_write(given, observer)
                if interrupted is None:
                    _upload(folder, publication, observer)
            else:
                interrupted = session.train_along()
            return SessionResult(folder.path, interrupted)
        finally:
            setup.close()


def _with_pinned_checkpoint(
    config: TrainConfig, given: dict[str, Any]
) -> tuple[TrainConfig, dict[str, Any]]:
    """Return config and given settings with the step that ``checkpoints/last`` means now.

    A training that is begun anew or compared later must start from the same weights.
    """
    if not isinstance(config.policy, PretrainedConfig):
        return config, given
    same = copy.copy(config)  # keeps its notes
    same.policy = pin(config.policy)
    if "policy.path" in given:
        return same, given | {"policy.path": same.policy.path}
    return same, given | {"policy": {**given["policy"], "path": same.policy.path}}


def _default_folder(config: TrainConfig) -> Path:
    env = "" if config.env is None else f"{config.env.type}_"
    job = config.job_name or f"{env}{getattr(config.policy, 'type', 'policy')}"
    return Path(time.strftime(f"outputs/train/%Y-%m-%d/%H-%M-%S_{job}"))


def _upload(
    folder: TrainingFolder, publication: Publication | None, observer: SessionObserver
) -> None:
    """Upload the policy if requested; a failed upload does not fail the training."""
    if publication is not None:
        for line in publish(folder, publication):
            observer.on_upload(line)


@dataclass(frozen=True)
class _Session:
    """A prepared session of one process."""

    folder: TrainingFolder
    setup: TrainingSetup
    resumed: Path | None
    stop: StopRequests

    def train_along(self) -> KeyboardInterrupt | None:
        """Train in a process other than the main one, which shows and writes."""
        try:
            trainer = Trainer.begin(self.setup, self.resumed)
            trainer.fill_caches(lambda *_: None)
            stopped = trainer.run(self.folder.checkpoints(), None, self.stop)
            self.setup.distributed.barrier()  # torchrun ends the main process if this ends first
        except KeyboardInterrupt as interrupt:
            return interrupt
        return None if stopped is None else KeyboardInterrupt(stopped)

    def train_and_write(
        self, given: dict[str, Any], observer: SessionObserver
    ) -> KeyboardInterrupt | None:
        """Train in the main process; return the stop signal that ended the training."""
        folder, setup = self.folder, self.setup
        config, frames = setup.config, len(setup.order.frames)
        if config.resume:
            folder.check_scores_comparable(config, self.resumed)
        known = folder.recorded_frames(self.resumed) if config.resume else None
        step = None if self.resumed is None else read_step(self.resumed / STATE)
        notes: list[str] = []
        changed = ""
        if self.resumed is not None:
            notes = folder.sample_changes(config, self.resumed)
            changed = folder.setting_changes(config, self.resumed)
        wordings = wordings_digest() if config.dataset.paraphrase_tasks else None
        data = SessionData(frames, setup.datasets, step, wordings, changed, self.resumed)
        with folder.in_use(config, given, data):
            for note in notes:
                observer.on_note(note)
            if known not in (None, frames) and setup.datasets[-1].first_step != step:
                observer.on_note(
                    f"{frames:,} frames instead of {known:,}: what is taken of the dataset was "
                    "changed since; they come in another order, and statistics stay the "
                    "checkpoint's"
                )
            trainer = Trainer.begin(setup, self.resumed)
            self._set_aside_later_results(trainer.trainer_state.step, observer)
            monitor = TrainingMonitor(folder, trainer, self.stop, observer.console, observer.sender)
            ended = self._run(trainer, monitor, observer)
        if monitor.failure is not None:
            raise monitor.failure
        if isinstance(ended, KeyboardInterrupt):
            return ended
        observer.on_end(folder, config, ended)
        return None

    def _run(
        self, trainer: Trainer, monitor: TrainingMonitor, observer: SessionObserver
    ) -> Path | KeyboardInterrupt:
        """Run the steps, then close the monitor; return the report, or what ended the steps."""
        folder, stop = self.folder, self.stop
        stopped: Signals | None = None
        try:
            trainer.fill_caches(monitor.on_frames_decoded)
            monitor.resume_evaluations()
            stopped = trainer.run(folder.checkpoints(self.setup.config.steps), monitor, stop)
            if stopped is None:
                stop.raise_if_requested()
                monitor.wait_for_evaluations()
            else:  # before W&B, which may take a minute
                monitor.close_line()
                observer.on_stopped(folder, trainer)
            monitor.close(failed=stopped is not None)
            page = monitor.write_report()
            self.setup.distributed.barrier()
        except KeyboardInterrupt as interrupt:
            if stopped is None:
                monitor.close_line()
                observer.on_stopped(folder, trainer)
            if stop.repeated:
                monitor.close_at_once()
            else:
                monitor.close(failed=True)
                monitor.write_report()
            return interrupt
        except Exception:
            monitor.close(failed=True)
            raise
        return page if stopped is None else KeyboardInterrupt(stopped)

    def _set_aside_later_results(self, step: int, observer: SessionObserver) -> None:
        """Rename checkpoints and evaluations of steps after the resumed checkpoint; keep their log.

        There are such checkpoints if the training goes on from an earlier one, or has diverged.
        """
        folder = self.folder
        log = folder.drop_log_after(step)
        names = folder.rename_results_after(step, [CHECKPOINTS, EVALUATIONS])
        if log is not None:
            names.append(log.name)
        if names:
            observer.on_note(f"of steps after {step:,}, set aside: {', '.join(names)}")
