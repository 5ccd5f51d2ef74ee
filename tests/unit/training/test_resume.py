"""Resumed trainings: changed settings, and files that exist already."""

from __future__ import annotations

import json
import shutil

import pytest

from .builders import RUN, SMALL_ACT, SMALL_LANGUAGE_ACT, files_of, words

pytest.importorskip("torch")

from proctor.cli import main
from proctor.training.checkpoints.saving import Checkpoints

PLAIN = {"dataset.balance_tasks": "false", "dataset.paraphrase_tasks": "false"}


def train(*settings, expect=0) -> None:
    assert main(["train", *settings]) == expect


def test_what_a_resumed_run_was_asked_for_holds_for_the_next_one_too(numbers, tmp_path):
    run = tmp_path / "run"
    train(*words(numbers, run, SMALL_ACT, RUN))
    train("--resume", f"--output_dir={run}", "--steps=12")
    shutil.rmtree(run / "checkpoints/000012")  # as if it had been killed before it was there
    (run / "checkpoints/last").unlink()
    train("--resume", f"--output_dir={run}")
    assert Checkpoints(run / "checkpoints").newest().name == "000012"
    assert json.loads((run / "train.json").read_text())["given"]["policy.type"] == "act"


def group_of(run, step) -> dict:
    file = run / f"checkpoints/{step:06}/training_state/optimizer_param_groups.json"
    return json.loads(file.read_text())[0]


def test_a_resumed_optimiser_keeps_its_type_and_takes_given_hyperparameters(
    numbers, tmp_path, capsys
):
    run = tmp_path / "run"
    train(*words(numbers, run, SMALL_ACT, RUN, {"optimizer.lr": "1e-3", "steps": 2}))
    resume = ["--resume", f"--output_dir={run}"]
    train(*resume, "--optimizer.type=sgd", "--steps=4", expect=2)
    assert "--optimizer.type" in capsys.readouterr().err
    train(*resume, "--optimizer.lr=1e-4", "--optimizer.betas=[0.9,0.98]", "--steps=4")
    assert (group_of(run, 4)["lr"], group_of(run, 4)["betas"]) == (1e-4, [0.9, 0.98])
    train(*resume, "--steps=6")  # holds for later sessions, too
    assert (group_of(run, 6)["lr"], group_of(run, 6)["betas"]) == (1e-4, [0.9, 0.98])


def test_a_resumed_training_takes_another_schedule_and_rate(numbers, tmp_path):
    run, decay = tmp_path / "run", "--scheduler.num_decay_steps={}"
    stable = ["--scheduler.type=warmup_stable_decay", "--scheduler.num_warmup_steps=0"]
    train(*words(numbers, run, SMALL_ACT, RUN, {"optimizer.lr": "1e-3", "steps": 2}))
    resume = ["--resume", f"--output_dir={run}"]
    train(*resume, *stable, decay.format(0), "--steps=4")  # it had no schedule before
    assert group_of(run, 4)["lr"] == 1e-3
    train(*resume, decay.format(4), "--optimizer.lr=4e-4", "--steps=8")
    assert [group_of(run, step)["lr"] for step in (6, 8)] == pytest.approx([2e-4, 0.0])
    assert group_of(run, 8)["initial_lr"] == 4e-4
    train(*resume, "--scheduler.type=constant_with_warmup", "--steps=10")  # it has no decay steps
    assert group_of(run, 10)["lr"] == 4e-4


def test_a_run_that_goes_on_from_an_earlier_checkpoint_mixes_with_nothing_later(
    numbers, tmp_path, capsys
):
    run, first = tmp_path / "run", tmp_path / "first"
    train(*words(numbers, run, SMALL_ACT, RUN))
    shutil.copytree(run / "checkpoints/000008", first)
    (run / "eval/000006").mkdir(parents=True)  # of weights that there will be no more
    config = run / "checkpoints/000004/pretrained_model/train_config.json"
    train("--resume", f"--config_path={config}", "--batch_size=2", "--keep_last=1")
    said = capsys.readouterr().err
    assert "checkpoints/000006.old1, checkpoints" in said
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"000008", "last", "000006.old1", "000008.old1"}
    assert files_of(run / "checkpoints/000008.old1") == files_of(first)
    assert [path.name for path in (run / "eval").iterdir()] == ["000006.old1"]


def test_evaluations_of_a_checkpoint_that_is_gone_are_of_none_that_takes_its_name(
    numbers, tmp_path, capsys
):
    run = tmp_path / "run"
    train(*words(numbers, run, SMALL_ACT, RUN, {"steps": 4}))
    (run / "eval/000004").mkdir(parents=True)
    shutil.rmtree(run / "checkpoints/000004")
    train("--resume", f"--output_dir={run}", "--batch_size=2")
    assert "eval/000004.old1" in capsys.readouterr().err


def test_no_update_is_made_of_fewer_batches_than_the_others(numbers, tmp_path, capsys):
    run = tmp_path / "run"
    train(*words(numbers, run, SMALL_ACT, RUN, {"steps": 2}))
    three = ["--accelerator.gradient_accumulation.steps=3", "--steps=6", "--save_freq=3"]
    train("--resume", f"--output_dir={run}", *three, expect=2)
    assert "--accelerator.gradient_accumulation.steps" in capsys.readouterr().err


def test_a_training_records_the_step_that_last_meant_when_it_was_started(
    numbers, tmp_path, monkeypatch
):
    first, second = tmp_path / "first", tmp_path / "second"
    train(*words(numbers, first, SMALL_ACT, RUN, {"steps": 4}))
    monkeypatch.chdir(tmp_path)
    last = {"policy.path": "first/checkpoints/last/pretrained_model", "policy.device": "cpu"}
    train(*words(numbers, second, RUN, last, {"steps": 2}))
    train("--resume", f"--output_dir={first}", "--steps=6")  # moves last
    meant = str(first / "checkpoints/000004/pretrained_model")
    record = json.loads((second / "train.json").read_text())
    assert record["given"]["policy.path"] == meant
    assert record["resolved"]["policy"]["path"] == meant
    assert record["resumed_step"] is None
    resumed = json.loads((first / "train.json").read_text())
    assert resumed["resumed_step"] == 4
    assert resumed["resolved"]["policy"]["path"] == meant


def test_a_checkpoints_settings_begin_a_new_training_in_a_folder_of_its_own(
    numbers, tmp_path, monkeypatch, capsys
):
    run = tmp_path / "run"
    train(*words(numbers, run, SMALL_ACT, RUN, {"steps": 2}))
    train("--resume", f"--output_dir={run}", "--steps=4")  # so that the file says resume
    before = files_of(run)
    config = run / "checkpoints/000004/pretrained_model/train_config.json"
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    train(f"--config_path={config}", "--steps=2")
    assert f"proctor train --resume --config_path={config}" in capsys.readouterr().err
    (new,) = (tmp_path / "outputs/train").glob("*/*")
    assert files_of(new / "checkpoints/000002") == files_of(run / "checkpoints/000002")
    assert files_of(run) == before


def test_a_config_file_that_says_resume_is_told_what_to_type(numbers, tmp_path, capsys):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"resume": True, "output_dir": str(tmp_path / "run")}))
    train(*words(numbers, tmp_path / "run", SMALL_ACT, RUN), f"--config_path={file}", expect=2)
    assert "proctor train --resume --output_dir=FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag",
    [
        "--seed=7",
        "--batch_size=3",
        "--dataset.balance_tasks=true",
        "--dataset.paraphrase_tasks=true",
        "--dataset.episodes=[0,1]",
    ],
)
def test_a_change_of_the_samples_is_noted(numbers, tmp_path, capsys, flag):
    run = tmp_path / "run"
    train(*words(numbers, run, SMALL_LANGUAGE_ACT, RUN, PLAIN, {"steps": 2}))
    capsys.readouterr()
    train("--resume", f"--output_dir={run}", "--steps=4")
    assert not notes_in(capsys)
    train("--resume", f"--output_dir={run}", "--steps=6", flag)
    (note,) = notes_in(capsys)
    assert "episodes" in flag or flag.partition("=")[0] in note
    train("--resume", f"--output_dir={run}", "--steps=8")
    assert not notes_in(capsys)


def notes_in(capsys) -> list[str]:
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if line.startswith("note: ")]
