"""A run folder without episodes, which a crashed start leaves, is begun anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.runs.folder import EVAL_INFO_FILE, RunFolder
from proctor.runs.journal import JOURNAL_FILE, read_journal
from tests.run_folders import RECORD, eight_episodes, write_run

WORDS = ["eval", "--env.type=fake", "--eval.n_episodes=2", "--eval.use_async_envs=false"]


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A folder whose run began and ended before its first episode did."""
    folder = write_run(tmp_path / "run", [])
    (folder / "wandb.json").write_text('{"id": "of_the_crashed_one"}')
    (folder / "sessions.jsonl").write_text('{"elapsed_s": 9, "steps": 9, "batches": 0, ')
    (folder / EVAL_INFO_FILE).write_text("{}")
    return folder


@pytest.mark.parametrize("more", [[], ["--resume"]])
def test_a_run_without_episodes_is_begun_anew_even_with_other_settings(
    crashed: Path, more: list[str]
) -> None:
    words = [*WORDS, "--policy.type=zero", f"--output_dir={crashed}", *more]
    if more:
        words.remove("--policy.type=zero")  # a resumed run keeps its policy
    assert main(words) == 0
    assert len(read_journal(crashed).rows) == 2
    record = json.loads((crashed / "run.json").read_text())
    assert len(record["sessions"]) == 1
    assert not (crashed / "wandb.json").exists(), "it is another run for W&B"


def test_so_is_one_of_several(tmp_path: Path) -> None:
    write_run(tmp_path / "seed1", [])
    assert main([*WORDS, "--policy.type=zero", "--seed=1,2", f"--output_dir={tmp_path}"]) == 0
    assert len(read_journal(tmp_path / "seed1").rows) == 2


def test_a_recorded_run_without_episodes_is_begun_anew_with_its_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    words = [*WORDS, "--policy.type=zero", f"--output_dir={tmp_path / 'run'}"]
    words += [f"--record={tmp_path / 'data'}", "--record_images=false", "--video.episodes=0"]

    def crash(*args: object) -> None:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr("proctor.evaluation.session.Session.run", crash)
        with pytest.raises(MemoryError):
            main(words)
    assert (tmp_path / "data").is_dir()
    assert main(words) == 0
    assert len(read_journal(tmp_path / "run").rows) == 2
    assert main(words) == 2, "now it has episodes"


@pytest.mark.parametrize("lines", [b'{"suite": "po', b""])
def test_a_run_with_episodes_or_damaged_lines_is_not(tmp_path: Path, lines: bytes) -> None:
    rows = [] if lines else eight_episodes()[:1]
    folder = write_run(tmp_path / "run", rows, RECORD)
    with (folder / JOURNAL_FILE).open("ab") as file:
        file.write(lines + b"\n" * bool(lines))
    before = (folder / "run.json").read_bytes()
    assert main([*WORDS, "--policy.type=zero", f"--output_dir={folder}"]) == 2
    assert (folder / "run.json").read_bytes() == before
    assert RunFolder(folder).has_episodes
