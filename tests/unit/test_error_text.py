"""A simulator's error text may have any length and content; the text that is shown may not."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from proctor.benchmarks.base import BenchmarkPlugin
from proctor.benchmarks.fake import Fake, FakeConfig
from proctor.callbacks.progress import Progress
from proctor.cli import main
from proctor.errors import WorkerError, printable_text, strip_control_codes, summarize_traceback
from proctor.evaluation.run import Evaluation
from proctor.runs.journal import JOURNAL_FILE
from proctor.types import EpisodeResult, Outcome
from tests.refusals import refuses

HOSTILE_TEXT = "boom \x1b[2J\x1b]0;owned\x07 \r\x9b31m \u202e end"


@pytest.mark.parametrize("use_async_envs", [True, False])
def test_an_error_of_10_megabytes_is_cut_where_it_is_made(
    run: Callable[..., Evaluation], use_async_envs: bool
) -> None:
    evaluation = run(
        env__faults={"0/0/0": "talk"},
        eval__n_episodes=1,
        eval__max_retries=0,
        eval__use_async_envs=use_async_envs,
    )
    (row,) = evaluation.rows
    assert row.error is not None
    assert len(row.error) < 9000
    assert row.error.startswith("Traceback")
    assert "characters left out here" in row.error
    assert row.error.endswith("broke at 0/0/0")
    assert (evaluation.path / JOURNAL_FILE).stat().st_size < 60_000


def printable(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


def test_control_codes_of_a_simulators_error_never_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen = io.StringIO()
    spec = Fake(FakeConfig()).spec(Fake(FakeConfig()).tasks()[0], 0, 0)
    progress = Progress([spec], [], Console(file=screen, force_terminal=False))
    error = f"Traceback\n  {HOSTILE_TEXT}\nRuntimeError: {HOSTILE_TEXT}"
    progress.on_episode_end(EpisodeResult(spec, Outcome.DIVERGED, error=error))
    progress.close()
    assert "diverged: point-0 episode 0 (seed 0): RuntimeError: boom \\x1b[2J" in screen.getvalue()
    assert printable(screen.getvalue())
    assert printable(printable_text(error))
    assert printable_text(error).count("\n") == 2
    assert printable(summarize_traceback(error))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("use_async_envs", [True, False])
def test_control_codes_of_a_lockstep_error_never_reach_the_terminal(
    run: Callable[..., Evaluation],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    use_async_envs: bool,
) -> None:
    with refuses(WorkerError, "worker.failed") as caught:
        run(
            env__faults={"0/1/3": "talk"},
            env__break_once_in=str(tmp_path),
            eval__n_episodes=2,
            eval__scheduler="lockstep",
            eval__use_async_envs=use_async_envs,
        )
    assert printable(f"{caught.value}{caught.value.__cause__}")
    assert "broke at 0/1/3" in str(caught.value)
    assert printable(capfd.readouterr().err)


class NoStart(Fake):
    """Cannot be made inside a worker."""

    def __init__(self, config: FakeConfig) -> None:
        import multiprocessing

        if multiprocessing.parent_process() is not None:
            raise RuntimeError(HOSTILE_TEXT)
        super().__init__(config)


NO_START = BenchmarkPlugin(FakeConfig, NoStart, "cannot start")


def test_control_codes_of_a_failed_worker_start_never_reach_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(["eval", "--policy.type=random", "--env.type=tests.unit.test_error_text:NO_START",
                 f"--output_dir={tmp_path / 'run'}"])  # fmt: skip
    said = capfd.readouterr().err
    assert code != 0
    assert "workers cannot start: RuntimeError: boom \\x1b[2J" in said
    assert printable(said)


def test_stripping_control_codes_of_a_long_text_is_fast() -> None:
    began = time.process_time()
    shown = strip_control_codes("\x1b" * 50_000_000)
    assert time.process_time() - began < 1.0
    assert len(shown) < 1100


def test_a_traceback_is_summarised_as_its_exception_and_location() -> None:
    told = (
        'Traceback (most recent call last):\n  File "/a/b/envs/car.py", line 7, in reset\n'
        "    raise ValueError(text)\nValueError: no road\n  after this\ncorner\n\n"
        "Exception ignored in: <function Env.__del__>\nbye"
    )
    assert summarize_traceback(told) == "ValueError: no road   after this corner (envs/car.py:7)"
    assert summarize_traceback("one\ntwo") == "two"
    assert summarize_traceback("") == "no reason given"
