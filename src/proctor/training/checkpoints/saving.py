"""The checkpoints of a run: folders written atomically; ``last`` links to the newest.

checkpoints/000200/pretrained_model/      the policy (policies.lerobot.saving), train_config.json
checkpoints/000200/training_state/        state for a resumed run (state.py)
checkpoints/000200/pretrained_model_ema/  the policy with EMA weights, with --ema.enable
checkpoints/last -> 000200               after a divergence the last good one
checkpoints/best -> 000100                the checkpoint with the highest score, if any
checkpoints/000150/interim                written by time or on a signal: removed with the next one
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from proctor.errors import RunFolderError, UsageError
from proctor.system.files import sync, sync_folder

LAST, BEST = "last", "best"
PRETRAINED, AVERAGED, STATE = "pretrained_model", "pretrained_model_ema", "training_state"
_NAME = re.compile("[0-9]{6,12}")
_DRAFT, _OLD = ".part", ".old"
_INTERIM = "interim"
"""Empty file in a checkpoint that is removed as soon as there is a newer one."""


@dataclass(frozen=True)
class Checkpoints:
    """The folder with the checkpoints of a run."""

    folder: Path
    digits: int = 6
    """Digits of the step in a folder's name."""

    def path(self, step: int) -> Path:
        """Return the folder of a step's checkpoint."""
        return self.folder / f"{step:0{self.digits}d}"

    def all(self) -> list[Path]:
        """List the existing checkpoints, the oldest first."""
        if not self.folder.is_dir():
            return []
        found = [p for p in self.folder.iterdir() if _NAME.fullmatch(p.name) and p.is_dir()]
        return sorted(found, key=lambda path: int(path.name))

    def newest(self) -> Path | None:
        """Return the checkpoint to resume from: ``last``, or else the newest."""
        last = self.folder / LAST
        if last.is_dir():
            return last.resolve()
        found = self.all()
        return found[-1] if found else None

    def newest_until(self, step: int) -> Path | None:
        """Return the newest checkpoint of at most ``step``, or else the oldest one."""
        found = self.all()
        earlier = [path for path in found if int(path.name) <= step] or found[:1]
        return earlier[-1] if earlier else None

    def save(self, step: int, write: Callable[[Path], None], *, interim: bool = False) -> Path:
        """Let ``write`` fill the folder of a step, which appears only when it is on the disk.

        An ``interim`` checkpoint, written by time or on a signal, is kept until there is a newer
        one.
        """
        path = self.path(step)
        draft = self.folder / f".{path.name}{_DRAFT}"
        try:
            _remove(draft)
            draft.mkdir(parents=True)
            write(draft)
            if interim:
                (draft / _INTERIM).touch()
            _sync_all(draft)
            if path.exists():  # a run resumed from an earlier checkpoint
                path.rename(self.folder / f".{path.name}{_OLD}")
            draft.rename(path)
            self._name_last(path)
            _remove(self.folder / f".{path.name}{_OLD}")
        except (OSError, SafetensorError) as error:
            shutil.rmtree(draft, ignore_errors=True)
            with contextlib.suppress(OSError):  # restore the old checkpoint
                if not path.exists():
                    (self.folder / f".{path.name}{_OLD}").rename(path)
            raise RunFolderError(self._write_error(step, error), code="disk.write-failed") from None
        return path

    def name(self, link: str, path: Path) -> None:
        """Point ``link`` (last, best) to a checkpoint, atomically."""
        fresh = self.folder / f".{link}{_DRAFT}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(path.name)
        os.replace(fresh, self.folder / link)  # noqa: PTH105  replaces the link itself
        sync_folder(self.folder)

    def _name_last(self, path: Path) -> None:
        """Point ``last`` to a new checkpoint; on a full disk, never leave it at an older one.

        Raises:
            OSError: the disk failed; ``newest`` is the new checkpoint, unless nothing can change.
        """
        try:
            self.name(LAST, path)
        except OSError:
            (self.folder / LAST).unlink(missing_ok=True)  # its room suffices for a new one
            with contextlib.suppress(OSError):  # without it the newest folder counts
                (self.folder / LAST).symlink_to(path.name)
            raise

    def unname(self, link: str) -> None:
        """Remove a link whose checkpoint no longer exists."""
        if not (self.folder / link).is_dir():
            (self.folder / link).unlink(missing_ok=True)

    def _write_error(self, step: int, error: Exception) -> str:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        newest = self.newest()
        kept = "there is no earlier checkpoint" if newest is None else f"{newest} is complete"
        return (
            f"cannot write the checkpoint of step {step}: {reason}; {kept}: check the disk, then "
            "run again with --resume"
        )

    def is_interim(self, path: Path) -> bool:
        """Return whether a checkpoint is removed when there is a newer one."""
        return (path / _INTERIM).exists()

    def remove_superseded(self) -> None:
        """Remove the interim checkpoints that are not the newest checkpoint."""
        for path in self.all()[:-1]:
            if self.is_interim(path):
                self._remove_checkpoint(path)

    def keep(self, last: int, others: frozenset[int] = frozenset()) -> None:
        """Remove all checkpoints except the ``last`` newest and those of the steps ``others``."""
        for path in self.all()[:-last]:
            if int(path.name) not in others:
                self._remove_checkpoint(path)

    def _remove_checkpoint(self, path: Path) -> None:
        _remove(path.rename(self.folder / f".{path.name}{_OLD}"))

    def tidy(self) -> None:
        """Remove partial checkpoints of a killed process."""
        for path in self.folder.glob(".*"):
            if path.suffix in (_DRAFT, _OLD):
                _remove(path)


def checkpoint_of(config_file: Path) -> Path:
    """Return the checkpoint of a ``pretrained_model/train_config.json``."""
    folder = config_file.absolute().parent.parent.resolve()
    if config_file.absolute().parent.name != PRETRAINED or not (folder / STATE).is_dir():
        raise UsageError(
            f"--resume: {config_file} is not the train_config.json of a checkpoint; give that in "
            f"RUN/checkpoints/last/{PRETRAINED}, next to {STATE}",
            code="checkpoint.not-found",
        )
    return folder


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _sync_all(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            with (Path(root) / name).open("rb") as file:
                sync(file.fileno())
        sync_folder(Path(root))
