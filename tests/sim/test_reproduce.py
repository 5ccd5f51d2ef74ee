"""The single-episode command of the report page, on Meta-World."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from proctor import evaluate
from proctor.cli import main
from proctor.report.claims.reproduce import episode_command_prefix, episode_flag, task_flags
from proctor.runs.folder import RunFolder
from proctor.runs.journal import read_journal

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("policy", ["random", pytest.param("expert", marks=pytest.mark.slow)])
def test_an_episode_of_a_split_comes_out_the_same_alone(policy: str, tmp_path: Path) -> None:
    run = evaluate(
        policy={"type": policy},
        env={"type": "metaworld", "task": "hard", "task_ids": [1, 3], "episode_length": 30},
        eval={"n_episodes": 2, "batch_size": 2},
        output_dir=str(tmp_path / "run"),
    )
    row, record = run.rows[-1], RunFolder(run.path).read()
    assert record is not None
    base = episode_command_prefix(record.given, record.resolved)
    which = f"{task_flags(row.suite, row.task_id)} {episode_flag(row.episode_index)}"
    words = shlex.split(f"{base} {which}")
    assert main([*words[1:], f"--output_dir={tmp_path / 'again'}"]) == 0
    assert [again.digest for again in read_journal(tmp_path / "again").rows] == [row.digest]
