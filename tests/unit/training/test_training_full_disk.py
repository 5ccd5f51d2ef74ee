"""Training on a full disk: one line says what was kept, and the training can be resumed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from tests.refusals import refuses

from .builders import RUN, SMALL_ACT, files_of, words

torch = pytest.importorskip("torch")

from torch.utils.data import dataloader  # noqa: E402

from proctor.cli import main  # noqa: E402
from proctor.errors import RunFolderError, TrainingError  # noqa: E402
from proctor.system import files  # noqa: E402
from proctor.training.checkpoints.saving import Checkpoints  # noqa: E402
from proctor.training.data import loading as data  # noqa: E402
from proctor.training.data.sampler import BatchOrder  # noqa: E402

FEW = RUN | {"steps": 2, "save_freq": 1, "log_freq": 1}


def refuse_files(patched: pytest.MonkeyPatch, name: str) -> None:
    """Make writes of files of this name fail."""

    def full(fd: int) -> None:
        if name in Path(f"/proc/self/fd/{fd}").readlink().name:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    patched.setattr(files, "sync", full)


def test_a_page_that_does_not_fit_costs_no_checkpoint(numbers, tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    refuse_files(monkeypatch, "report.html")
    assert main(["train", *words(numbers, run, SMALL_ACT, FEW)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"proctor: error: cannot write {run / 'report.html'}: Disk quota exceeded; "
        f"{run / 'checkpoints/000001'} is complete: make room, then run again with --resume"
    )
    monkeypatch.undo()
    assert main(["train", "--resume", f"--output_dir={run}"]) == 0
    assert main(["train", *words(numbers, tmp_path / "whole", SMALL_ACT, FEW)]) == 0
    whole = files_of(tmp_path / "whole/checkpoints/000002")
    assert files_of(run / "checkpoints/000002") == whole


def test_a_training_that_could_not_begin_is_not_in_the_way(numbers, tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    refuse_files(monkeypatch, "train.json")
    command = ["train", *words(numbers, run, SMALL_ACT, FEW | {"steps": 1})]
    assert main(command) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "train.json: Disk quota exceeded" in said
    assert not run.exists()
    monkeypatch.undo()
    run.mkdir()
    (run / ".lock").touch()  # as a kill would leave it
    assert main(command) == 0


def test_a_checkpoint_that_cannot_take_the_place_of_another_leaves_it(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(20, lambda folder: (folder / "note").write_text("old"))
    renamed = Path.rename

    def full(self, target):
        if self.name == ".000020.part":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return renamed(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with refuses(RunFolderError, "disk.write-failed") as refused:
        checkpoints.save(20, lambda folder: (folder / "note").write_text("new"))
    assert f"{tmp_path}/000020" in str(refused.value)
    assert "--resume" in str(refused.value)
    checkpoints.tidy()
    assert (tmp_path / "000020/note").read_text() == "old"


class Frames:
    """A dataset of actions."""

    def batch(self, positions, keys):
        return {key: np.zeros((len(positions), 2), np.float32) for key in keys} | {"task": [""]}


class Deaf:
    """An instruction encoder of a policy without language."""

    needs = ()

    def __call__(self, words, seen):
        return {}


def test_a_batch_that_cannot_be_handed_over_is_one_line(monkeypatch):
    """Torch shares a batch in a thread; if that failed there, the training would wait forever."""
    full = RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    def share(self):
        raise full

    monkeypatch.setattr(data.torch.utils.data, "get_worker_info", lambda: "a loader process")
    monkeypatch.setattr(torch.Tensor, "share_memory_", share)
    found = data.TrainingSamples(Frames(), {"action": (2,)}, Deaf()).__getitems__([0, 1])
    with refuses(TrainingError, "disk.shared-memory-full") as refused:
        list(data._checked(iter([found])))
    assert "--num_workers=0" in str(refused.value)
    monkeypatch.undo()
    assert data.TrainingSamples(Frames(), {"action": (2,)}, Deaf()).__getitems__([0, 1])[
        "action"
    ].shape == (2, 2)


def test_loader_processes_that_find_no_room_to_begin_are_one_line(monkeypatch):
    def full(loader):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(dataloader, "_MultiProcessingDataLoaderIter", full)
    order, loading = (
        BatchOrder(np.arange(12), batch_size=4, seed=0),
        data.LoaderSettings(1, 1, "spawn"),
    )
    with refuses(TrainingError, "disk.shared-memory-full"):
        list(data.batches(Frames(), order, range(2), loading, torch.device("cpu")))
