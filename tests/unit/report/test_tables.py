"""Tables of results: complete when piped, no redundant columns, readable on narrow terminals."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from proctor.report.html.tables import results_table, table_console
from proctor.report.run.multi_run import NamedRun, runs_table
from proctor.runs.journal import EpisodeRecord
from proctor.stats.anytime import AnytimeInterval, MonitoredRates
from proctor.types import Outcome, Score
from tests.run_folders import eight_episodes, episode

LONG = "pick_up_the_black_bowl_between_the_plate_and_the_ramekin_and_place_it_on_the_plate"


def long_names() -> list[EpisodeRecord]:
    return [
        replace(row, suite="libero_spatial", task=f"{LONG}_{row.task_id}")
        for row in eight_episodes()
    ]


def drawn(rows: list[EpisodeRecord], width: int) -> list[str]:
    screen = io.StringIO()
    console = Console(file=screen, width=width)
    console.print(results_table(rows, width=width))
    return screen.getvalue().splitlines()


def test_a_piped_table_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = drawn(long_names(), table_console().width)
    assert len(lines) == 4
    assert f"{LONG}_0" in lines[1]
    assert "75.0% [30.1, 95.4] n=4" in lines[1]


def test_groups_and_tasks_of_one_name_share_a_column() -> None:
    rows = [replace(row, suite=row.task) for row in eight_episodes()]
    head, first, *_, last = drawn(rows, 100)
    assert head.split()[:2] == ["task", "success"]
    assert first.split()[:2] == ["point-0", "75.0%"]
    assert last.split()[:2] == ["all", "57.1%"]
    assert drawn(eight_episodes(), 100)[0].split()[:2] == ["group", "task"]


@pytest.mark.parametrize("width", [80, 60, 40, 30])
def test_no_number_is_lost_on_a_narrow_screen(width: int) -> None:
    lines = drawn(long_names(), width)
    assert max(map(len, lines)) <= width
    text = " ".join("\n".join(lines).split())
    for said in ("75.0% [30.1, 95.4] n=4", "33.3% [6.1, 79.2] n=3, 1 error", "-2.5", "30"):
        assert said in text
    assert f"{LONG}_1" in text.replace(" ", "")


def test_forty_columns_get_lines_instead_of_columns() -> None:
    assert drawn(eight_episodes(), 40)[:3] == [
        "point / point-0",
        "  success 75.0% [30.1, 95.4] n=4",
        "  reward -2.2  episode steps 25",
    ]


def test_eighty_columns_get_headers_of_two_lines() -> None:
    above, head, first, *_ = drawn(eight_episodes(), 80)
    assert above.split() == ["episode", "steps", "to"]
    assert head.split() == [
        "group", "task", "success", "[95%", "interval]", "reward", "steps", "success",
    ]  # fmt: skip
    assert first.split()[-3:] == ["-2.2", "25", "23"]


def test_steps_to_success_are_those_of_successes_and_episode_steps_those_of_all() -> None:
    rows = [episode(0, 0, Outcome.SUCCESS), episode(0, 9, Outcome.FAILURE)]
    head, row = drawn(rows, 200)
    assert head.endswith("reward  episode steps  steps to success")
    assert row.split()[-2:] == ["55", "10"]
    broke = drawn([episode(0, 1, Outcome.ERROR)], 200)[1]
    assert broke.split()[-3:] == ["n/a", "n/a", "n/a"], "missing is not zero"


def test_a_benchmarks_scores_have_columns_of_their_own() -> None:
    rows = [
        replace(row, scores={"coverage": 0.1 * row.episode_index} if row.outcome.counts else None)
        for row in eight_episodes()
    ]
    scores = [Score("max_reward", "max reward"), Score("coverage", "max coverage")]
    screen = io.StringIO()
    Console(file=screen, width=200).print(results_table(rows, width=200, scores=scores))
    head, first, second, *_ = screen.getvalue().splitlines()
    assert "reward  max reward  max coverage  episode steps  steps to success" in head
    assert first.split()[-5:] == ["-2.2", "0.500", "0.150", "25", "23"]
    assert second.split()[-5:-2] == ["-2.5", "0.500", "0.167"], "of the three that were completed"


def test_errors_and_the_bounds_of_the_rate_are_in_the_table_of_several_runs() -> None:
    won, broke = Outcome.SUCCESS, Outcome.ERROR
    rows = [episode(task, i, broke if task and i else won) for task in (0, 1) for i in range(4)]
    screen = io.StringIO()
    Console(file=screen, width=200).print(runs_table([NamedRun("one", rows)], 200))
    line = screen.getvalue().splitlines()[1]
    assert "n=5, 3 errors (62.5% to 100.0% if they had counted)" in line
    assert line.rstrip().endswith(", 3 errors")


def test_a_group_that_is_called_as_a_task_of_another_counts_its_own_episodes_only() -> None:
    won, lost = Outcome.SUCCESS, Outcome.FAILURE
    alone = [episode(0, index, won, suite="push-v3") for index in range(2)]
    of_ten = [episode(0, 0, lost, suite="mt10"), episode(1, 0, lost, suite="mt10")]
    rows = [replace(row, task="push-v3") if row.task_id == 0 else row for row in alone + of_ten]
    rule = MonitoredRates(group=AnytimeInterval(), task=AnytimeInterval(0.9))
    screen = io.StringIO()
    console = Console(file=screen, width=120)
    console.print(runs_table([NamedRun("one", rows[::-1], rule)], 120))
    head, line = screen.getvalue().splitlines()
    assert head.split()[-2:] == ["mt10", "push-v3"]
    assert line.split("n=4")[1].strip() == "0.0% [0.0, 87.1]  100.0% [12.9, 100.0]"
