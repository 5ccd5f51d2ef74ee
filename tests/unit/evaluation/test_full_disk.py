"""A full disk: one line says what is kept, and a resumed run gives the same episodes."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.callbacks import journal_writer
from proctor.cli import main
from proctor.datasets import writer as writer_module
from proctor.errors import DatasetError, WriteFailed
from proctor.runs.journal import read_journal
from proctor.system import files as files_module
from proctor.types import EpisodeResult, Outcome
from tests.recordings import columns, record, same

EVAL = [
    "--policy.type=random", "--env.type=fake", "--env.n_tasks=2", "--env.episode_length=5",
    "--eval.n_episodes=2", "--eval.use_async_envs=false", "--video.episodes=0",
]  # fmt: skip


def evaluate(folder: Path) -> int:
    return main(["eval", *EVAL, f"--output_dir={folder}"])


def resume(folder: Path, *more: str) -> int:
    return main(["eval", "--resume", f"--output_dir={folder}", *more])


def refuse(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def digests(folder: Path) -> list[tuple[Any, str | None]]:
    return sorted((row.key, row.digest) for row in read_journal(folder).rows)


def no_more_files(patched: pytest.MonkeyPatch, number: int, name: str = "") -> None:
    """Let new files whose name ends with ``name`` fail; open files may still grow."""

    def full(fd: int) -> None:
        if name in Path(f"/proc/self/fd/{fd}").readlink().name:
            raise refuse(number)

    patched.setattr(files_module, "sync", full)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_what_the_disk_refused_first_is_said_with_what_is_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
) -> None:
    run, written = tmp_path / "run", os.write

    def write(fd: int, line: bytes) -> int:
        if len(read_journal(run).rows) == 3:
            no_more_files(monkeypatch, number)  # nor the files at the end of a run
            raise refuse(number)
        return written(fd, line)

    monkeypatch.setattr(journal_writer.os, "write", write)
    assert evaluate(run) == 2
    mend = "see to the disk" if number == errno.EROFS else "make room"
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"proctor: error: cannot write {run / 'episodes.jsonl'}: {os.strerror(number)}; "
        f"3 of 4 episodes are kept in {run}: {mend}, then run again with --resume"
    )
    monkeypatch.undo()
    assert resume(run) == 0
    assert evaluate(tmp_path / "whole") == 0
    assert digests(run) == digests(tmp_path / "whole")


def test_a_journal_that_cannot_be_begun_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = os.open

    def full(path: Path, *rest: Any, **how: Any) -> int:
        if str(path).endswith("episodes.jsonl") and rest[0] & os.O_CREAT:
            raise refuse(errno.EDQUOT)
        return opened(path, *rest, **how)

    monkeypatch.setattr(journal_writer.os, "open", full)
    assert evaluate(tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "episodes.jsonl: Disk quota exceeded; 0 of 4 episodes" in said.splitlines()[-1]


@pytest.mark.parametrize("name", ["eval_info.json", "report.html"])
def test_results_that_do_not_fit_cost_no_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    no_more_files(monkeypatch, errno.ENOSPC, name)
    assert evaluate(tmp_path / "run") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{name}: No space left on device; 4 of 4 episodes are kept" in said
    monkeypatch.undo()
    assert resume(tmp_path / "run") == 0
    assert (tmp_path / "run" / name).stat().st_size


def test_a_run_that_did_not_begin_is_not_to_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_more_files(monkeypatch, errno.ENOSPC)
    assert evaluate(tmp_path / "run") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(
        "holds no episodes: make room, then run again, or choose another --output_dir"
    )
    assert not (tmp_path / "run").exists()


def test_a_run_folder_that_goes_away_is_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, written = tmp_path / "run", os.write

    def write(fd: int, line: bytes) -> int:
        if run.exists() and len(read_journal(run).rows) == 2:
            run.rename(tmp_path / "elsewhere")
        return written(fd, line)

    monkeypatch.setattr(journal_writer.os, "write", write)
    assert evaluate(run) == 2
    assert f"{run} is no longer there: if it was moved" in capsys.readouterr().err.splitlines()[-1]


def test_a_run_folder_that_is_moved_is_noticed_at_the_next_sync(tmp_path: Path) -> None:
    run, benchmark = tmp_path / "run", Fake(FakeConfig())
    run.mkdir()
    result = EpisodeResult(benchmark.spec(benchmark.tasks()[0], 0, 0), Outcome.SUCCESS, steps=1)
    journal = journal_writer.JournalWriter(run, sync_every_s=0)
    journal.on_episode_end(result)
    run.rename(tmp_path / "elsewhere")
    with pytest.raises(WriteFailed):
        journal.on_episode_end(result)
    assert len(read_journal(tmp_path / "elsewhere").rows) == 1
    journal.close()


def test_a_recording_whose_dataset_could_not_be_begun_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(root: Path, *_: object) -> None:
        (root / "meta").mkdir()
        (root / "meta/.info.json.1.part").touch()
        raise refuse(errno.ENOSPC)

    words = [
        "--policy.type=expert", "--env.type=fake", "--env.n_tasks=2", "--env.episode_length=14",
        "--record.n_episodes=2", "--record.images=false", "--eval.use_async_envs=false",
        "--record.extra=[environment_state,next.reward,next.success]",
    ]  # fmt: skip
    monkeypatch.setattr(writer_module, "write_info", full)
    assert main(["record", *words, f"--dataset.root={tmp_path / 'demos'}"]) == 2
    assert "no space left" in capsys.readouterr().err.splitlines()[-1]
    monkeypatch.undo()
    assert main(["record", "--resume", f"--dataset.root={tmp_path / 'demos'}"]) == 0
    record(tmp_path / "whole", eval__use_async_envs=False)
    assert same(columns(tmp_path / "demos"), columns(tmp_path / "whole"))


def test_takes_that_do_not_fit_into_the_dataset_wait_for_the_next_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise refuse(errno.ENOSPC)

    words = ["--record_images=false", f"--record={tmp_path / 'rollouts'}"]
    with monkeypatch.context() as patched:
        patched.setattr(writer_module, "write_stats", full)
        assert main(["eval", *EVAL, *words, f"--output_dir={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith("--resume")
    assert resume(tmp_path / "run", words[-1]) == 0
    assert len(columns(tmp_path / "rollouts")["from"]) == 4


def test_pictures_of_short_episodes_have_the_statistics_that_are_checked(tmp_path: Path) -> None:
    record(
        tmp_path / "demos",
        record__images=True,
        dataset__video=False,
        eval__use_async_envs=False,
    )
    assert main(["data", "check", str(tmp_path / "demos")]) == 0


def test_a_dataset_on_a_disk_that_is_read_only_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise refuse(errno.EROFS)

    features = {"action": {"dtype": "float32", "shape": [2], "names": None}}
    writer_module.DatasetWriter.create(tmp_path / "toy", 10, features).release()
    monkeypatch.setattr(writer_module, "lock_dataset", read_only)
    with pytest.raises(DatasetError) as refused:
        writer_module.DatasetWriter.resume(tmp_path / "toy")
    assert "Read-only file system" in str(refused.value)
