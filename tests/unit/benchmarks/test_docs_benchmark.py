"""The benchmark in docs/tutorials/own_benchmark.md is real."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from proctor.errors import UsageError
from proctor.evaluation.run import Evaluation
from proctor.testing import check_sim
from tests.conftest import digests

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture
def track(monkeypatch: pytest.MonkeyPatch) -> Any:
    text = (DOCS / "tutorials/own_benchmark.md").read_text()
    source = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0]
    module = types.ModuleType("track_from_the_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source, "tutorials/own_benchmark.md", "exec"), module.__dict__)
    return module


def test_the_example_keeps_the_contract(track: Any) -> None:
    benchmark = track.PLUGIN.make(track.PLUGIN.config())
    for task in benchmark.tasks():
        check_sim(benchmark, task)
    with pytest.raises(UsageError) as refused:
        track.PLUGIN.make(track.PLUGIN.config(task="medium"))
    assert "easy, hard" in str(refused.value)


def test_the_example_selects_tasks_by_suite_and_id(track: Any) -> None:
    def names(**flags: Any) -> list[tuple[str, int, str]]:
        tasks = track.PLUGIN.make(track.PLUGIN.config(**flags)).tasks()
        return [(task.suite, task.task_id, task.name) for task in tasks]

    assert names() == [("easy", 0, "near"), ("easy", 1, "middle")]
    assert names(task="hard,easy,hard", task_ids=[1]) == [("hard", 1, "end"), ("easy", 1, "middle")]
    assert all(names(task=group) for group in track.PLUGIN.groups)
    with pytest.raises(UsageError) as refused:
        names(task_ids=[2])
    assert refused.value.code == "env.unknown-task"


def test_the_examples_expert_solves_it_under_either_scheduler(track: Any, run: Any) -> None:
    flags = {
        "env.type": "track_from_the_docs:PLUGIN",
        "policy.type": "expert",
        "eval.use_async_envs": False,
    }
    solved: Evaluation = run(**flags)
    assert [row.outcome.value for row in solved.rows] == ["success"] * 8
    assert digests(run(**flags, **{"eval.scheduler": "lockstep"})) == digests(solved)
