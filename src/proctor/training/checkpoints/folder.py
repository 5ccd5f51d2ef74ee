"""The folder of a training: settings, log and checkpoints.

train.json     given and resolved settings, versions, machine
log.jsonl      one line for each set of metrics, validation loss and evaluation
divergence.jsonl   the last steps of a training that diverged
checkpoints/   see checkpoints.py
eval/          see checkpoint_evaluation.py
"""

from __future__ import annotations

import itertools
import json
import math
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from proctor.config.online_training import OnlineTrainConfig
from proctor.config.training import TrainConfig
from proctor.errors import RunFolderError, UsageError, WriteFailed
from proctor.fingerprint import defining_fields, flatten, short_value, without_secrets
from proctor.runs.disk_errors import explaining_disk_errors
from proctor.runs.folder import WANDB_ID_FILE, is_unused, remove_if_unused, write_run_file
from proctor.runs.jsonl import read_jsonl
from proctor.runs.path_checks import WANDB_FOLDER
from proctor.runs.paths import RecordedPath, keep_typed, record_paths, settings_with_paths
from proctor.runs.training import (
    CHECKPOINTS,
    LOG_FILE,
    RECORD_FILE,
    REPLAY,
    EvaluationLogRow,
    SettingsChange,
    TrainingDataset,
    TrainingRecord,
    read_training,
    read_training_log,
)
from proctor.system.files import remove_unfinished
from proctor.system.links import refuse_links
from proctor.system.locks import acquire_lock
from proctor.system.platform.platform_info import (
    git_commit,
    installed_versions,
    torch_hardware,
    usable_cores,
)
from proctor.system.redaction import redact
from proctor.training.checkpoints.saving import BEST, LAST, Checkpoints
from proctor.training.checkpoints.trained_episodes import checkpoint_record
from proctor.training.metrics.metrics import Metrics

_AVERAGED = "ema.use_for_eval"
_HELD_OUT = (
    *(f"dataset.{name}" for name in ("eval_split", "episodes", "exclude_episodes")),
    "max_eval_samples",
    "seed",
)
_OF_ORDER = ("seed", "batch_size", "dataset.balance_tasks", "dataset.streaming")
"""Settings that define the order of samples, besides the frames and the number of processes."""
_OF_SAMPLES = ("dataset.paraphrase_tasks",)
"""Settings that change the samples themselves, and not their order."""
_OF_LEARNING = ("dataset", "optimizer", "scheduler", "ema", "peft", "batch_size", "seed")
"""Settings, or sections of settings, that change what a training learns."""
_OF_DATASETS = tuple(f"dataset.{name}" for name in ("repo_id", "root", "revision", "episodes"))
_LIBRARIES = ("torch", "numpy", "pyarrow", "av", "safetensors")


@dataclass(frozen=True)
class _Line:
    """The fields of a log line that are read back."""

    step: int
    kind: str
    loss: float | None = None


@dataclass(frozen=True)
class SessionData:
    """The training data of a session."""

    frames: int | None = None
    """Frames of the dataset; None for online learning, which collects its own."""
    datasets: tuple[TrainingDataset, ...] = ()
    """The training's datasets; the last one is that of this session (see ``same_dataset``)."""
    resumed_step: int | None = None
    """Step of the checkpoint that the session resumes from; None: it begins at step 0."""
    wordings: str | None = None
    """Digest of the training wordings; None without --dataset.paraphrase_tasks."""
    changed: str = ""
    """Settings that the session changed; empty if none."""
    resumed: Path | None = None
    """The checkpoint that the session resumes from."""


@dataclass(frozen=True)
class TrainingFolder:
    """The folder of a training, existing or new."""

    path: Path

    def checkpoints(self, steps: int = 0) -> Checkpoints:
        """Return its checkpoints; ``steps`` sets the number of digits in their names."""
        return Checkpoints(self.path / CHECKPOINTS, max(6, len(str(steps))))

    def given(
        self, but: Mapping[str, Any], *, from_checkpoint: bool, of: Path | None = None
    ) -> dict[str, Any] | None:
        """Return the given settings of the training, with its paths as they are now.

        None if Proctor has not written the folder.

        Args:
            but: settings that replace those of the training.
            from_checkpoint: a checkpoint has the policy, so the one to start from may be gone.
            of: a checkpoint whose settings are meant; None: those of the last session.
        """
        record = read_training(self.path) if of is None else checkpoint_record(of)
        if record is None:
            return None
        paths = _without_policy(record.paths) if from_checkpoint else record.paths
        return settings_with_paths(record.given, paths, self.path, but)

    def recorded_frames(self, resumed: Path | None) -> int | None:
        """Return the number of training frames of the resumed session; None if unknown."""
        record = self._resumed(resumed)
        return None if record is None else record.frames

    def _resumed(self, resumed: Path | None) -> TrainingRecord | None:
        """Return the record of the session that wrote ``resumed``; None: of the last session."""
        return read_training(self.path) if resumed is None else checkpoint_record(resumed)

    def sample_changes(self, config: TrainConfig, resumed: Path) -> list[str]:
        """Return notes on settings of ``config`` that change the samples of a resumed training."""
        record = checkpoint_record(resumed)
        if record is None:
            return []
        was, now = flatten(record.resolved), flatten(config.as_dict())
        others = _of_learning(config).keys() - {*_OF_ORDER, *_OF_SAMPLES}
        order, samples, rest = (
            _changed(was, {name: now[name] for name in names})
            for names in (_OF_ORDER, _OF_SAMPLES, sorted(others))
        )
        effects = [
            (order, "from here on, the samples come in another order than in an uninterrupted run"),
            (samples, "from here on, samples have other instructions"),
            (rest, "changed from here on"),
        ]
        return [f"{changed}: {effect}" for changed, effect in effects if changed]

    def check_scores_comparable(self, config: TrainConfig, resumed: Path | None) -> None:
        """Check that new checkpoints are scored like the old ones, so that best means something."""
        record = self._resumed(resumed)
        if record is None or self.checkpoints().newest() is None:
            return
        was = flatten(record.resolved) | {_AVERAGED: record.plays_averages}
        if config.evaluates_in_env and self.scores(by_success=True):
            now = flatten(redact(_episode_settings(config))) | {_AVERAGED: config.ema.is_evaluated}
            if changed := _changed(was, now):
                raise UsageError(
                    f"{self.path}: earlier checkpoints were evaluated with other settings "
                    f"({changed}), so scores cannot be compared; restore the settings, or use "
                    "proctor eval",
                    code="training.evaluation-changed",
                )
        if config.eval_steps:
            now = flatten(config.as_dict())
            if changed := _changed(was, {name: now[name] for name in _HELD_OUT if name in now}):
                raise UsageError(
                    f"{self.path}: {changed}; the validation episodes have changed, and some may "
                    "have been trained on; restore the settings, or add --eval_steps=0",
                    code="training.validation-changed",
                )

    def setting_changes(self, config: TrainConfig, resumed: Path) -> str:
        """Return what ``config`` changes of a resumed training's settings, as text."""
        record = checkpoint_record(resumed)
        return "" if record is None else _changed(flatten(record.resolved), _of_learning(config))

    @contextmanager
    def in_use(
        self,
        config: TrainConfig | OnlineTrainConfig,
        given: Mapping[str, Any],
        data: SessionData,
    ) -> Iterator[None]:
        """Lock the folder while the training runs, and write train.json.

        A training without a checkpoint is begun anew: its log gets another name.
        """
        made = not self.path.exists()
        if not made and not self.path.is_dir():
            raise RunFolderError(
                f"{self.path} is not a folder; choose another --output_dir",
                code="run.path-blocked",
            )
        if not config.resume and not made and not self._can_begin():
            raise RunFolderError(
                f"{self.path} exists already; add --resume to continue it, or choose another "
                "--output_dir",
                code="run.exists",
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            checkpoints = self.checkpoints().folder
            named = [checkpoints / name for name in (LAST, BEST)]
            refuse_links(self.path, allowed=named, skipped=[WANDB_FOLDER])
            lock = acquire_lock(self.path)
        except OSError as error:
            raise RunFolderError(
                f"cannot write {self.path}: {error.strerror}", code="disk.write-failed"
            ) from None
        try:
            with explaining_disk_errors(self._kept):
                remove_unfinished(self.path)
                if data.resumed_step is None:
                    self._set_aside_log()
                self._write(config, given, data)
                if (self.path / CHECKPOINTS).is_dir():
                    self.checkpoints().tidy()
                yield
        finally:
            if made:
                remove_if_unused(self.path)
            lock.release()

    def _can_begin(self) -> bool:
        """Return whether a training may begin in the existing folder, and lose nothing."""
        if is_unused(self.path):
            return True
        if (self.path / REPLAY).exists():  # transitions of an online training, not to be lost
            return False
        return read_training(self.path) is not None and self.checkpoints().newest() is None

    def _kept(self, mend: str) -> str:
        """Return the message after a disk error: what was kept, and how to continue."""
        if not (self.path / RECORD_FILE).exists():
            state = "nothing was started" if self.path.is_dir() else f"{self.path} is gone"
            return f"{state}: {mend}, then run again"
        newest = self.checkpoints().newest()
        kept = "there is no checkpoint yet" if newest is None else f"{newest} is complete"
        return f"{kept}: {mend}, then run again with --resume"

    def _write(
        self,
        config: TrainConfig | OnlineTrainConfig,
        given: Mapping[str, Any],
        data: SessionData,
    ) -> None:
        newest = None if data.resumed_step is None else read_training(self.path)
        earlier = newest if data.resumed is None else checkpoint_record(data.resumed)
        kept = {k: v for k, v in given.items() if k not in ("resume", "output_dir", "config_path")}
        if earlier is not None:  # changed settings also apply to later sessions
            changed = {k: v for k, v in kept.items() if not k.startswith("policy.")}
            kept = earlier.given | changed
        paths = record_paths(config, kept, self.path)
        if earlier is not None:
            before = (earlier.given, earlier.paths)
            kept, paths = keep_typed(kept, paths, before, self.path)
            of_policy = earlier.paths.keys() - _without_policy(earlier.paths).keys()
            paths = _without_policy(paths) | {name: earlier.paths[name] for name in of_policy}
        record = TrainingRecord(
            given=without_secrets(config, kept),
            resolved=without_secrets(config, config.as_dict()),
            sessions=[*(newest.sessions if newest else []), time.time()],
            versions=installed_versions(_LIBRARIES),
            machine={
                "platform": platform.platform(),
                "usable_cores": usable_cores(),
                "git_commit": git_commit(),
                **torch_hardware(),
            },
            frames=data.frames,
            datasets=[
                *data.datasets[:-1],
                *(replace(now, root=paths.get("dataset.root")) for now in data.datasets[-1:]),
            ],
            resumed_step=data.resumed_step,
            wordings=data.wordings,
            changes=_changes(earlier, data),
            paths=paths,
        )
        write_run_file(self.path / RECORD_FILE, json.dumps(asdict(record), indent=2))

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line to the log."""
        try:
            with (self.path / LOG_FILE).open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise WriteFailed(self.path / LOG_FILE, error) from error

    def _set_aside_log(self) -> None:
        """Give the log of a training without a checkpoint, and its W&B id, another name."""
        log = self.path / LOG_FILE
        if not log.exists():
            return
        try:
            for path in (log, self.path / WANDB_ID_FILE):
                if path.exists():
                    path.rename(_free(path))
        except OSError as error:
            raise WriteFailed(log, error) from error

    def drop_log_after(self, step: int) -> Path | None:
        """Drop the log lines after ``step``, which a resumed training runs again.

        Returns a copy of the whole log, if lines were dropped.
        """
        log, whole = self.path / LOG_FILE, None
        lines = list(read_jsonl(log, msgspec.json.Decoder(_Line).decode))
        kept = [line.text for line in lines if line.value is not None and line.value.step <= step]
        if len(kept) < len(lines):
            whole = _free(log)
            write_run_file(whole, b"".join(line.text for line in lines))
        if log.exists():
            write_run_file(log, b"".join(kept))
        return whole

    def rename_results_after(self, step: int, places: Sequence[str]) -> list[str]:
        """Rename checkpoints and evaluations after ``step`` in the folders ``places``.

        They belong to other weights than the resumed run will have; nothing is deleted.
        """
        names = []
        try:
            for place in places:
                for path in sorted((self.path / place).glob("[0-9]*")):
                    number = path.name.removesuffix(".log")
                    if number.isdecimal() and int(number) > step:
                        names.append(path.rename(_free(path)).relative_to(self.path))
        except OSError as error:
            raise RunFolderError(
                f"cannot write {self.path}: {error.strerror}", code="disk.write-failed"
            ) from None
        return [str(name) for name in names]

    def scores(self, *, by_success: bool) -> dict[int, float]:
        """Return the score of each step: of its evaluation, or its negative validation loss."""
        if by_success:
            played = [n for n in read_training_log(self.path) if isinstance(n, EvaluationLogRow)]
            return {row.step: row.score for row in played if row.score is not None}
        judged = [line for line in self._logged() if line.kind == "held_out"]
        return {n.step: -n.loss for n in judged if n.loss is not None}

    def _logged(self) -> list[_Line]:
        """Return the lines of the log; damaged lines are left out."""
        lines = read_jsonl(self.path / LOG_FILE, msgspec.json.Decoder(_Line).decode)
        return [line.value for line in lines if line.value is not None]


def _of_learning(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that change what a training learns, besides its datasets."""
    settings = flatten(defining_fields(config))
    names = [name for name in settings if name.split(".")[0] in _OF_LEARNING]
    return {name: settings[name] for name in names if name not in _OF_DATASETS}


def _changes(earlier: TrainingRecord | None, data: SessionData) -> list[SettingsChange]:
    """Return the changes that the steps up to the resumed one have seen, and the new one."""
    step = data.resumed_step
    if earlier is None or step is None:
        return []
    kept = [change for change in earlier.changes if change.step < step]
    return [*kept, SettingsChange(step, data.changed)] if data.changed else kept


def _without_policy(paths: Mapping[str, RecordedPath]) -> dict[str, RecordedPath]:
    return {name: path for name, path in paths.items() if not name.startswith("policy.")}


def _episode_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that define the evaluation episodes."""
    settings = config.as_dict()
    which = {
        section: {name: settings[section][name] for name in names if name in settings[section]}
        for section, names in (("env", ("task", "task_ids")), ("eval", ("n_episodes", "episodes")))
    }
    return {
        "env": defining_fields(config.env) | which["env"],
        "eval": defining_fields(config.eval) | which["eval"],
        "seed": config.seed,
    }


def _changed(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the settings in both maps that differ, as text."""
    changed = [name for name in now if name in was and was[name] != now[name]]
    return "; ".join(f"--{n} was {short_value(was[n])}, now {short_value(now[n])}" for n in changed)


def _free(path: Path) -> Path:
    """Return a free name next to ``path`` that no checkpoint can have."""
    names = (path.with_name(f"{path.name}.old{n}") for n in itertools.count(1))
    return next(name for name in names if not name.exists())


def metrics_row(metrics: Metrics) -> dict[str, Any]:
    """Return metrics as a log row; NaN and infinity become null, such as before an update."""
    row = {"kind": "train", **asdict(metrics)}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
