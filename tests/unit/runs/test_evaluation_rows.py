"""Rows of evaluations in a training's log."""

from __future__ import annotations

from pathlib import Path

from proctor.runs.training import EvaluationLogRow, is_news


def test_lost_episodes_count_as_failures_when_checkpoints_are_ranked() -> None:
    sound = EvaluationLogRow(100, 98.0, episodes=50)
    lost = EvaluationLogRow(200, 100.0, episodes=1, errors=49)
    assert sound.score == 98.0
    assert lost.score == 2.0
    assert lost.bounds == (2.0, 100.0)
    assert EvaluationLogRow(300, problem="killed").score is None


def test_a_row_with_errors_says_how_to_run_them_again() -> None:
    lost = EvaluationLogRow(200, 100.0, episodes=1, errors=49)
    note = lost.errors_note(Path("T/eval/000200"))
    assert note is not None
    assert "--resume --output_dir=T/eval/000200" in note
    assert EvaluationLogRow(100, 98.0, episodes=50).errors_note(Path("T")) is None


def test_results_are_news_once_and_again_when_errors_were_run_again() -> None:
    lost = EvaluationLogRow(200, 100.0, episodes=1, errors=49)
    again = EvaluationLogRow(200, 60.0, episodes=50)
    assert is_news(lost, [EvaluationLogRow(100, 10.0), EvaluationLogRow(200, problem="killed")])
    assert not is_news(lost, [lost])
    assert is_news(again, [lost])
    assert not is_news(again, [lost, again])
