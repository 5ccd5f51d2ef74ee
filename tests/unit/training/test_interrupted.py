"""A stop signal writes a checkpoint, and the resumed training ends with the same bits."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
from scripts import tutorial

from .builders import RUN, SMALL_ACT, SMALL_DIFFUSION, files_of, words, write_seen

torch = pytest.importorskip("torch")

from proctor.cli import main  # noqa: E402
from proctor.training import loop, setup  # noqa: E402
from proctor.training.checkpoints.evaluation import CheckpointEvaluator  # noqa: E402
from proctor.training.checkpoints.saving import Checkpoints  # noqa: E402
from proctor.training.metrics import monitor  # noqa: E402
from proctor.training.metrics.stopping import StopRequests  # noqa: E402

LONG = RUN | {"save_freq": 100, "log_freq": 1}
SPLIT = {"dataset.eval_split": 0.5, "eval_steps": 2}


@pytest.fixture(autouse=True)
def hang_ups() -> Iterator[None]:
    """Restore the handling of SIGHUP, which stays ignored after the first."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def after_step(monkeypatch) -> Callable[[int, Callable[[], None]], None]:
    """Call a function within a step of the training."""

    def patch(number: int, then: Callable[[], None]) -> None:
        update = loop.Trainer.step

        def step(self, batch, tracker):
            update(self, batch, tracker)
            if self.trainer_state.step == number:
                then()

        monkeypatch.setattr(loop.Trainer, "step", step)

    return patch


def send(signum: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), signum)


def train(*flags: str, expect: int = 0) -> None:
    assert main(["train", *flags]) == expect


def resume(run: Path, expect: int = 0) -> None:
    train("--resume", f"--output_dir={run}", expect=expect)


def names(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").iterdir()}


def rows(run: Path, kind: str = "train", log: str = "log.jsonl") -> list[int]:
    lines = [json.loads(line) for line in (run / log).open()]
    return [line["step"] for line in lines if line["kind"] == kind]


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_writes_a_checkpoint_and_the_resumed_training_ends_in_the_same_bits(
    numbers, tmp_path, monkeypatch, after_step, capfd, signum, code
):
    run, whole = tmp_path / "run", tmp_path / "whole"
    train(*words(numbers, whole, SMALL_ACT, LONG))
    after_step(3, lambda: send(signum))
    capfd.readouterr()
    train(*words(numbers, run, SMALL_ACT, LONG), expect=code)
    said = capfd.readouterr().err
    assert "stopping after this step" in said
    assert f"after step 3: its checkpoint is complete ({run}/checkpoints/000003)" in said
    assert f"proctor train --resume --output_dir={run}" in said
    assert names(run) == {"000003", "last"}
    monkeypatch.undo()
    resume(run)
    assert files_of(run / "checkpoints/000008") == files_of(whole / "checkpoints/000008")
    assert names(run) == {"000008", "last"}  # the interim checkpoint made way
    assert rows(run) == rows(whole) == list(range(1, 9))


def test_gradients_that_are_being_accumulated_are_not_lost(
    numbers, tmp_path, monkeypatch, after_step
):
    run, whole = tmp_path / "run", tmp_path / "whole"
    updates = {"accelerator.gradient_accumulation.steps": 4, "ema.enable": "true"}
    asked = (SMALL_DIFFUSION, LONG, updates)
    train(*words(numbers, whole, *asked))
    after_step(1, send)
    train(*words(numbers, run, *asked), expect=130)
    assert names(run) == {"000004", "last"}
    monkeypatch.undo()
    resume(run)
    assert files_of(run / "checkpoints/000008") == files_of(whole / "checkpoints/000008")


def test_a_second_signal_leaves_at_once_and_says_what_is_lost(
    numbers, tmp_path, monkeypatch, after_step, capfd
):
    run = tmp_path / "run"
    monkeypatch.setattr("proctor.training.metrics.stopping._SAME_REQUEST_S", 0.0)

    def twice() -> None:
        send()
        send()

    after_step(5, twice)
    train(*words(numbers, run, SMALL_ACT, LONG, {"save_freq": 2}), expect=130)
    said = capfd.readouterr().err
    assert "steps 5 to 5 are" not in said
    assert "after step 5: step 5 is lost, the newest checkpoint is that of step 4" in said
    assert f"proctor train --resume --output_dir={run}" in said
    assert names(run) == {"000002", "000004", "last"}


def test_signals_at_the_same_moment_are_one_request(numbers, tmp_path, monkeypatch, after_step):
    """``timeout`` sends its signal to the process and to its process group."""
    monkeypatch.setattr("proctor.training.metrics.stopping._SAME_REQUEST_S", 60.0)

    def twice() -> None:
        send(signal.SIGTERM)
        send(signal.SIGTERM)

    after_step(3, twice)
    train(*words(numbers, tmp_path / "run", SMALL_ACT, LONG), expect=130)
    assert names(tmp_path / "run") == {"000003", "last"}


def test_a_training_without_a_checkpoint_is_begun_anew_and_its_log_is_kept(
    numbers, tmp_path, monkeypatch, after_step, capfd
):
    run, whole = tmp_path / "run", tmp_path / "whole"
    asked = words(numbers, run, SMALL_ACT, LONG)

    def crash() -> None:
        raise RuntimeError("out of memory")

    after_step(4, crash)
    with pytest.raises(RuntimeError):
        main(["train", *asked])
    assert not (run / "checkpoints").exists()
    monkeypatch.undo()
    train(*asked)
    assert rows(run, log="log.jsonl.old1") == [1, 2, 3]
    assert rows(run) == list(range(1, 9))
    train(*words(numbers, whole, SMALL_ACT, LONG))
    assert files_of(run / "checkpoints/000008") == files_of(whole / "checkpoints/000008")
    assert len(json.loads((run / "train.json").read_text())["sessions"]) == 1
    capfd.readouterr()
    train(*asked, expect=2)  # a checkpoint is never overwritten
    assert "--resume" in capfd.readouterr().err


def test_a_resumed_training_without_a_checkpoint_keeps_its_log_and_takes_policy_flags(
    numbers, tmp_path, monkeypatch, after_step
):
    run = tmp_path / "run"

    def crash() -> None:
        raise RuntimeError("out of memory")

    after_step(4, crash)
    with pytest.raises(RuntimeError):
        main(["train", *words(numbers, run, SMALL_ACT, LONG)])
    monkeypatch.undo()
    train("--resume", f"--output_dir={run}", "--policy.dim_feedforward=12")
    assert rows(run, log="log.jsonl.old1") == [1, 2, 3]
    assert rows(run) == list(range(1, 9))
    given = json.loads((run / "train.json").read_text())["given"]
    assert str(given["policy.dim_feedforward"]) == "12"
    assert given["policy.type"] == "act"


def test_lines_of_the_log_that_are_run_again_are_kept_under_another_name(numbers, tmp_path, capsys):
    run = tmp_path / "run"
    train(*words(numbers, run, SMALL_ACT, LONG, {"save_freq": 4}))
    shutil.rmtree(run / "checkpoints/000008")  # as if it had been killed before it was there
    (run / "checkpoints/last").unlink()
    with (run / "log.jsonl").open("a") as log:
        log.write('{"kind": "tra')  # cut off by the kill
    resume(run)
    assert rows(run, log="log.jsonl.old1") == list(range(1, 9))
    assert rows(run) == list(range(1, 9))
    assert "log.jsonl.old1" in capsys.readouterr().err
    resume(run)
    assert not (run / "log.jsonl.old2").exists()


def test_a_signal_during_validation_stops_it_and_the_resumed_training_computes_it(
    numbers, tmp_path, monkeypatch
):
    run, whole = tmp_path / "run", tmp_path / "whole"
    train(*words(numbers, whole, SMALL_ACT, LONG, SPLIT))
    validate = loop.Trainer.validation_loss

    def interrupted(self, stop):
        if self.trainer_state.step == 4:
            send()
        return validate(self, stop)

    monkeypatch.setattr(loop.Trainer, "validation_loss", interrupted)
    train(*words(numbers, run, SMALL_ACT, LONG, SPLIT), expect=130)
    assert names(run) == {"000004", "last"}
    assert rows(run, "held_out") == [2]
    monkeypatch.undo()
    resume(run)
    assert rows(run, "held_out") == rows(whole, "held_out") == [2, 4, 6, 8]
    kinds = [json.loads(line) for line in (run / "log.jsonl").open()]
    expected = [json.loads(line) for line in (whole / "log.jsonl").open()]
    losses = [[n["loss"] for n in log if n["kind"] == "held_out"] for log in (kinds, expected)]
    assert losses[0] == losses[1]
    assert files_of(run / "checkpoints/000008") == files_of(whole / "checkpoints/000008")


def test_a_signal_while_a_checkpoint_is_written_writes_no_second_one(
    numbers, tmp_path, monkeypatch
):
    write = loop.Trainer.write_checkpoint

    def interrupted(self, *given):
        send()
        write(self, *given)

    monkeypatch.setattr(loop.Trainer, "write_checkpoint", interrupted)
    run = tmp_path / "run"
    train(*words(numbers, run, SMALL_ACT, LONG, {"save_freq": 4}), expect=130)
    assert names(run) == {"000004", "last"}
    assert not Checkpoints(run / "checkpoints").is_interim(run / "checkpoints/000004")


def test_a_signal_while_a_batch_is_awaited_stops_there(numbers, tmp_path, monkeypatch, capfd):
    awaited = setup.TrainingSetup.batches

    def stalled(*given):
        for number, batch in enumerate(awaited(*given)):
            if number == 3:
                send()
                raise AssertionError("the exception was to come first")
            yield batch

    monkeypatch.setattr(setup.TrainingSetup, "batches", stalled)
    run = tmp_path / "run"
    train(*words(numbers, run, SMALL_ACT, LONG), expect=130)
    assert names(run) == {"000003", "last"}
    assert "after step 3: its checkpoint is complete" in capfd.readouterr().err


@pytest.mark.parametrize("where", ["select_dataset", "fill_caches"])
def test_a_signal_before_the_first_step_says_that_there_is_nothing_to_save(
    numbers, tmp_path, monkeypatch, capfd, where
):
    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        if where == "select_dataset":
            patched.setattr(setup, where, lambda config: send())
        else:
            patched.setattr(setup.TrainingSetup, where, lambda self, shown: send())
        train(*words(numbers, run, SMALL_ACT, LONG), expect=130)
    assert "before the first step: nothing to save" in capfd.readouterr().err
    train(*words(numbers, run, SMALL_ACT, LONG))  # nothing is in the way


def test_an_evaluation_that_the_signal_stopped_too_is_no_failure(
    numbers, tmp_path, monkeypatch, after_step
):
    """Ctrl-C reaches all processes of a terminal: the evaluation ends with exit code 130."""
    running = []

    def started(self, checkpoint):
        running.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return running[-1]

    def send_to_both() -> None:
        send()
        running[0].send_signal(signal.SIGINT)
        running[0].wait()

    monkeypatch.setattr(CheckpointEvaluator, "_started", started)
    after_step(4, send_to_both)
    played = {"env.type": "fake", "env_eval_freq": 2, "eval.n_episodes": 1}
    run = tmp_path / "run"
    train(*words(numbers, run, SMALL_ACT, LONG, played), expect=130)
    assert len(running) == 1  # none is begun while the training stops
    assert rows(run, "evaluation") == []


def test_a_full_disk_on_a_signal_says_what_is_kept(
    numbers, tmp_path, monkeypatch, after_step, capfd
):
    run = tmp_path / "run"
    write = loop.Trainer.write_checkpoint

    def full(self, *given):
        if self.trainer_state.step == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, *given)

    monkeypatch.setattr(loop.Trainer, "write_checkpoint", full)
    after_step(3, send)
    train(*words(numbers, run, SMALL_ACT, LONG, {"save_freq": 2}), expect=2)
    said = capfd.readouterr().err.splitlines()[-1]
    assert "cannot write the checkpoint of step 3: No space left on device" in said
    assert f"{run}/checkpoints/000002 is complete" in said
    assert names(run) == {"000002", "last"}
    monkeypatch.undo()
    resume(run)


class SlowWandb:
    """W&B that uploads until a signal comes."""

    ended: ClassVar[list[bool]] = []

    def __init__(self, setup, folder) -> None:
        self.ended.clear()

    def __getattr__(self, name):
        return lambda *given: None

    def end(self, *, failed: bool) -> None:
        self.ended.append(failed)
        send()


def test_a_signal_while_wandb_uploads_leaves_with_everything_saved(
    numbers, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(monitor, "TrainingWandb", SlowWandb)
    monkeypatch.setattr("proctor.callbacks.wandb.require_wandb", lambda config: None)
    run = tmp_path / "run"
    train(*words(numbers, run, SMALL_ACT, LONG, {"wandb.enable": "true"}), expect=130)
    assert SlowWandb.ended == [False]  # it is not waited for again
    assert "after step 8: its checkpoint is complete" in capfd.readouterr().err
    monkeypatch.undo()
    resume_flags = ["--resume", f"--output_dir={run}", "--wandb.enable=false"]
    train(*resume_flags)


def test_no_checkpoint_is_written_where_none_is_wanted(numbers, tmp_path, after_step, capfd):
    run = tmp_path / "run"
    after_step(3, send)
    asked = words(numbers, run, SMALL_ACT, LONG, {"save_checkpoint": "false"})
    train(*asked, expect=130)
    said = capfd.readouterr().err
    assert "steps 1 to 3 are lost, there is no checkpoint (--save_checkpoint=false)" in said
    assert not (run / "checkpoints").exists()


def test_checkpoints_by_time_replace_each_other_and_the_next_by_steps_replaces_them(
    numbers, tmp_path, monkeypatch
):
    run, whole = tmp_path / "run", tmp_path / "whole"
    train(*words(numbers, whole, SMALL_ACT, LONG, {"save_freq": 4, "save_minutes": 0}))
    seen = []
    save = Checkpoints.save

    def saved(self, step, write, *, interim=False):
        path = save(self, step, write, interim=interim)
        seen.append((step, interim, {int(p.name) for p in self.all()}))
        return path

    monkeypatch.setattr(Checkpoints, "save", saved)
    asked = {"save_freq": 4, "save_minutes": 1e-9}
    train(*words(numbers, run, SMALL_ACT, LONG, asked))
    assert [step for step, interim, _ in seen if not interim] == [4, 8]
    assert [step for step, interim, _ in seen if interim] == [1, 2, 3, 5, 6, 7]
    assert seen[-1][2] == {4, 7, 8}  # 7 goes once 8 is complete
    assert names(run) == {"000004", "000008", "last"}
    assert files_of(run / "checkpoints/000008") == files_of(whole / "checkpoints/000008")


def test_checkpoints_by_time_obey_keep_last(numbers, tmp_path, after_step):
    run = tmp_path / "run"
    asked = {"save_freq": 2, "save_minutes": 1e-9, "keep_last": 2}
    after_step(7, send)
    train(*words(numbers, run, SMALL_ACT, LONG, asked), expect=130)
    assert names(run) == {"000006", "000007", "last"}


def test_a_signal_whose_exception_was_swallowed_stops_the_training(numbers, tmp_path):
    stop = StopRequests()
    with stop:
        with contextlib.suppress(KeyboardInterrupt):  # as a library may do
            send()
        with pytest.raises(KeyboardInterrupt), stop.deferring():
            raise AssertionError("not reached")


def test_the_minutes_between_checkpoints_have_bounds(numbers, tmp_path, capsys):
    train(*words(numbers, tmp_path / "run", SMALL_ACT, LONG, {"save_minutes": -1}), expect=2)
    assert re.search("--save_minutes must be from 0", capsys.readouterr().err)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_process_group_also_leaves_a_checkpoint(tmp_path, signum):
    """A terminal sends Ctrl-C, and a job scheduler SIGTERM, to the loader processes too."""
    run, seen = tmp_path / "run", write_seen(tmp_path / "seen", side=32)
    small = SMALL_ACT | {"policy.pretrained_backbone_weights": "null", "num_workers": 1}
    asked = words(seen, run, small, LONG, {"steps": 100_000})
    training = subprocess.Popen(
        [sys.executable, "-m", "proctor.cli", "train", *asked],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 120
        while not (run / "log.jsonl").exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(training.pid, signum)
        said = training.communicate(timeout=120)[1]
    finally:
        training.kill()
    assert training.returncode == 130
    step = re.search(r"after step ([\d,]+): its checkpoint is complete", said)[1]
    assert names(run) == {f"{int(step.replace(',', '')):06d}", "last"}
    assert "Traceback" not in said


def test_a_loader_process_that_is_killed_in_a_step_costs_no_finished_step(
    tmp_path, monkeypatch, after_step, capfd
):
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)

    def kill_the_loader() -> None:
        (loader,) = multiprocessing.active_children()
        loader.kill()
        loader.join()

    after_step(2, kill_the_loader)
    run, seen = tmp_path / "run", write_seen(tmp_path / "seen", side=32)
    small = SMALL_ACT | {"policy.pretrained_backbone_weights": "null", "num_workers": 1}
    fork = {"dataloader_multiprocessing_context": "fork", "steps": 100}
    train(*words(seen, run, small, LONG, fork), expect=2)
    last = (run / "checkpoints" / "last").resolve().name
    assert rows(run)[-1] == int(last) >= 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert f"proctor train --resume --output_dir={run}" in said


@pytest.mark.slow
def test_loader_processes_of_a_fork_server_end_with_a_killed_training(tmp_path):
    run, seen = tmp_path / "run", write_seen(tmp_path / "seen", side=32)
    small = SMALL_ACT | {"policy.pretrained_backbone_weights": "null", "num_workers": 1}
    forked = {"dataloader_multiprocessing_context": "forkserver", "steps": 100_000}
    training = subprocess.Popen(
        [sys.executable, "-m", "proctor.cli", "train", *words(seen, run, small, LONG, forked)],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + 120
    try:
        while not (run / "log.jsonl").exists() and time.monotonic() < until:
            time.sleep(0.05)
        started = psutil.Process(training.pid).children(recursive=True)
        assert len(started) >= 2  # the fork server and the loader
    finally:
        training.kill()
        training.wait()
    until = time.monotonic() + 120
    while any(map(is_alive, started)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_alive, started))


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs; one that has ended, and is a zombie, does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_tutorial_shows_an_interrupted_training_with_the_same_bits(numbers, tmp_path, capfd):
    asked = LONG | {"steps": 400, "log_freq": 50, "save_freq": 1000}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(*words(numbers, whole, SMALL_ACT, asked))
    command = ["train", *words(numbers, stopped, SMALL_ACT, asked)]
    assert tutorial.resume_and_compare(command, stopped, whole) == 0
    said = capfd.readouterr()
    assert "its checkpoint is complete" in said.err
    assert "the same bits in all" in said.out
    resumed = json.loads((stopped / "train.json").read_text())["resumed_step"]
    assert 50 <= resumed < 400
