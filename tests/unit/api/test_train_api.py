"""``proctor.train`` trains as the command does, and returns what ``load_run`` reads."""

from __future__ import annotations

import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'proctor[torch]'")
pytest.importorskip("pyarrow", reason="datasets need pyarrow: pip install 'proctor[dataset]'")

import proctor
from proctor import ProgressUpdate
from proctor.cli import main
from proctor.errors import RunFolderError, UsageError
from proctor.report.training.run import Training
from tests.refusals import refuses
from tests.unit.training.builders import RUN, SMALL_ACT, files_of, words, write_numbers

ACT = {name.removeprefix("policy."): value for name, value in SMALL_ACT.items()}
QUICK: dict[str, Any] = {"steps": 8, "batch_size": 4, "save_freq": 4, "log_freq": 2}
QUICK |= {"num_workers": 0}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small dataset without images."""
    return write_numbers(tmp_path_factory.mktemp("data") / "numbers")


def weights(training: Training) -> bytes:
    assert training.policy is not None
    return (training.policy / "model.safetensors").read_bytes()


def test_a_training_is_returned_as_load_run_reads_it(
    numbers: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = proctor.train(numbers, ACT, output_dir=tmp_path / "run", **QUICK)
    assert training == proctor.load_run(tmp_path / "run")
    assert (training.path, training.step, training.planned) == (tmp_path / "run", 8, 8)
    assert training.complete
    assert list(training.losses) == [2, 4, 6, 8]
    assert list(training.checkpoints) == [4, 8]
    assert repr(training).startswith("Training(step 8/8, loss ")
    assert capfd.readouterr() == ("", "")


def test_a_training_from_python_has_the_bits_of_the_command(numbers: Path, tmp_path: Path) -> None:
    settings = RUN | {"num_workers": 0}
    assert main(["train", *words(numbers, tmp_path / "command", SMALL_ACT, settings)]) == 0
    dataset = {"root": numbers, "repo_id": "someone/numbers"}
    proctor.train(dataset, ACT, output_dir=tmp_path / "python", **settings)
    one, other = (
        files_of(tmp_path / name / "checkpoints/000008") for name in ("command", "python")
    )
    assert one == other


def test_a_trained_policy_is_evaluated(tmp_path: Path) -> None:
    what = {"images": False, "extra": ["environment_state"]}
    recorded = proctor.record("expert", "fake", tmp_path / "demos", n_episodes=2, record=what)
    training = proctor.train(recorded, ACT, output_dir=tmp_path / "run", **QUICK)
    run = proctor.evaluate(
        training.policy, "fake", n_episodes=1, video={"episodes": 0}, output_dir=tmp_path / "eval"
    )
    assert run.complete


def test_a_second_training_in_the_folder_is_refused_and_resumed(
    numbers: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    proctor.train(str(numbers), ACT, output_dir=str(folder), **QUICK)
    with refuses(RunFolderError, "run.exists"):
        proctor.train(numbers, ACT, output_dir=folder, **QUICK)
    more = proctor.train(output_dir=folder, resume=True, steps=np.int64(12))
    assert (more.step, more.planned) == (12, 12)
    given = json.loads((folder / "train.json").read_text())["given"]
    assert (given["steps"], given["policy.type"], given["batch_size"]) == (12, "act", 4)
    assert main(["train", "--resume", f"--output_dir={folder}", "--steps=14"]) == 0
    assert proctor.load_run(folder).planned == 14


def test_a_file_in_place_of_the_folder_is_refused(numbers: Path, tmp_path: Path) -> None:
    file = tmp_path / "run"
    file.touch()
    with refuses(RunFolderError, "run.path-blocked"):
        proctor.train(numbers, ACT, output_dir=file, **QUICK)
    assert main(["train", *words(numbers, file, SMALL_ACT, RUN)]) == 2


def test_a_pretrained_policy_needs_a_path(numbers: Path, tmp_path: Path) -> None:
    with refuses(UsageError, "flag.missing"):
        proctor.train(numbers, "pretrained", output_dir=tmp_path / "run", **QUICK)
    assert main(["train", *words(numbers, tmp_path / "run", {"policy.type": "pretrained"})]) == 2


def test_ctrl_c_raises_after_the_checkpoint_and_the_bits_stay(
    numbers: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = proctor.train(numbers, ACT, output_dir=tmp_path / "whole", **QUICK)

    def interrupt(update: ProgressUpdate) -> None:
        if update.done == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        proctor.train(numbers, ACT, output_dir=tmp_path / "run", progress=interrupt, **QUICK)
    stopped = proctor.load_run(tmp_path / "run")
    assert isinstance(stopped, Training)
    assert list(stopped.checkpoints) == [stopped.step] == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = proctor.train(output_dir=tmp_path / "run", resume=True)
    assert weights(resumed) == weights(whole)
    assert capfd.readouterr() == ("", "")


def test_a_function_receives_steps_and_the_end(numbers: Path, tmp_path: Path) -> None:
    updates: list[ProgressUpdate] = []
    how = QUICK | {"log_freq": 100}
    proctor.train(numbers, ACT, output_dir=tmp_path / "run", progress=updates.append, **how)
    assert updates[0].done == 1, "also between log lines"
    assert (updates[-1].done, updates[-1].total) == (8, 8)
    assert updates[-1].text.startswith("step 8/8  loss ")
    assert updates[-1].rate is not None
    updates.clear()
    proctor.train(output_dir=tmp_path / "run", resume=True, progress=updates.append)
    assert [(update.done, update.total) for update in updates] == [(8, 8)]


@pytest.mark.parametrize("at", [1, 8])
def test_an_exception_of_the_function_is_raised_after_a_checkpoint(
    at: int, numbers: Path, tmp_path: Path
) -> None:
    def stop(update: ProgressUpdate) -> None:
        if update.done >= at:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        proctor.train(numbers, ACT, output_dir=tmp_path / "run", progress=stop, **QUICK)
    stopped = proctor.load_run(tmp_path / "run")
    assert isinstance(stopped, Training)
    assert max(stopped.checkpoints) == stopped.step >= at
    assert not stopped.running
    assert proctor.train(output_dir=tmp_path / "run", resume=True).complete


def test_true_shows_the_lines_of_the_command(
    numbers: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    proctor.train(numbers, ACT, output_dir=tmp_path / "run", progress=True, **QUICK)
    shown = capfd.readouterr()
    assert shown.err.splitlines()[0].startswith("act, ")
    assert shown.err.splitlines()[-1].startswith("step 8/8  loss ")
    assert shown.out == ""


def test_notes_are_issued_to_the_caller(numbers: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    proctor.train(numbers, ACT, output_dir=folder, **QUICK)
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        proctor.train(output_dir=folder, resume=True, steps=9, dataset={"episodes": [0, 1]})
    (note,) = (one for one in issued if issubclass(one.category, proctor.ProctorNote))
    assert note.filename == __file__


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"step": 3}, "flag.unknown"),
        ({"optimiser": {}}, "flag.unknown"),
        ({"optimizer": 3}, "flag.invalid-value"),
        ({"policy": lambda observation: observation}, "flag.invalid-value"),
        ({"dataset": 3}, "flag.invalid-value"),
        ({"progress": "bar"}, "flag.invalid-value"),
        ({"resume": True, "output_dir": "nowhere"}, "run.not-found"),
    ],
)
def test_a_mistake_in_an_argument_is_refused(
    settings: dict[str, Any], code: str, numbers: Path, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"dataset": numbers, "policy": ACT, "output_dir": tmp_path / "run"}
    with refuses(UsageError, code):
        proctor.train(**(how | settings))
    assert not (tmp_path / "run").exists()


def test_a_text_is_a_folder_if_there_is_one_and_else_a_hub_id(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(numbers.parent.parent)
    training = proctor.train(
        f"{numbers.parent.name}/numbers", ACT, output_dir=tmp_path / "run", **QUICK
    )
    assert training.config["dataset"]["repo_id"] == ""
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "me").mkdir(parents=True)
    (tmp_path / "home" / "me" / "numbers").symlink_to(numbers)
    training = proctor.train("me/numbers", ACT, output_dir=tmp_path / "second", **QUICK)
    assert training.config["dataset"]["repo_id"] == "me/numbers"
