"""``progress=``: a function, a bar in a notebook, or a line on the terminal."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from rich import console

import proctor
from proctor import ProgressUpdate
from proctor.callbacks.progress_updates import NotebookBar
from proctor.errors import UsageError
from proctor.report.run.run import load_run
from tests.refusals import refuses

FAKE = {"type": "fake", "episode_length": 8}


def play(folder: Path, progress: Any, **settings: Any) -> Any:
    how: dict[str, Any] = {"n_episodes": 3, "output_dir": folder} | settings
    quiet = {"eval": {"use_async_envs": False}, "video": {"episodes": 0}}
    return proctor.evaluate("zero", FAKE, progress=progress, **quiet, **how)


class Cell:
    """A notebook's cell: IPython's ``display`` draws in it, and the handle redraws."""

    def __init__(self) -> None:
        self.drawn: list[Any] = []
        self.updates = 0

    def display(self, content: Any, display_id: bool) -> Cell:
        assert display_id
        self.drawn.append(content)
        return self

    def update(self, content: Any) -> None:
        self.updates += 1
        self.drawn[-1] = content


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """Pretend that this is a Jupyter kernel."""
    cell = Cell()
    shown = types.SimpleNamespace(display=cell.display)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(display=shown))
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr(console, "_is_jupyter", lambda: True)
    return cell


def test_a_function_receives_the_progress_and_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    updates: list[ProgressUpdate] = []
    play(tmp_path / "run", updates.append)
    last = updates[-1]
    assert (last.done, last.total) == (3, 3)
    assert last.text.startswith("3/3  success 0.0%")
    assert last.rate is not None
    assert last.rate > 0
    assert capfd.readouterr() == ("", "")


def test_a_run_with_nothing_left_to_do_still_sends_its_end(tmp_path: Path) -> None:
    updates: list[ProgressUpdate] = []
    play(tmp_path / "run", None)
    play(tmp_path / "run", updates.append, resume=True)
    assert [(update.done, update.total, update.rate) for update in updates] == [(3, 3, None)]


def test_a_resumed_run_counts_the_episodes_before(tmp_path: Path) -> None:
    updates: list[ProgressUpdate] = []
    play(tmp_path / "run", None, n_episodes=2)
    play(tmp_path / "run", updates.append, resume=True)
    assert updates[0].done >= 2
    assert (updates[-1].done, updates[-1].total) == (3, 3)


def test_an_exception_of_the_function_ends_the_run_and_keeps_its_episodes(tmp_path: Path) -> None:
    calls = []

    def stop(update: ProgressUpdate) -> None:
        calls.append(update.done)
        if update.done:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        play(tmp_path / "run", stop, n_episodes=500)
    kept = load_run(tmp_path / "run")
    assert 0 < calls[-1] <= len(kept.rows) < 500
    assert calls[:-1] == [0] * (len(calls) - 1), "a function that failed is not called again"
    assert (tmp_path / "run" / "report.html").is_file()


def test_an_exception_ends_a_recording_that_is_then_resumed(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")

    def stop(update: ProgressUpdate) -> None:
        if update.done:
            raise RuntimeError("enough")

    how: dict[str, Any] = {"record": {"images": False}, "eval": {"use_async_envs": False}}
    with pytest.raises(RuntimeError, match="enough"):
        proctor.record("expert", "fake", tmp_path / "demos", n_episodes=60, progress=stop, **how)
    updates: list[ProgressUpdate] = []
    recorded = proctor.record(
        dataset=tmp_path / "demos", n_episodes=60, resume=True, progress=updates.append
    )
    assert recorded.complete
    assert updates[0].done > 0, "finished demonstrations are kept"
    assert (updates[-1].done, updates[-1].total) == (60, 60)


def test_true_shows_the_line_of_the_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    play(tmp_path / "run", True)
    assert capfd.readouterr().err.startswith("3/3  success 0.0%")


def test_true_draws_one_bar_in_a_notebook(
    tmp_path: Path, cell: Cell, capfd: pytest.CaptureFixture[str]
) -> None:
    play(tmp_path / "run", True)
    assert len(cell.drawn) == 1
    assert cell.updates
    shown = cell.drawn[0]._repr_mimebundle_(include=(), exclude=())
    assert "3/3  success 0.0%" in shown["text/plain"]
    assert "━" in shown["text/plain"]
    assert capfd.readouterr() == ("", "")


def test_a_notebooks_bar_stands_for_an_empty_plan(cell: Cell) -> None:
    NotebookBar()(ProgressUpdate(0, 0, "nothing to do", None))
    assert len(cell.drawn) == 1


@pytest.mark.parametrize("progress", [3, "bar"])
def test_another_progress_is_refused(progress: Any, tmp_path: Path) -> None:
    with refuses(UsageError, "flag.invalid-value"):
        play(tmp_path / "run", progress)
    assert not (tmp_path / "run").exists()
