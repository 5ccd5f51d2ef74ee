"""Evaluations of checkpoints during training: one at a time, and failures do not stop it."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import pytest

from .builders import FEATURES, RUN, SMALL_ACT, words, write_numbers

pytest.importorskip("torch")

from proctor.cli import main
from proctor.config.builder import build
from proctor.config.training import TrainConfig
from proctor.runs.training import EvaluationLogRow
from proctor.system.locks import acquire_lock
from proctor.training.checkpoints import evaluation as checkpoint_evaluation
from proctor.training.checkpoints.evaluation import CheckpointEvaluator
from proctor.training.checkpoints.saving import Checkpoints

PLAY = """
import json, sys
from pathlib import Path
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
folder = Path(flags["output_dir"])
step = int(folder.name)
if step == 4:
    sys.exit("no display here")
folder.mkdir(parents=True, exist_ok=True)
(folder / "words.json").write_text(json.dumps(sys.argv[1:]))
rate, n = {2: (50.0, 10), 6: (90.0, 10), 8: (100.0, 1)}[step]  # nine of the last were lost
overall = {"pc_success": rate, "n_episodes": n, "pc_success_interval95": [1.0, 99.0]}
overall["n_errors"] = 10 - n
info = {"overall": overall, "proctor": {"complete": True}}
(folder / "eval_info.json").write_text(json.dumps(info))
"""
WITHOUT_RATE = '{"kind": "evaluation", "step": 6, "pc_success": null, "problem": "killed"}'
ENV = {"env.type": "fake", "env_eval_freq": 2, "eval.n_episodes": 3}


@pytest.fixture
def config(tmp_path) -> TrainConfig:
    asked = {"policy.type": "act", "dataset.repo_id": "x/y", **ENV, "seed": 7}
    return build(TrainConfig, asked)


@pytest.fixture
def command(tmp_path, monkeypatch) -> tuple[str, ...]:
    script = tmp_path / "play.py"
    script.write_text(PLAY)
    return (sys.executable, str(script))


def checkpoint(tmp_path, step: int) -> Path:
    return tmp_path / "checkpoints" / f"{step:06d}"


def test_checkpoints_are_played_in_turn_and_a_crash_costs_one_line(tmp_path, config, command):
    evaluator = CheckpointEvaluator(config, tmp_path / "eval", command)
    for step in (2, 4, 6):
        evaluator.submit(checkpoint(tmp_path, step))
    assert evaluator.pending == {2, 4, 6}
    first, broken, last = evaluator.wait_for_all()
    assert str(first) == "step 2: success 50.0% [1.0, 99.0] n=10"
    assert broken.problem is not None
    assert "exit code 1, no display here" in broken.problem
    assert last == EvaluationLogRow(6, 90.0, (1.0, 99.0), 10)
    assert evaluator.pending == frozenset()


def test_one_that_cannot_be_started_costs_one_line_too(tmp_path, config):
    evaluator = CheckpointEvaluator(config, tmp_path / "eval", (str(tmp_path / "no such command"),))
    for step in (2, 6):
        evaluator.submit(checkpoint(tmp_path, step))
    assert evaluator.pending == frozenset()
    problem = "the evaluation could not be started: No such file or directory"
    assert list(evaluator.finished()) == [
        EvaluationLogRow(2, problem=problem),
        EvaluationLogRow(6, problem=problem),
    ]
    assert list(evaluator.wait_for_all()) == []


def test_what_was_played_to_its_end_is_not_played_again(tmp_path, config, command):
    evaluator = CheckpointEvaluator(config, tmp_path / "eval", command)
    evaluator.submit(checkpoint(tmp_path, 2))
    assert len(list(evaluator.wait_for_all())) == 1
    evaluator.submit(checkpoint(tmp_path, 2))
    assert evaluator.pending == frozenset()


@pytest.mark.parametrize("other_completes", [True, False])
def test_one_whose_folder_is_in_use_waits_for_the_other_process(
    tmp_path, config, command, other_completes, monkeypatch
):
    folder = tmp_path / "eval/000002"
    folder.mkdir(parents=True)
    lock = acquire_lock(folder)
    evaluator = CheckpointEvaluator(config, tmp_path / "eval", command)
    evaluator.submit(checkpoint(tmp_path, 2))
    assert list(evaluator.finished()) == []
    assert evaluator.pending == {2}

    def other_process_ends(_: float) -> None:
        if other_completes:
            overall = {"pc_success": 30.0, "n_episodes": 10}
            info = {"overall": overall, "proctor": {"complete": True}}
            (folder / "eval_info.json").write_text(json.dumps(info))
        lock.release()

    monkeypatch.setattr(checkpoint_evaluation.time, "sleep", other_process_ends)
    (row,) = evaluator.wait_for_all()
    assert (row.problem, row.pc_success) == (None, 30.0 if other_completes else 50.0)


def test_one_that_finds_its_folder_in_use_is_tried_again(tmp_path, config, monkeypatch):
    script = tmp_path / "refused.py"
    script.write_text("import sys; sys.exit(2)")
    evaluator = CheckpointEvaluator(config, tmp_path / "eval", (sys.executable, str(script)))
    evaluator.submit(checkpoint(tmp_path, 2))
    (tmp_path / "eval/000002").mkdir()
    lock = acquire_lock(tmp_path / "eval/000002")  # after the evaluator has looked
    monkeypatch.setattr(checkpoint_evaluation.time, "sleep", lambda _: lock.release())
    (row,) = evaluator.wait_for_all()
    assert row.problem is not None
    assert evaluator.pending == frozenset()


def test_broken_episodes_of_an_evaluation_are_counted(tmp_path, config):
    folder = tmp_path / "eval/000002"
    folder.mkdir(parents=True)
    overall = {"pc_success": 0.0, "n_episodes": 2, "n_errors": 1}
    info = {"overall": overall, "proctor": {"complete": True}}
    (folder / "eval_info.json").write_text(json.dumps(info))
    row = CheckpointEvaluator(config, tmp_path / "eval").result_of(checkpoint(tmp_path, 2))
    assert row is not None
    assert (row.episodes, row.errors) == (2, 1)
    assert str(row) == "step 2: success 0.0% n=2, 1 error (0.0% to 33.3% if it had counted)"


def test_the_command_plays_the_same_episodes_of_every_checkpoint(tmp_path, config):
    evaluator = CheckpointEvaluator(config, tmp_path / "eval")
    one, other = (evaluator.eval_flags(checkpoint(tmp_path, step)) for step in (2, 4))
    assert "--env.type=fake" in one
    assert "--eval.n_episodes=3" in one
    assert "--seed=2000007" in one
    assert f"--policy.path={checkpoint(tmp_path, 2)}/pretrained_model" in one
    assert {word for word in one if "000002" not in word} == {w for w in other if "000004" not in w}
    (tmp_path / "eval/000002").mkdir(parents=True)
    (tmp_path / "eval/000002/run.json").write_text("{}")
    again = evaluator.eval_flags(checkpoint(tmp_path, 2))
    assert again == ["--resume", f"--output_dir={tmp_path / 'eval/000002'}"]
    config.env.command = "docker run image"
    again = evaluator.eval_flags(checkpoint(tmp_path, 2))
    assert "--env.command=docker run image" in again, "a file cannot name a program"


def test_the_best_checkpoint_is_the_one_that_succeeds_most_and_is_kept(
    numbers, tmp_path, monkeypatch, command
):
    monkeypatch.setattr(
        checkpoint_evaluation.CheckpointEvaluator.__init__, "__defaults__", (command,)
    )
    keep = {"keep_last": 1, "keep_best": 1}
    assert main(["train", *words(numbers, tmp_path / "run", SMALL_ACT, RUN, ENV, keep)]) == 0
    checkpoints = tmp_path / "run/checkpoints"
    assert (checkpoints / "best").readlink() == Path("000006")
    names = {path.name for path in checkpoints.iterdir()}
    assert names == {"000006", "000008", "best", "last"}
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").open()]
    played = {line["step"]: line["pc_success"] for line in lines if line["kind"] == "evaluation"}
    assert played == {2: 50.0, 4: None, 6: 90.0, 8: 100.0}, "nine errors count as failures"


@pytest.mark.parametrize("logged", [[], [WITHOUT_RATE]], ids=["no line", "no rate"])
def test_an_evaluation_that_ended_after_its_training_was_killed_is_written_down_on_resume(
    numbers, tmp_path, monkeypatch, command, logged
):
    monkeypatch.setattr(
        checkpoint_evaluation.CheckpointEvaluator.__init__, "__defaults__", (command,)
    )
    run = tmp_path / "run"
    assert main(["train", *words(numbers, run, SMALL_ACT, RUN, ENV)]) == 0
    start = '{"kind": "evaluation", "step": 6,'
    before = (run / "log.jsonl").read_text().splitlines()
    kept = [line for line in before if not line.startswith(start)]
    (run / "log.jsonl").write_text("".join(f"{line}\n" for line in [*kept, *logged]))
    for _ in range(2):  # once, and not again
        assert main(["train", "--resume", f"--output_dir={run}"]) == 0
        after = (run / "log.jsonl").read_text().splitlines()
        found = [line for line in after if line.startswith(start)]
        assert found == [*logged, *(line for line in before if line.startswith(start))]
        assert len(found) == len(logged) + 1
    assert (run / "checkpoints/best").readlink() == Path("000006")


def test_the_best_that_is_named_is_one_that_is_there(numbers, tmp_path, monkeypatch, command):
    monkeypatch.setattr(
        checkpoint_evaluation.CheckpointEvaluator.__init__, "__defaults__", (command,)
    )
    settings = (SMALL_ACT, RUN, ENV, {"keep_last": 1})
    assert main(["train", *words(numbers, tmp_path / "run", *settings)]) == 0
    checkpoints = tmp_path / "run/checkpoints"
    assert {path.name for path in checkpoints.iterdir()} == {"000008", "best", "last"}
    assert (checkpoints / "best").readlink() == Path("000008")


def test_no_best_is_named_where_those_that_were_played_are_gone(
    numbers, tmp_path, monkeypatch, command
):
    monkeypatch.setattr(
        checkpoint_evaluation.CheckpointEvaluator.__init__, "__defaults__", (command,)
    )
    settings = (SMALL_ACT, RUN, ENV, {"keep_last": 1, "steps": 2})
    assert main(["train", *words(numbers, tmp_path / "run", *settings)]) == 0
    best = tmp_path / "run/checkpoints/best"
    assert best.readlink() == Path("000002")
    resume = ["train", "--resume", f"--output_dir={tmp_path / 'run'}", "--env_eval_freq=0"]
    assert main([*resume, "--steps=4"]) == 0
    assert not best.is_symlink()


def test_the_last_checkpoint_is_played_however_seldom_others_are(
    numbers, tmp_path, monkeypatch, command, capsys
):
    monkeypatch.setattr(
        checkpoint_evaluation.CheckpointEvaluator.__init__, "__defaults__", (command,)
    )
    often = {"env_eval_freq": 20_000}
    assert main(["train", *words(numbers, tmp_path / "run", SMALL_ACT, RUN, ENV, often)]) == 0
    assert "step 8: success 100.0% [1.0, 99.0] n=1, 9 errors" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run/eval").glob("*/")] == ["000008"]


def test_checkpoints_that_are_compared_are_played_alike_after_a_resume_too(
    numbers, tmp_path, monkeypatch, command, capsys
):
    monkeypatch.setattr(
        checkpoint_evaluation.CheckpointEvaluator.__init__, "__defaults__", (command,)
    )
    run = tmp_path / "run"
    assert main(["train", *words(numbers, run, SMALL_ACT, RUN, ENV, {"steps": 2})]) == 0
    before = (run / "train.json").read_bytes()
    resume = ["train", "--resume", f"--output_dir={run}", "--steps=6"]
    assert main([*resume, "--eval.n_episodes=4"]) == 2
    said = capsys.readouterr().err
    assert "--eval.n_episodes was 3, now 4" in said
    assert (run / "train.json").read_bytes() == before
    assert main([*resume, "--eval.batch_size=2"]) == 0  # how, not what


def test_averages_and_weights_are_not_compared_with_each_other(
    numbers, tmp_path, monkeypatch, command, capsys
):
    monkeypatch.setattr(
        checkpoint_evaluation.CheckpointEvaluator.__init__, "__defaults__", (command,)
    )
    run, averaged = tmp_path / "run", {"steps": 2, "ema.enable": "true"}
    assert main(["train", *words(numbers, run, SMALL_ACT, RUN, ENV, averaged)]) == 0
    assert "000002/pretrained_model_ema, which evaluations use\n" in capsys.readouterr().out
    resume = ["train", "--resume", f"--output_dir={run}", "--steps=4"]
    for flag in ("--ema.use_for_eval=false", "--ema.enable=false"):
        assert main([*resume, flag]) == 2
        assert "--ema.use_for_eval was True, now" in capsys.readouterr().err
    assert main(resume) == 0


def test_a_disk_that_cannot_name_the_best_is_one_line(
    numbers, tmp_path, monkeypatch, command, capsys
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(
        checkpoint_evaluation.CheckpointEvaluator.__init__, "__defaults__", (command,)
    )
    monkeypatch.setattr(Checkpoints, "keep", full)
    settings = (SMALL_ACT, RUN, ENV, {"keep_last": 1})
    assert main(["train", *words(numbers, tmp_path / "run", *settings)]) == 2
    said = capsys.readouterr().err
    assert "checkpoints: No space left on device" in said
    assert "Traceback" not in said


def test_a_policy_that_the_world_cannot_play_is_refused_before_it_is_trained(tmp_path, capsys):
    action = {"action": {"dtype": "float32", "shape": [3], "names": None}}
    other = write_numbers(tmp_path / "other", (6,), FEATURES | action)
    assert main(["train", *words(other, tmp_path / "run", SMALL_ACT, RUN, ENV)]) == 2
    said = capsys.readouterr().err
    assert "the policy's actions have 3 numbers, fake takes 2" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_checkpoint_is_really_played_while_training_goes_on(numbers, tmp_path):
    assert main(["train", *words(numbers, tmp_path / "run", SMALL_ACT, RUN, ENV)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").open()]
    played = [line for line in lines if line["kind"] == "evaluation"]
    assert [line["step"] for line in played] == [2, 4, 6, 8]
    assert all(line["episodes"] == 3 and line["problem"] is None for line in played)
    run = json.loads((tmp_path / "run/eval/000008/run.json").read_text())
    assert run["config"]["resolved"]["seed"] == 2_001_000, "eval begins at 1000"
