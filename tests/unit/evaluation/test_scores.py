"""A benchmark's own scores, such as PushT's coverage, reach journal, table, JSON, CSV and page."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.checks import check_benchmark
from proctor.benchmarks.fake import Fake, FakeConfig, FakeSim
from proctor.cli import main
from proctor.errors import PluginError
from proctor.evaluation.run import Evaluation
from proctor.features import Array
from proctor.report.run.page_data import page_data
from proctor.report.run.run import load_run
from proctor.runs.folder import RunFolder
from proctor.runs.journal import read_journal
from proctor.types import Score, StepResult, Task

HERE = "tests.unit.evaluation.test_scores"


class ScoringSim(FakeSim):
    """The fake simulator, which also says how near the point came."""

    def step(self, action: Array) -> StepResult:
        step = super().step(action)
        return replace(step, scores={"nearness": 1 + step.reward})


class Scoring(Fake):
    """A benchmark with a score of its own."""

    scores = (Score("max_reward", "max reward"), Score("nearness", "nearness"))

    def make_sim(self, task: Task) -> ScoringSim:
        sim = super().make_sim(task)
        sim.__class__ = ScoringSim
        return sim  # type: ignore[return-value]


BENCHMARK = BenchmarkPlugin(FakeConfig, Scoring, "scores")


def test_scores_are_maxima_of_an_episode_and_shown_as_means(
    run: Callable[..., Evaluation], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [f"--env.type={HERE}:BENCHMARK", "--policy.type=random", "--eval.n_episodes=3"]
    words += ["--eval.use_async_envs=false", f"--output_dir={tmp_path / 'scored'}"]
    assert main(["eval", *words]) == 0
    table = capsys.readouterr().out
    assert "max reward  nearness" in table
    rows = read_journal(tmp_path / "scored").rows
    nearness = [(row.scores or {})["nearness"] for row in rows]
    assert nearness == pytest.approx([1 + (row.max_reward or 0) for row in rows])
    loaded = load_run(tmp_path / "scored")
    assert loaded.scores == Scoring.scores
    assert loaded.tally.scores["nearness"] == pytest.approx(sum(nearness) / 3)
    overall = json.loads((loaded.path / "eval_info.json").read_text())["overall"]
    assert overall["avg_max_nearness"] == pytest.approx(sum(nearness) / 3)
    assert overall["mean_episode_steps"] == sum(row.steps or 0 for row in rows) / 3
    page = page_data(loaded)
    assert [score["label"] for score in page["scores"]] == ["max reward", "nearness"]
    assert page["overall"]["scores"]["nearness"] == pytest.approx(sum(nearness) / 3, abs=1e-4)
    assert "max_nearness" in loaded.to_csv().splitlines()[0]
    assert "| nearness |" in loaded.to_markdown()
    assert [row.digest for row in rows] == [
        row.digest for row in run(policy__type="random", eval__n_episodes=3).rows
    ], "scores change no episode"


def test_a_score_that_is_no_number_is_the_simulators_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def step(self: FakeSim, action: Array) -> StepResult:
        return StepResult(0.0, success=False, terminated=False, scores={"nearness": float("nan")})

    monkeypatch.setattr(ScoringSim, "step", step)
    words = [f"--env.type={HERE}:BENCHMARK", "--policy.type=zero", "--eval.n_episodes=1"]
    words += ["--eval.use_async_envs=false", f"--output_dir={tmp_path / 'run'}"]
    main(["eval", *words])
    (row,) = read_journal(tmp_path / "run").rows
    assert "nearness nan" in str(row.error)


def test_scores_of_another_type_are_refused() -> None:
    benchmark = Scoring(FakeConfig())
    benchmark.scores = ("max_reward",)  # type: ignore[assignment]
    with pytest.raises(PluginError):
        check_benchmark(benchmark)


def test_an_older_run_has_no_scores(run: Callable[..., Evaluation]) -> None:
    path = run().path
    content = json.loads((path / "run.json").read_text())
    del content["scores"], content["warnings"]
    (path / "run.json").write_text(json.dumps(content))
    record = RunFolder(path).read()
    assert record is not None
    assert (record.scores, record.warnings) == ([], [])


def test_pusht_shows_maximum_reward_and_coverage(tmp_path: Path) -> None:
    pytest.importorskip("gym_pusht")
    words = ["--env.type=pusht", "--policy.type=random", "--eval.n_episodes=2"]
    words += ["--env.episode_length=20", "--eval.use_async_envs=false", "--video.episodes=0"]
    assert main(["eval", *words, f"--output_dir={tmp_path / 'run'}"]) == 0
    loaded = load_run(tmp_path / "run")
    assert [score.label for score in loaded.scores] == ["max reward", "max coverage"]
    for row in loaded.rows:
        assert row.max_reward == pytest.approx(min(1, (row.scores or {})["coverage"] / 0.95))
