"""Runs are resumed and audited from any folder, with the policy that they began with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import small_policies as small
from tests.refusals import refuses

from proctor.cli import main
from proctor.errors import UsageError
from proctor.features import ACTION, ENVIRONMENT_STATE, Feature, FeatureKind
from proctor.policies.lerobot.checkpoint import location
from proctor.runs.folder import RunFolder
from proctor.runs.journal import read_journal
from proctor.runs.paths import settings_with_paths

FAKE = ["--env.type=fake", "--eval.use_async_envs=false", "--live=false", "--video.episodes=0"]
LAST = "train/checkpoints/last/pretrained_model"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a training of two checkpoints and a link to the first."""
    project = tmp_path / "project"
    for seed, step in enumerate(("000010", "000020")):
        folder = project / "train" / "checkpoints" / step
        folder.mkdir(parents=True)
        act = small.small_act(
            input_features={ENVIRONMENT_STATE: Feature(FeatureKind.ENV, (4,), "float32")},
            output_features={ACTION: Feature(FeatureKind.ACTION, (2,), "float32")},
            dim_feedforward=8 + 8 * seed,
        )
        small.write_small(act, folder / "pretrained_model")
    (project / "train/checkpoints/last").symlink_to("000010")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(project)

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the Hub was asked")

    monkeypatch.setattr(location, "download", never)
    return project


def evaluate(path: str, *words: str, episodes: int = 2) -> int:
    return main(["eval", f"--policy.path={path}", f"--eval.n_episodes={episodes}", *FAKE, *words])


def move_last(project: Path) -> None:
    link = project / "train/checkpoints/last"
    link.unlink()
    link.symlink_to("000020")


def test_a_run_is_resumed_and_audited_from_another_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = "train/checkpoints/000010/pretrained_model"
    assert evaluate(typed, "--output_dir=out/run") == 0
    before = RunFolder(Path("out/run")).read()
    monkeypatch.chdir(project.parent / "elsewhere")
    run = project / "out/run"
    assert main(["eval", "--resume", f"--output_dir={run}", "--eval.n_episodes=3"]) == 0
    assert len(read_journal(run).rows) == 3
    assert main(["audit", str(run), "--episodes=1"]) == 0
    assert "1 episodes run again, 0 different" in capsys.readouterr().out
    after = RunFolder(run).read()
    assert before is not None
    assert after is not None
    assert after.given["policy.path"] == typed, "what was typed is kept"
    assert after.paths["policy.path"].absolute == str(project / typed)
    assert after.fingerprint == before.fingerprint


def test_a_run_that_moves_with_its_neighbours_finds_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate("train/checkpoints/000010/pretrained_model", "--output_dir=out/run") == 0
    moved = project.parent / "elsewhere" / "project"
    project.rename(moved)
    monkeypatch.chdir(moved.parent)
    run = moved / "out/run"
    assert main(["eval", "--resume", f"--output_dir={run}", "--eval.n_episodes=3"]) == 0
    assert main(["audit", str(run), "--episodes=1"]) == 0
    shutil.move(run, moved.parent / "alone")
    more = ["--eval.n_episodes=4", f"--output_dir={moved.parent / 'alone'}"]
    assert main(["eval", "--resume", *more]) == 0, "its policy did not move"


def test_a_policy_that_is_gone_is_not_looked_for_on_the_hub(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train/checkpoints/000010/pretrained_model").rename("train/best")
    assert evaluate("train/best", "--output_dir=out/run") == 0
    Path("train/best").rename("train/renamed")
    resume = ["eval", "--resume", "--output_dir=out/run", "--eval.n_episodes=3"]
    capsys.readouterr()
    for words in (resume, [*resume, "--policy.path=train/best"], ["audit", "out/run"]):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"--policy.path: {project / 'train/best'} does not exist any more" in line
    assert main([*resume, "--policy.path=train/renamed"]) == 0


def test_last_stays_the_step_that_it_was_when_the_run_began(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(LAST, "--output_dir=out/run") == 0
    move_last(project)
    capsys.readouterr()
    resume = ["eval", "--resume", "--output_dir=out/run"]
    assert main([*resume, "--eval.n_episodes=3"]) == 0
    told = capsys.readouterr().err
    notes = [line for line in told.splitlines() if line.startswith("note: --policy.path")]
    first, second = (
        project / f"train/checkpoints/{step}/pretrained_model" for step in ("000010", "000020")
    )
    assert notes == [
        f"note: --policy.path={LAST} was {first} when this run began, and that is used; by now it "
        f"is {second}"
    ]
    assert main([*resume, f"--policy.path={LAST}", "--eval.n_episodes=4"]) == 0, "typed again"
    assert main(["audit", "out/run", "--episodes=1"]) == 0
    record = RunFolder(Path("out/run")).read()
    assert record is not None
    assert record.given["policy.path"] == LAST
    assert record.pinned_given["policy.path"] == str(first)
    assert f"--policy.path={first}" in Path("out/run/report.html").read_text()


def test_a_new_run_of_last_is_of_the_step_that_it_is_now(project: Path) -> None:
    assert evaluate(LAST, "--output_dir=out/one") == 0
    move_last(project)
    assert evaluate(LAST, "--output_dir=out/two") == 0
    one, two = (json.loads(Path(f"out/{name}/run.json").read_text()) for name in ("one", "two"))
    assert one["fingerprint"] != two["fingerprint"]
    assert two["config"]["paths"]["policy.path"]["absolute"].endswith("000020/pretrained_model")


def test_an_older_run_searches_its_paths_from_its_own_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = "train/checkpoints/000010/pretrained_model"
    assert evaluate(typed, "--output_dir=out/run") == 0
    content = json.loads(Path("out/run/run.json").read_text())
    del content["config"]["paths"]
    Path("out/run/run.json").write_text(json.dumps(content))
    monkeypatch.chdir(project.parent / "elsewhere")
    resume = ["eval", "--resume", f"--output_dir={project / 'out/run'}", "--eval.n_episodes=3"]
    assert main(resume) == 0


def test_paths_of_a_run_cannot_name_code(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("train/checkpoints/000010/pretrained_model", "--output_dir=out/run") == 0
    content = json.loads(Path("out/run/run.json").read_text())
    content["config"]["given"]["policy.type"] = "pretrained"
    path = dict(content["config"]["paths"]["policy.path"], from_run="../../evil:PLUGIN")
    content["config"]["paths"]["policy.type"] = path | {
        "existed": False,
        "absolute": "/evil:PLUGIN",
    }
    Path("out/run/run.json").write_text(json.dumps(content))
    assert main(["eval", "--resume", "--output_dir=out/run", "--eval.n_episodes=3"]) == 2
    assert "add --policy.type=" in capsys.readouterr().err


def test_nested_settings_of_a_file_are_found_too(project: Path) -> None:
    Path("eval.yaml").write_text("policy:\n  path: train/checkpoints/000010/pretrained_model\n")
    words = ["--config_path=eval.yaml", *FAKE, "--eval.n_episodes=1", "--output_dir=out/run"]
    assert main(["eval", *words]) == 0
    record = RunFolder(Path("out/run")).read()
    assert record is not None
    Path("train").rename("train_2")
    with refuses(UsageError, "path.not-found"):
        settings_with_paths(record.given, record.paths, Path("out/run"), {})
