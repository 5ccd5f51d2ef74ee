"""The Hub's format for evaluation results."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from proctor.cli import main
from proctor.commands.evaluation.report import ReportCommand
from proctor.errors import UsageError
from proctor.types import Outcome
from tests.refusals import refuses
from tests.run_folders import episode, perturbed_run, write_run

DOCUMENTED = {"dataset", "value", "verifyToken", "date", "source", "evaluation_framework", "notes"}
"""The keys of "Evaluation Results" in the documentation of the Hub."""
TASK = "--eval-results=me/benchmark:reach"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [episode(0, i, Outcome.SUCCESS if i < 5 else Outcome.FAILURE) for i in range(8)]
    return write_run(tmp_path / "run", rows)


def test_the_file_has_the_documented_keys(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), TASK, "--source=https://example.org/run"]) == 0
    path = folder / ".eval_results" / "reach.yaml"
    assert str(path) in capsys.readouterr().out
    (entry,) = yaml.safe_load(path.read_text())
    assert entry.keys() <= DOCUMENTED
    assert entry["dataset"] == {"id": "me/benchmark", "task_id": "reach"}
    assert entry["value"] == 62.5
    assert entry["source"]["url"] == "https://example.org/run"
    assert "8 episodes, 95% interval [30.6, 86.3]" in entry["notes"]
    assert not (folder / "report.html").exists()


def test_the_card_shows_the_same_text(folder: Path) -> None:
    assert main(["report", str(folder), TASK, "--card"]) == 0
    written = (folder / ".eval_results" / "reach.yaml").read_text()
    assert written.rstrip() in (folder / "card.md").read_text()


def test_the_notes_count_lost_episodes_and_bound_the_rate(tmp_path: Path) -> None:
    ended = [Outcome.SUCCESS] * 2 + [Outcome.ERROR] * 6
    run = write_run(tmp_path / "run", [episode(0, i, one) for i, one in enumerate(ended)])
    assert main(["report", str(run), TASK]) == 0
    (entry,) = yaml.safe_load((run / ".eval_results" / "reach.yaml").read_text())
    assert entry["value"] == 100.0
    assert "6 more ended with an error (25.0% to 100.0% if counted)" in entry["notes"]


def test_the_rate_of_a_run_with_perturbed_episodes_is_that_of_the_clean_ones(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", *perturbed_run({("camera", 1): "ff"}, "ss"))
    assert main(["report", str(run), TASK]) == 0
    (entry,) = yaml.safe_load((run / ".eval_results" / "reach.yaml").read_text())
    assert entry["value"] == 100.0
    assert "2 clean episodes" in entry["notes"]


def test_an_incomplete_run_is_no_result(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [episode(0, 0, Outcome.SUCCESS)])
    command = ReportCommand.parse("proctor report", [str(run), TASK])
    assert command is not None
    with refuses(UsageError, "run.incomplete"):
        command.run()


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--eval-results=benchmark"], "flag.invalid-value"),
        (["--eval-results=me/benchmark"], "flag.invalid-value"),
        (["--eval-results=me/benchmark:../up"], "flag.invalid-value"),
        (["--source=https://example.org"], "flag.unused"),
        ([TASK, "--source=here"], "flag.invalid-value"),
    ],
)
def test_a_wrong_task_or_source_is_refused(flags: list[str], code: str) -> None:
    with refuses(UsageError, code):
        ReportCommand.parse("proctor report", ["run", *flags])
