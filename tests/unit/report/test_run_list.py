"""The list of runs labels recordings, and counts their demonstrations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from proctor.report.page_data import page_data
from proctor.report.run import load_run
from proctor.report.run_list import list_data
from proctor.runs.records import PlannedTask
from proctor.types import Outcome
from tests.run_folders import RECORD, eight_episodes, write_run

TWO_EACH = [PlannedTask("point", n, f"point-{n}", "go", 50, 2) for n in range(2)]


@pytest.mark.parametrize(
    ("keep", "done", "status"), [("success", 3, "incomplete"), ("all", 4, "complete")]
)
def test_a_recording_counts_the_demonstrations_that_it_wants(
    tmp_path: Path, keep: str, done: int, status: str
) -> None:
    record = replace(
        RECORD,
        resolved=RECORD.resolved | {"record": {"keep": keep}},
        planned_episodes=4,
        tasks=TWO_EACH,
    )
    write_run(tmp_path / "demos.recording", eight_episodes(), record)
    (row,) = list_data(tmp_path)["runs"]
    assert (row["kind"], row["unit"], row["status"]) == ("recording", "demonstrations", status)
    assert (row["done"], row["planned"]) == (done, 4), "eight attempts are not eight of four"
    page = page_data(load_run(tmp_path / "demos.recording"), running=True)
    assert (page["recorded"], page["unit"], page["planned"]) == (done, "demonstrations", 4)
    assert (page["left_s"] == 0.0) == (done == 4)


def test_the_page_of_a_recording_without_a_demonstration_is_not_starting(tmp_path: Path) -> None:
    rows = [row for row in eight_episodes() if row.outcome is not Outcome.SUCCESS]
    record = replace(RECORD, resolved=RECORD.resolved | {"record": {"keep": "success"}})
    write_run(tmp_path, rows, record)
    page = page_data(load_run(tmp_path), running=True)
    assert (page["recorded"], page["left_s"], page["begun"]) == (0, None, True)


def test_an_evaluation_that_keeps_rollouts_is_a_run(tmp_path: Path) -> None:
    record = replace(RECORD, resolved=RECORD.resolved | {"record": "rollouts"})
    write_run(tmp_path / "one", eight_episodes(), record)
    (row,) = list_data(tmp_path)["runs"]
    assert (row["kind"], row["unit"], row["done"]) == ("run", "episodes", 8)
