"""Check that the output files of a command replace no file of a run or a training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from proctor.errors import UsageError
from proctor.runs.folder import EVAL_INFO_FILE, RUN_FILE, WANDB_ID_FILE
from proctor.runs.journal import JOURNAL_FILE, STAGING_FOLDER, VIDEO_FOLDER
from proctor.runs.labels import LABELS_FILE
from proctor.runs.path_checks import WANDB_FOLDER
from proctor.runs.sessions import SESSIONS_FILE
from proctor.runs.states import STATES_FILE
from proctor.runs.training import CHECKPOINTS, DIVERGENCE_FILE, LOG_FILE, RECORD_FILE, REPLAY
from proctor.system.locks import CLAIM_FILE, LOCK_FILE
from proctor.trained_starts import TRAINED_STARTS_FILE

_OF_BOTH = {LOCK_FILE, CLAIM_FILE, WANDB_ID_FILE, WANDB_FOLDER}
_OF_RUN = _OF_BOTH | {
    RUN_FILE,
    JOURNAL_FILE,
    STATES_FILE,
    SESSIONS_FILE,
    EVAL_INFO_FILE,
    LABELS_FILE,
    VIDEO_FOLDER,
    STAGING_FOLDER,
    "recorded.jsonl",
    TRAINED_STARTS_FILE,
    "claim.json",
    "workers.log",
}
_OF_TRAINING = _OF_BOTH | {RECORD_FILE, LOG_FILE, DIVERGENCE_FILE, CHECKPOINTS, REPLAY, "logs"}
"""Files and folders that hold data. Pages, tables and cards are made from it and may be
replaced."""


def check_outputs(outputs: Mapping[str, Path], inputs: Mapping[str, Path] | None = None) -> None:
    """Refuse output files that replace data of a run or a training, or one another.

    Args:
        outputs: the files that a command writes, by flag.
        inputs: files that the command reads.
    """
    taken = {_real(path): name for name, path in (inputs or {}).items()}
    for name, path in outputs.items():
        _refuse_own_file(name, path)
        first = taken.setdefault(_real(path), name)
        if first != name:
            raise UsageError(
                f"{first} and {name} name the same file, {path}; choose another file for {name}",
                code="path.duplicate",
            )


def _refuse_own_file(name: str, path: Path) -> None:
    at_name = _real(path.parent) / path.name
    for place in dict.fromkeys([at_name, _real(path)]):  # a link, and the file that it names
        for folder in place.parents:
            own = place.relative_to(folder).parts[0]
            for record, kind, files in (
                (RUN_FILE, "run", _OF_RUN),
                (RECORD_FILE, "training", _OF_TRAINING),
            ):
                if own in files and (folder / record).is_file():
                    raise UsageError(
                        f"{name}: {path} would replace data of the {kind} in {folder}; choose "
                        "another file",
                        code="path.own-file",
                    )


def _real(path: Path) -> Path:
    """Return ``path`` without links; unlike ``Path.resolve``, links in a circle raise nothing."""
    return Path(os.path.realpath(path))
