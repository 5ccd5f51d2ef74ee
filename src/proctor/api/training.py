"""``proctor.train``: what ``proctor train`` does, from Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.api.arguments import (
    check_names,
    env_settings,
    flat_settings,
    plain,
    policy_settings,
    warn_caller,
)
from proctor.benchmarks.base import BenchmarkConfig
from proctor.callbacks.progress_updates import ProgressArgument, ProgressDisplay
from proctor.commands.training.train import settings_from
from proctor.config.builder import build
from proctor.config.lerobot.training import drop_lerobot_settings
from proctor.config.training import TrainConfig
from proctor.errors import ProctorNote, ProctorWarning, UsageError
from proctor.evaluation.recording import RecordingResult
from proctor.report.training.run import Training, load_training
from proctor.system.hub.repositories import HUB_ID
from proctor.system.streams import open_closed_streams

if TYPE_CHECKING:
    from proctor.training.session import SessionObserver

_OWN = ("dataset", "policy", "env", "steps", "batch_size", "output_dir", "progress")


def train(
    dataset: str | Path | Mapping[str, Any] | RecordingResult | None = None,
    policy: str | Path | Mapping[str, Any] | None = None,
    *,
    env: str | Mapping[str, Any] | BenchmarkConfig | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    output_dir: str | Path | None = None,
    progress: ProgressArgument = None,
    **settings: Any,
) -> Training:
    """Train a policy on a dataset, as ``proctor train`` does, and return the training.

    Settings are those of the command line, nested as in a config file::

        train("demos/reach", "act", steps=20_000, batch_size=32, output_dir="outputs/act",
              optimizer={"lr": 1e-4}, save_freq=5000)

    Ctrl-C writes a checkpoint and raises ``KeyboardInterrupt``. The training is continued by
    ``train(output_dir="outputs/act", resume=True)`` and ends with the same bits.

    Args:
        dataset: a folder, a Hub id, what ``record`` returned, or settings ({"repo_id": ...}).
        policy: a type ("act"), a checkpoint's folder or Hub id, or settings ({"type": ...}).
        env: the benchmark that evaluates checkpoints, with ``env_eval_freq``.
        steps: optimiser steps (``--steps``).
        batch_size: samples per batch (``--batch_size``).
        output_dir: folder of the training (``--output_dir``).
        progress: None shows nothing, True shows a line on the terminal or a bar in a notebook. A
            function receives a ``ProgressUpdate`` a few times a second and at the end; an exception
            of it ends the training after a checkpoint.
        settings: all other flags of ``proctor train``.

    Raises:
        ProctorError: in one line, with what to change.
        KeyboardInterrupt: after the checkpoint is written.
    """
    open_closed_streams()
    check_names("train", TrainConfig, settings, _OWN)
    display = ProgressDisplay(progress)
    given, handed = policy_settings(policy)
    if handed is not None:
        raise UsageError(
            f"policy={handed!r:.60}: expected a type, a checkpoint's folder or settings; an object "
            "cannot be trained",
            code="flag.invalid-value",
        )
    own = {"steps": steps, "batch_size": batch_size, "output_dir": output_dir}
    given |= env_settings(env) | _dataset_settings(dataset) | plain(settings)
    given |= {name: plain(value) for name, value in own.items() if value is not None}
    merged, resumed = settings_from(flat_settings(TrainConfig, given))
    config = build(TrainConfig, drop_lerobot_settings(merged))
    from proctor.training.session import run_session  # imports torch

    result = run_session(config, merged, resumed, _observer(display))
    if result.interrupt is not None:
        raise result.interrupt
    return load_training(result.folder)


def _dataset_settings(dataset: Any) -> dict[str, Any]:
    if dataset is None:
        return {}
    if isinstance(dataset, Mapping):
        return {"dataset": plain(dataset)}
    if isinstance(dataset, RecordingResult):
        return {"dataset": {"root": str(dataset.root)}}
    if isinstance(dataset, str | Path):
        is_id = isinstance(dataset, str) and HUB_ID.fullmatch(dataset)
        if is_id and not Path(dataset).exists():
            return {"dataset": {"repo_id": dataset}}
        return {"dataset": {"root": str(dataset)}}
    raise UsageError(
        f"dataset={dataset!r:.60}: expected a folder, a Hub id, a recording or settings",
        code="flag.invalid-value",
    )


def _observer(display: ProgressDisplay) -> SessionObserver:
    """Return the observer that issues notes as Python warnings."""
    from proctor.training.session import SessionObserver
    from proctor.training.setup import TrainingSetup

    class WarningSession(SessionObserver):
        """Issues what a session tells its user as Python warnings."""

        def on_prepared(self, setup: TrainingSetup) -> None:
            for note in () if display.on_terminal else setup.parts.notes:  # else it is printed
                self.on_note(note)

        def on_note(self, text: str) -> None:
            warn_caller(text, ProctorNote)

        def on_upload(self, text: str) -> None:
            if text.startswith("warning: "):
                warn_caller(text.removeprefix("warning: "), ProctorWarning)

    observer = WarningSession(display.console(), display.sender)
    observer.announces_stops = display.on_terminal
    return observer
