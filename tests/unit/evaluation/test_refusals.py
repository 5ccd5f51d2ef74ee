"""A refused command changes nothing on disk; a run without a name gets a folder of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.errors import ProctorError, SpecMismatch, UsageError
from proctor.evaluation.run import Evaluation
from proctor.policies.base import PolicyPlugin, PolicySpec
from proctor.policies.scripted.zero import ZeroConfig, ZeroPolicy
from proctor.runs.folder import make_new_folder
from proctor.runs.journal import JOURNAL_FILE
from proctor.types import Task
from tests.refusals import refuses


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below ``folder`` with its bytes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _tear(path: Path) -> None:
    journal = path / "episodes.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"suite": "po')


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"eval__n_episodes": 1}, "--eval.n_episodes"),
        ({"seed": 7}, "seed"),
        ({"policy__type": "zero"}, "policy.type"),
        ({"resume": False}, "--resume"),
        ({"against": "no-such-run"}, "no-such-run"),
        ({"env__n_tasks": 0}, "n_tasks"),
        ({"wandb__enable": True, "wandb__mode": "offline"}, "wandb.json"),
    ],
)
def test_a_refused_resume_changes_no_byte_of_the_folder(
    run: Callable[..., Evaluation], flags: dict[str, Any], named: str
) -> None:
    if "wandb__enable" in flags:
        pytest.importorskip("wandb")
    path = run(eval__n_episodes=3).path
    _tear(path)
    (path / "videos").mkdir()
    (path / "videos" / "left.mp4.part").write_bytes(b"half")
    (path / "wandb.json").write_text("{")
    before = content(path)
    with pytest.raises(ProctorError) as refused:
        run(**{"eval__n_episodes": 3, "resume": True, "output_dir": str(path), **flags})
    assert named in str(refused.value)
    assert content(path) == before


@pytest.mark.parametrize("name", ["run.json", "sessions.jsonl", "videos/warnings.json"])
def test_a_resume_refused_for_a_damaged_file_changes_no_byte(
    run: Callable[..., Evaluation], name: str
) -> None:
    path = run(eval__n_episodes=2).path
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).unlink(missing_ok=True)
    (path / name).mkdir()
    before = content(path)
    with pytest.raises(ProctorError):
        run(eval__n_episodes=4, resume=True, output_dir=str(path))
    assert content(path) == before


def test_after_a_refusal_a_plain_resume_works(run: Callable[..., Evaluation]) -> None:
    path = run(eval__n_episodes=3).path
    with pytest.raises(ProctorError):
        run(eval__n_episodes=1, resume=True, output_dir=str(path))
    assert run(eval__n_episodes=3, resume=True, output_dir=str(path)).complete


def test_a_refused_run_leaves_no_folder_behind(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    with pytest.raises(ProctorError) as refused:
        run(output_dir=str(tmp_path / "none"), resume=True)
    assert str(tmp_path / "none") in str(refused.value)
    assert not (tmp_path / "none").exists()


def test_two_evaluations_within_a_second_have_a_default_folder_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form, *_: form.replace("%", ""))
    settings: dict[str, Any] = {
        "policy": {"type": "zero"},
        "env": {"type": "fake"},
        "eval": {"n_episodes": 1, "use_async_envs": False},
        "video": {"episodes": 0},
    }
    runs = [proctor.evaluate(**settings) for _ in range(3)]
    assert [run.path.name for run in runs] == [
        "H-M-S_fake_zero",
        "H-M-S_fake_zero-2",
        "H-M-S_fake_zero-3",
    ]
    assert all((run.path / "report.html").exists() for run in runs)


def test_three_evaluations_at_once_all_end_well(tmp_path: Path) -> None:
    words = ["eval", "--policy.type=zero", "--env.type=fake", "--eval.n_episodes=1"]
    program = (
        "import sys, time\n"
        "time.strftime = lambda form, *_: 'now'\n"
        "from proctor.cli import main\n"
        f"sys.exit(main({words!r}))\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    assert [(p.communicate(timeout=120)[1][-300:], p.returncode)[1] for p in started] == [0, 0, 0]
    assert len(list((tmp_path / "outputs" / "eval" / "now").glob("now*/run.json"))) == 3


def test_a_new_folder_is_never_one_that_is_there(tmp_path: Path) -> None:
    made = [make_new_folder(tmp_path / "a" / "b") for _ in range(3)]
    assert [path.name for path in made] == ["b", "b-2", "b-3"]
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_new_folder(tmp_path / "file" / "b")


@pytest.mark.parametrize(
    ("was", "becomes", "found"),
    [
        ('"seed":1001', '"seed":7', "seed 7 in the journal, 1001 in the plan"),
        ('"task":"point-0"', '"task":"else"', "task 'else' in the journal, 'point-0' in the plan"),
        ('"init_state":null', '"init_state":3', "init state 3 in the journal, None in the plan"),
        ('"world":"seed 1001"', '"world":"w"', "world 'w' in the journal, 'seed 1001' in the plan"),
    ],
)
def test_a_journal_of_other_episodes_is_refused_on_resume(
    run: Callable[..., Evaluation], was: str, becomes: str, found: str
) -> None:
    path = run(eval__n_episodes=2).path
    lines = (path / JOURNAL_FILE).read_text().splitlines(keepends=True)
    changed = [line.replace(was, becomes) if '"seed":1001' in line else line for line in lines]
    assert changed != lines
    (path / JOURNAL_FILE).write_text("".join(changed))
    with refuses(UsageError, "run.episode-mismatch") as refused:
        run(eval__n_episodes=3, resume=True, output_dir=str(path))
    assert "('point', 0, 1)" in str(refused.value)
    assert found in str(refused.value)


def test_a_journal_from_before_worlds_were_written_down_is_resumed(
    run: Callable[..., Evaluation],
) -> None:
    path = run(eval__n_episodes=2).path
    text = (path / JOURNAL_FILE).read_text()
    (path / JOURNAL_FILE).write_text(text.replace('"world":"seed 1001"', '"world":""'))
    assert run(eval__n_episodes=3, resume=True, output_dir=str(path)).complete


class Listener(ZeroPolicy):
    """A policy that needs an instruction."""

    spec = PolicySpec("listener", language_conditioned=True)


class Wordless(Fake):
    """The fake benchmark without instructions."""

    def tasks(self) -> list[Task]:
        return [replace(task, instruction="") for task in super().tasks()]


LISTENER = PolicyPlugin(ZeroConfig, Listener, "listens")
WORDLESS = BenchmarkPlugin(FakeConfig, Wordless, "says nothing")


def test_a_policy_that_needs_words_is_refused_tasks_without_them(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    listener = {"policy__type": f"{__name__}:LISTENER", "output_dir": str(tmp_path / "run")}
    with pytest.raises(SpecMismatch) as refused:
        run(**listener, env__type=f"{__name__}:WORDLESS")
    assert "'listener'" in str(refused.value)
    assert not (tmp_path / "run").exists()
    assert run(**listener).complete
