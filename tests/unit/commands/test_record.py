"""``proctor record`` as people type it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.datasets.format.info_file import read_info
from proctor.runs.journal import read_journal
from proctor.types import Outcome
from tests.recordings import NUMBERS, columns, record, same

WORDS = ["--policy.type=expert", "--env.type=fake", "--record.images=false"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--dataset.repo_id=USER/NAME"),
        (["--dataset.repo_id=demos"], "--dataset.repo_id must be USER/NAME, got 'demos'"),
        (["--dataset.root=taken"], "taken exists; add --resume"),
        (["--dataset.root=d", "--resume"], "d.recording holds no recording"),
        (["--dataset.root=d", "--dataset.codec=h265"], "there is no 'h265'; did you mean"),
        (["--dataset.root=d", "--record.noise=-1"], "--record.noise must be from 0 to 10, got -1"),
        (["--dataset.root=d", "--record.noise_share=0.5"], "need --record.noise=S"),
        (["--dataset.root=d", "--record.noise=1", "--record.noise_dims=[2]"], "(choose 0-1)"),
        (["--dataset.root=d", "--record.expert_share=0.5"], "needs --record.label=expert"),
        (
            ["--dataset.root=d", "--record.label=expert", "--record.expert_share=2"],
            "--record.expert_share must be from 0 to 1, got 2",
        ),
        (["--dataset.root=d", "--record.label=teacher"], "--record.label"),
        (["--dataset.root=d", "--record.n_episodes=0"], "--record.n_episodes must be at least 1"),
        (["--dataset.root=d", "--record.max_attempts=3"], "max_attempts must be at least 50"),
        (["--dataset.root=d", "--record.extra=reward"], "there is no 'reward'; did you mean"),
        (["--dataset.root=d", "--record.cameras=[top]"], "--record.images=false records no camera"),
        (
            ["--dataset.root=d", "--record.images=true", "--record.cameras=[top]"],
            "fake has no camera 'top' (choose from observation.image)",
        ),
        (["--dataset.root=d", "--eval.n_episodes=3"], "unknown flag --eval.n_episodes"),
        (["--dataset.root=d", "word"], "unexpected word 'word'"),
    ],
)
def test_bad_input_is_one_line_before_anything_starts(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    given = {word.partition("=")[0] for word in words}
    assert main(["record", *words, *(w for w in WORDS if w.partition("=")[0] not in given)]) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_the_report_says_what_was_kept_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    words = [*WORDS, "--dataset.repo_id=me/demos", "--record.n_episodes=2", "--env.endless"]
    assert main(["record", *words, "--record.max_attempts=3", "--env.episode_length=5"]) == 1
    told = capsys.readouterr().out
    assert "point-0   0/2         3       3       0       0" in told
    assert "incomplete: 1 tasks have fewer than 2 after 3 attempts, as point-0" in told
    assert "dataset: home/me/demos (no episodes: no attempt was kept)\n" in told
    assert "proctor data view" not in told  # there is nothing to look at
    assert "--record.keep=all" in told
    assert read_info(tmp_path / "home" / "me" / "demos").total_episodes == 0
    assert main(["audit", str(tmp_path / "home" / "me" / "demos.recording")]) == 2
    line = capsys.readouterr().err
    assert "demos.recording is of a recording" in line
    assert line.count("\n") == 1


def test_an_interrupted_recording_says_what_is_recorded_and_what_is_in_the_dataset(
    tmp_path: Path,
) -> None:
    root = tmp_path / "d"
    flags = {name: str(value).replace("'", "") for name, value in NUMBERS.items()}
    flags |= {"env.step_ms": "20", "dataset.root": str(root), "record.n_episodes": "40"}
    words = [f"--{name}={value}" for name, value in flags.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "proctor.cli", "record", *words], stderr=subprocess.PIPE, text=True
    )
    journal = tmp_path / "d.recording" / "episodes.jsonl"
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.read_bytes().count(b'"outcome":"success"') >= 4):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    kept = sum(row.outcome is Outcome.SUCCESS for row in read_journal(journal.parent).rows)
    inside = read_info(root).total_episodes
    assert f"recorded {kept}/80  " in err
    said = f"interrupted: {kept} of 80 demonstrations are recorded, {inside} of them are in the"
    assert said in err
    if kept > inside:
        assert f"and {kept - inside} wait in {journal.parent}" in err


def test_evaluations_have_other_seeds_than_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["record", *WORDS, "--dataset.root=d", "--record.n_episodes=3"]) == 0
    words = [word for word in WORDS if "record" not in word]
    assert main(["eval", *words, "--eval.n_episodes=3", "--output_dir=run"]) == 0
    recorded, evaluated = (
        {row.seed for row in read_journal(tmp_path / folder).rows}
        for folder in ("d.recording", "run")
    )
    assert recorded.isdisjoint(evaluated)


def test_a_recording_with_an_older_default_seed_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["record", *WORDS, "--dataset.root=d", "--record.n_episodes=2", "--seed=1000"]
    assert main(words) == 0
    run = tmp_path / "d.recording" / "run.json"
    found = json.loads(run.read_text())
    del found["config"]["given"]["seed"]
    run.write_text(json.dumps(found))
    assert main(["record", "--resume", "--dataset.root=d", "--record.n_episodes=4"]) == 0
    seeds = sorted(row.seed for row in read_journal(run.parent).rows)
    assert seeds == [1000, 1001, 1002, 1003]


def test_a_recording_that_is_killed_goes_on_by_its_folder_alone(tmp_path: Path) -> None:
    root = tmp_path / "d"
    flags = {name: str(value).replace("'", "") for name, value in NUMBERS.items()}
    flags |= {"env.step_ms": "20", "dataset.root": str(root), "record.n_episodes": "3"}
    words = [f"--{name}={value}" for name, value in flags.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "proctor.cli", "record", *words], stderr=subprocess.DEVNULL
    )
    journal = tmp_path / "d.recording" / "episodes.jsonl"
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.read_bytes().count(b"\n") >= 2):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert main(["record", "--resume", f"--dataset.root={root}"]) == 0
    record(tmp_path / "whole", record__n_episodes=3)
    assert same(columns(root), columns(tmp_path / "whole"))
