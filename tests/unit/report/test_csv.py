"""A spreadsheet never takes a cell of the CSV file for a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace

import pytest

from proctor.evaluation.run import Evaluation
from proctor.report.run.run import load_run


@pytest.mark.parametrize(
    "text",
    ["=HYPERLINK(1)", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", '=cmd|"x"!A1, b', "-\r=1"],
)
def test_a_text_that_is_a_formula_begins_with_a_quote(
    text: str, run: Callable[..., Evaluation]
) -> None:
    results = load_run(run().path)
    rows = [replace(row, task=text, error=text, sum_reward=-1.5) for row in results.rows]
    cells = list(csv.DictReader(io.StringIO(replace(results, rows=rows).to_csv(), newline="")))
    wanted = "'" + text.replace("\r", "\n")
    assert {cell["task"] for cell in cells} == {wanted}
    assert {cell["error"] for cell in cells} == {wanted}
    assert {cell["sum_reward"] for cell in cells} == {"-1.5"}, "numbers stay numbers"


def test_other_texts_stay_as_they_are(run: Callable[..., Evaluation]) -> None:
    results = load_run(run().path)
    cells = list(csv.DictReader(io.StringIO(results.to_csv())))
    assert [cell["task"] for cell in cells] == [row.task for row in results.rows]
    assert [cell["outcome"] for cell in cells] == [row.outcome.value for row in results.rows]
