"""The callback interface: defaults, and closing all callbacks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from proctor.callbacks.base import Callback, close_all
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.evaluation.preparing import prepare
from proctor.evaluation.run import run_evaluation
from proctor.types import EpisodeResult

SOURCES = Path(__file__).parents[3] / "src" / "proctor"


class SeedCollector(Callback):
    """A callback that defines only ``on_episode_end``."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def on_episode_end(self, result: EpisodeResult) -> None:
        self.seeds.append(result.spec.seed)


def test_a_callback_that_defines_one_method_goes_through_a_whole_run(
    tmp_path: Path,
) -> None:
    settings = {"policy.type": "random", "env.type": "fake", "eval.n_episodes": 3,
                "video.episodes": 0, "output_dir": str(tmp_path / "run")}  # fmt: skip
    seen = SeedCollector()
    run_evaluation(prepare(build(EvalConfig, settings)), settings, lambda *_: [seen, Callback()])
    assert sorted(seen.seeds) == [1000, 1001, 1002]


def test_no_callback_repeats_an_empty_method_that_it_inherits() -> None:
    empty = [
        f"{path.relative_to(SOURCES)}: {owner.name}.{method.name}"
        for path in SOURCES.rglob("*.py")
        for owner in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(owner, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "Callback" for base in owner.bases)
        for method in owner.body
        if isinstance(method, ast.FunctionDef)
        and all(isinstance(statement, ast.Expr | ast.Pass) for statement in method.body)
        and not any(isinstance(node, ast.Call) for node in ast.walk(method))
    ]
    assert empty == []


def test_all_callbacks_are_closed_and_the_first_error_of_any_is_raised() -> None:
    closed: list[str] = []

    class Broken(Callback):
        def __init__(self, name: str) -> None:
            self._name = name

        def close(self) -> None:
            closed.append(self._name)
            raise RuntimeError(self._name)

    with pytest.raises(RuntimeError, match="first"):
        close_all([Broken("first"), Callback(), Broken("last")])
    assert closed == ["first", "last"]
