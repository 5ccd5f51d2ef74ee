"""What ``proctor eval`` makes of its flags, a file and the folder of another run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.commands.evaluation.eval_settings import settings_from
from proctor.errors import UsageError
from proctor.runs.journal import JOURNAL_FILE
from tests.refusals import refuses
from tests.run_folders import RECORD, eight_episodes, write_run


def begun(folder: Path) -> Path:
    """A run with episodes left to play."""
    return write_run(folder, eight_episodes()[:3])


def complete(folder: Path) -> Path:
    """A run with none left."""
    return write_run(folder, eight_episodes()[:3], replace(RECORD, planned_episodes=3))


def resumed(folder: Path, **flags: str) -> dict[str, object]:
    return settings_from({"resume": "true", "output_dir": str(folder), **flags})


def test_the_run_below_the_folder_that_is_named_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun(tmp_path / "demo" / "2026-11-15_20-20-03")
    settings = resumed(tmp_path)
    assert settings["output_dir"] == str(run)
    assert settings["eval.n_episodes"] == RECORD.given["eval.n_episodes"]
    assert capsys.readouterr().err == f"resuming {run}\n"


def test_of_several_runs_below_it_the_unfinished_one_is_meant(tmp_path: Path) -> None:
    complete(tmp_path / "a")
    run = begun(tmp_path / "b")
    complete(tmp_path / "c")
    assert resumed(tmp_path)["output_dir"] == str(run)


def test_which_of_several_runs_is_meant_is_never_guessed(tmp_path: Path) -> None:
    for name in "ab":
        begun(tmp_path / name)
    with refuses(UsageError, "run.ambiguous") as refused:
        resumed(tmp_path)
    assert "2 unfinished runs" in str(refused.value)
    for name in "ab":
        complete(tmp_path / name)
    with refuses(UsageError, "run.ambiguous") as refused:
        resumed(tmp_path)
    assert "2 runs" in str(refused.value)


def test_a_run_in_the_folder_itself_is_taken_whatever_lies_below(tmp_path: Path) -> None:
    begun(tmp_path / "videos_of_others")
    assert resumed(complete(tmp_path))["output_dir"] == str(tmp_path)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"env.type": "metaworld"}, "is a run on fake, not on metaworld; leave out --env.type"),
        ({"policy.type": "zero"}, "is a run of random, not of zero; leave out --policy.type"),
        ({"policy.path": "x"}, "is a run of random, not of pretrained; leave out --policy.path"),
    ],
)
def test_another_benchmark_or_policy_is_named_as_what_it_is(
    tmp_path: Path, flags: dict[str, str], words: str
) -> None:
    begun(tmp_path)
    with refuses(UsageError, "run.other-settings") as refused:
        resumed(tmp_path, **flags)
    assert words in str(refused.value)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"env": {"type": "pusht"}}))
    with refuses(UsageError, "run.other-settings") as refused:
        resumed(tmp_path, config_path=str(file))
    assert "not on pusht" in str(refused.value)


def test_what_was_asked_for_before_may_be_said_again(tmp_path: Path) -> None:
    begun(tmp_path)
    said = {"env.type": "fake", "policy.type": "random", "eval.n_episodes": "6"}
    assert resumed(tmp_path, **said)["eval.n_episodes"] == "6"


def test_a_run_below_is_completed_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--eval.use_async_envs=false", "--eval.n_episodes=1", "--output_dir=outputs/demo/now"]
    assert main(["eval", "--policy.type=zero", "--env.type=fake", *words]) == 0
    assert main(["eval", "--resume", "--output_dir=outputs/demo", "--eval.n_episodes=2"]) == 0
    assert len(Path("outputs/demo/now", JOURNAL_FILE).read_text().splitlines()) == 2
    assert [path.name for path in Path("outputs/demo").iterdir()] == ["now"]


def test_a_checkpoint_that_is_not_there_is_refused_before_anything_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(plugin: object, config: object) -> None:
        raise AssertionError("a benchmark was made for nothing")

    monkeypatch.setattr("proctor.benchmarks.base.BenchmarkPlugin.maker", never)
    monkeypatch.setitem(sys.modules, "torch", None)  # an import would fail
    words = ["eval", f"--policy.path={tmp_path}/nope", "--env.type=fake"]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}/nope" in line
