"""A run says how it came to its number of episodes, and its intervals allow for a look."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from proctor.evaluation.run import Evaluation
from proctor.report.claims.card import card_markdown, card_of
from proctor.report.claims.card_file import read_card
from proctor.report.compare.warnings import run_warnings
from proctor.report.run.history import History, history_of
from proctor.report.run.page_data import page_data
from proctor.report.run.run import load_run
from proctor.report.run.summary import ANYTIME
from proctor.runs.folder import RUN_FILE, RunFolder
from proctor.runs.records import SessionPlan
from proctor.stats.anytime import NOT_MONITORED, AnytimeInterval, anytime_interval
from proctor.stats.rates import wilson_interval
from tests.run_folders import RECORD

Run = Callable[..., Evaluation]


def plan(finished: int, planned: int, stop_when: str = "never", **other: str | None) -> SessionPlan:
    return SessionPlan(
        float(finished + planned), finished, planned, 1, stop_when, other.pop("against", None)
    )


def history(*plans: SessionPlan) -> History:
    sessions = [float(number) for number in range(len(plans))]
    return history_of(replace(RECORD, sessions=sessions, history=list(plans)))


def test_a_run_that_was_resumed_with_more_episodes_says_so_everywhere(
    run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    first = run(output_dir=str(folder), eval__n_episodes=4)
    assert first.history.fixed
    assert first.tally.interval == wilson_interval(first.tally.successes, 4)
    run(output_dir=str(folder), eval__n_episodes=8, resume=True)

    found = load_run(folder)
    k = found.tally.successes
    assert [(one.finished, one.planned) for one in found.history.sessions] == [(0, 4), (4, 8)]
    assert found.history.fixed is False
    assert found.tally.interval == anytime_interval(k, 8, None)
    assert found.tally.interval != wilson_interval(k, 8)
    card = card_of(found)
    assert card.interval == ANYTIME
    assert card.history == found.history.text == page_data(found)["history"]
    assert found.history.text[1:] in found.to_markdown()
    assert any(found.history.text in line for line in run_warnings(found))
    info = json.loads((folder / "eval_info.json").read_text())["proctor"]
    assert info["history"]["fixed"] is False
    assert info["history"]["text"] == found.history.text
    assert info["interval"] == ANYTIME


def test_a_run_that_stopped_itself_and_was_continued_says_so(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    stopped = run(output_dir=str(folder), eval__n_episodes=40, eval__stop_when="ci_width<0.9")
    assert stopped.stopped is not None
    n = len(stopped.rows)
    assert n < 40
    now = run(output_dir=str(folder), resume=True, eval__stop_when="never", eval__n_episodes=n)
    assert now.stopped is None

    found = load_run(folder)
    assert found.history.sessions[0].stopped == stopped.stopped
    assert stopped.stopped in found.history.text
    assert found.history.fixed is False
    assert found.tally.interval == anytime_interval(found.tally.successes, n, 0.9)
    assert card_of(found).interval == ANYTIME


def test_an_interrupted_run_that_is_completed_as_planned_was_fixed_before() -> None:
    found = history(plan(0, 20), plan(7, 20), plan(12, 20))
    assert found.fixed
    assert found.monitored == NOT_MONITORED


def test_a_plan_that_was_changed_before_the_first_result_is_no_look() -> None:
    assert history(plan(0, 10), plan(0, 20)).fixed
    assert history(plan(0, 10, "ci_width<0.1"), plan(0, 20)).fixed


def test_a_smaller_plan_after_results_is_a_look() -> None:
    found = history(plan(0, 100), plan(30, 30))
    assert found.fixed is False
    assert found.monitored.overall == AnytimeInterval()


@pytest.mark.parametrize(
    ("plans", "overall"),
    [
        ([plan(0, 60, "ci_width<0.1")], AnytimeInterval(0.1)),
        ([plan(0, 60, "ci_width<0.1"), plan(9, 60, "ci_width<0.1")], AnytimeInterval(0.1)),
        ([plan(0, 60, "ci_width<0.1"), plan(9, 60)], AnytimeInterval(0.1)),
        ([plan(0, 60, "ci_width<0.1"), plan(9, 60, "ci_width<0.2")], AnytimeInterval(0.1)),
        ([plan(0, 60), plan(9, 60, "ci_width<0.1")], AnytimeInterval()),
        ([plan(0, 60, against="/a"), plan(9, 9)], AnytimeInterval()),
        ([plan(0, 60, against="/a")], AnytimeInterval()),
    ],
)
def test_the_bet_of_an_interval_is_the_width_that_was_chosen_before_any_result(
    plans: list[SessionPlan], overall: AnytimeInterval
) -> None:
    assert history(*plans).monitored.overall == overall


def test_a_stop_rule_alone_is_no_look() -> None:
    found = history(plan(0, 60, "ci_width<0.1"))
    assert not found.looked
    assert found.fixed is False


def test_the_history_of_an_old_run_is_unknown_and_its_card_claims_nothing(
    run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    run(output_dir=str(folder))
    _forget_history(folder)
    found = load_run(folder)
    assert found.history.fixed is None
    card = card_of(found)
    assert card.history == History().text
    assert "fixed before" not in card_markdown(card, "", "card.json")
    assert any(History().text in line for line in run_warnings(found))

    run(output_dir=str(folder), resume=True)
    assert load_run(folder).history.fixed is None


def test_an_old_run_that_is_extended_now_has_anytime_valid_intervals(
    run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    run(output_dir=str(folder))
    _forget_history(folder)
    run(output_dir=str(folder), resume=True, eval__n_episodes=5)
    run(output_dir=str(folder), resume=True, eval__n_episodes=6)
    assert load_run(folder).history.fixed is False


def _forget_history(folder: Path) -> None:
    content = json.loads((folder / RUN_FILE).read_text())
    del content["history"]
    (folder / RUN_FILE).write_text(json.dumps(content))


def test_the_card_of_an_extended_run_is_read_back(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run(output_dir=str(folder))
    run(output_dir=str(folder), resume=True, eval__n_episodes=6)
    card = card_of(load_run(folder))
    path = tmp_path / "card.json"
    path.write_text(json.dumps(asdict(card)))
    assert read_card(path) == card


def test_a_card_names_no_folder_of_the_user() -> None:
    before = replace(plan(0, 60, against="/home/me/a"), stopped="better than /home/me/a")
    assert "/home" not in history(before, plan(9, 9)).text


def test_a_recording_was_not_fixed_before() -> None:
    resolved = {"record": {"keep": "success", "n_episodes": 10}}
    found = history_of(replace(RECORD, resolved=resolved, history=[plan(0, 10)]))
    assert found.fixed is False
    everything = {"record": {"keep": "all", "n_episodes": 10}}
    assert history_of(replace(RECORD, resolved=everything, history=[plan(0, 10)])).fixed


def test_a_run_json_with_a_history_is_read_back(tmp_path: Path) -> None:
    record = replace(RECORD, history=[replace(plan(0, 60), stopped="ci_width"), plan(9, 60)])
    RunFolder(tmp_path).write(record)
    assert RunFolder(tmp_path).read() == record
