"""Weights & Biases: offline files, resumed runs, and failures of W&B."""

from __future__ import annotations

import json
import sys
import threading
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from proctor.callbacks import wandb as wandb_callback
from proctor.callbacks.base import Callback
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.errors import MissingExtra, RunFolderError, UsageError
from proctor.evaluation.preparing import prepare
from proctor.evaluation.run import Evaluation, run_evaluation
from proctor.runs.journal import read_journal
from proctor.types import EpisodeResult
from tests.refusals import refuses
from tests.wandb_files import logged

pytest.importorskip("wandb", reason="W&B is not installed (proctor[wandb])")
Run = Callable[..., Evaluation]
OFFLINE = {"wandb__enable": True, "wandb__mode": "offline"}


@pytest.fixture(autouse=True)
def no_wandb_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a login nor a setting of whoever runs the tests may reach them."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "NETRC", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name))


def test_an_offline_run_holds_the_rate_the_tasks_the_videos_and_the_report(run: Run) -> None:
    evaluation = run(
        **OFFLINE, env__n_tasks=2, env__endless=True, video__episodes=1,
        policy__inputs="observation.image", wandb__project="exam", wandb__notes="a note",
    )  # fmt: skip
    (session,) = logged(evaluation.path)
    last = session.history[-1]
    assert (last["episodes"], last["success/rate"], last["success/low95"]) == (8, 0, 0)
    assert 0.3 < last["success/high95"] < 0.4
    assert session.summary["result"] == "0.0% [0.0, 32.4] n=8"
    assert session.summary["complete"] is True
    (table,) = session.files.glob("media/table/*.json")
    rows = json.loads(table.read_text())["data"]
    assert [row[:3] for row in rows] == [["point", "point-0", 0], ["point", "point-1", 0]]
    assert len(list(session.files.glob("media/videos/videos/point/*.mp4"))) == 2
    for name in ("report.html", "run.json", "eval_info.json", "episodes.jsonl"):
        assert (session.files / name).read_bytes() == (evaluation.path / name).read_bytes()
    assert session.exit_code == 0


def test_the_rate_is_logged_as_episodes_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_callback, "_LOG_EVERY_S", 0.0)
    evaluation = run(**OFFLINE, eval__n_episodes=6, eval__batch_size=1, env__step_ms=8)
    (session,) = logged(evaluation.path)
    ended = [point["episodes"] for point in session.history]
    assert ended == sorted(ended)
    assert len(set(ended)) >= 3
    assert all(point["speed/steps_per_s"] > 0 for point in session.history[:-2])


def test_a_resumed_run_keeps_its_wandb_id(run: Run) -> None:
    first = run(**OFFLINE, eval__n_episodes=2)
    second = run(**OFFLINE, eval__n_episodes=5, resume=True, output_dir=str(first.path))
    before, after = logged(second.path)
    assert before.id == after.id == json.loads((first.path / "wandb.json").read_text())["id"]
    assert before.history[-1]["episodes"] == 2
    assert after.history[0]["episodes"] > 2
    assert after.history[-1]["episodes"] == 5


def test_all_wandb_files_are_in_the_run_folder(run: Run, tmp_path: Path) -> None:
    evaluation = run(**OFFLINE)
    outside = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert not [path for path in outside if "log" not in path.name]
    assert list((evaluation.path / "wandb").glob("artifacts/staging/*"))  # wandb sync needs them


class CtrlC(Callback):
    """A recorder that interrupts the run at its second episode."""

    def __init__(self) -> None:
        self._ended = 0

    def on_episode_end(self, result: EpisodeResult) -> None:
        self._ended += 1
        if self._ended == 2:
            raise KeyboardInterrupt


def test_an_interrupted_run_is_marked_as_failed(tmp_path: Path) -> None:
    settings = {
        "policy.type": "random", "env.type": "fake", "eval.n_episodes": 4,
        "wandb.enable": True, "wandb.mode": "offline", "output_dir": str(tmp_path / "run"),
    }  # fmt: skip
    prepared = prepare(build(EvalConfig, settings))
    with pytest.raises(KeyboardInterrupt):
        run_evaluation(prepared, settings, lambda *_: [CtrlC()])
    (session,) = logged(tmp_path / "run")
    assert session.exit_code == 1
    assert session.summary["complete"] is False
    assert (session.files / "report.html").exists()


class BrokenWandb(types.ModuleType):
    """A W&B that fails, or never answers, at the step it is told to."""

    def __init__(self, breaks_at: str, files: Path, *, hang: bool = False) -> None:
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self._breaks_at, self._hang = breaks_at, hang
        self.offline, self.dir = True, str(files)
        self.summary: dict[str, Any] = {}
        for name in ("init", "define_metric", "log", "save", "finish", "Settings", "Table"):
            setattr(self, name, self._step(name))

    def _step(self, name: str) -> Callable[..., Any]:
        def step(*_: Any, **__: Any) -> Any:
            if name == self._breaks_at and self._hang:
                threading.Event().wait()
            if name == self._breaks_at:
                raise ConnectionError(f"{name}:\n no route to host")
            return self

        return step


@pytest.mark.parametrize("step", ["init", "log", "finish"])
def test_a_wandb_failure_costs_one_warning_and_no_episode(
    step: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", BrokenWandb(step, tmp_path))
    evaluation = run(**OFFLINE)
    assert len(evaluation.rows) == 4
    warnings = [line for line in capsys.readouterr().err.splitlines() if "W&B" in line]
    assert warnings == [f"warning: W&B: {step}: no route to host (the run itself is not affected)"]


@pytest.mark.parametrize("step", ["init", "log"])
def test_a_wandb_that_never_answers_delays_only_the_end(
    step: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", BrokenWandb(step, tmp_path, hang=True))
    monkeypatch.setattr(wandb_callback, "_START_TIMEOUT_S", 0.2)
    monkeypatch.setattr(wandb_callback, "_FINISH_TIMEOUT_S", 0.2)
    evaluation = run(**OFFLINE)
    assert len(read_journal(evaluation.path).rows) == 4
    assert "warning: W&B: no answer" in capsys.readouterr().err


def test_without_the_extra_the_run_is_refused_before_it_starts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refuses(MissingExtra, "extra.missing") as refused:
        run(**OFFLINE, output_dir=str(tmp_path / "never"))
    assert "proctor[wandb]" in str(refused.value)
    assert not (tmp_path / "never").exists()


def test_online_without_a_login_is_refused_before_it_starts(run: Run, tmp_path: Path) -> None:
    with refuses(UsageError, "wandb.not-logged-in"):
        run(wandb__enable=True, output_dir=str(tmp_path / "never"))
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("flags", [{}, {"wandb__enable": True, "wandb__mode": "disabled"}])
def test_a_run_that_is_not_logged_has_no_wandb_files(flags: dict[str, Any], run: Run) -> None:
    evaluation = run(**flags)
    assert not list(evaluation.path.glob("wandb*"))


def test_a_damaged_wandb_id_is_refused(run: Run) -> None:
    first = run(**OFFLINE, eval__n_episodes=1)
    (first.path / "wandb.json").write_text("{")
    with refuses(RunFolderError, "run.damaged") as refused:
        run(**OFFLINE, eval__n_episodes=2, resume=True, output_dir=str(first.path))
    assert "wandb.json" in str(refused.value)


def test_an_unknown_wandb_mode_is_refused() -> None:
    settings = {"policy.type": "random", "env.type": "fake", "wandb.mode": "ofline"}
    with pytest.raises(UsageError) as refused:
        build(EvalConfig, settings)
    assert "--wandb.mode" in str(refused.value)
    assert "ofline" in str(refused.value)
