"""`proctor train`: exact resume, and one line for invalid settings."""

from __future__ import annotations

import errno
import json
import math
import shlex
import shutil
from pathlib import Path

import pytest

from .builders import (
    RUN,
    SMALL_ACT,
    SMALL_DIFFUSION,
    SMALL_LANGUAGE_ACT,
    files_of,
    words,
    write_numbers,
)

torch = pytest.importorskip("torch")

from proctor.cli import main  # noqa: E402
from proctor.commands.training.train import run as train_command  # noqa: E402
from proctor.datasets.reading.dataset import Dataset  # noqa: E402
from proctor.errors import DatasetError, TrainingError, UsageError  # noqa: E402
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint  # noqa: E402
from proctor.runs.training import TrainingLogRow, read_training_log  # noqa: E402
from proctor.training import loop  # noqa: E402
from proctor.training.checkpoints.saving import Checkpoints  # noqa: E402
from tests.refusals import refuses  # noqa: E402

FAMILIES = {"act": SMALL_ACT, "language_act": SMALL_LANGUAGE_ACT, "diffusion": SMALL_DIFFUSION}


class Killed(BaseException):
    """An exception that Proctor never catches, like a SIGKILL."""


def train(*settings, expect=0) -> None:
    assert main(["train", *settings]) == expect


def kill_at(monkeypatch, step: int) -> None:
    """Kill the training in the middle of a step."""
    untouched = loop.Trainer.update

    def update(self, network):
        if self.trainer_state.step == step:
            raise Killed
        return untouched(self, network)

    monkeypatch.setattr(loop.Trainer, "update", update)


@pytest.mark.parametrize(
    ("family", "ema"), [("act", True), ("language_act", False), ("diffusion", False)]
)
def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(
    numbers, tmp_path, monkeypatch, family, ema
):
    settings = (FAMILIES[family], RUN, {"ema.enable": ema})
    train(*words(numbers, tmp_path / "whole", *settings))
    asked = words(numbers, tmp_path / "killed", *settings)
    again = ["--resume", f"--output_dir={tmp_path / 'killed'}"]
    for step in (1, 4, 7):  # before the first checkpoint, and twice on the way
        with monkeypatch.context() as patch:
            kill_at(patch, step)
            with pytest.raises(Killed):
                train(*asked)
        asked = again
    train(*again)
    whole, killed = (tmp_path / name / "checkpoints/000008" for name in ("whole", "killed"))
    assert files_of(killed) == files_of(whole)
    assert ("pretrained_model_ema/model.safetensors" in files_of(whole)) == ema
    steps = [json.loads(line)["step"] for line in (tmp_path / "killed/log.jsonl").open()]
    assert steps == [2, 4, 6, 8]


def test_dropout_and_noise_do_not_depend_on_what_the_process_drew_before(numbers, tmp_path):
    for name in ("one", "other"):
        torch.manual_seed(0 if name == "one" else 1)
        train(*words(numbers, tmp_path / name, SMALL_ACT, RUN, {"policy.dropout": 0.5}))
        torch.randn(7)
    one, other = (tmp_path / name / "checkpoints/000008" for name in ("one", "other"))
    assert files_of(one) == files_of(other)


def test_another_seed_is_another_run(numbers, tmp_path):
    for seed in (1, 2):
        train(*words(numbers, tmp_path / str(seed), SMALL_ACT, RUN, {"seed": seed}))
    one, other = (files_of(tmp_path / name / "checkpoints/000008") for name in ("1", "2"))
    assert one["pretrained_model/model.safetensors"] != other["pretrained_model/model.safetensors"]


def test_the_loss_goes_down_and_the_log_says_so(numbers, tmp_path):
    longer = {"steps": 120, "log_freq": 20, "save_freq": 1000, "optimizer.lr": 3e-3}
    train(*words(numbers, tmp_path / "run", SMALL_ACT, RUN, longer, {"policy.use_vae": "false"}))
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").open()]
    assert lines[-1]["loss"] < 0.5 * lines[0]["loss"]
    assert lines[-1]["parts"]["l1_loss"] == pytest.approx(lines[-1]["loss"])
    assert 0 <= lines[-1]["waiting"] < 1
    assert lines[-1]["samples_per_s"] > 0


def test_what_is_trained_is_a_checkpoint_that_loads(numbers, tmp_path):
    train(*words(numbers, tmp_path / "run", SMALL_ACT, RUN))
    last = tmp_path / "run/checkpoints/last"
    parts = read_checkpoint(last / "pretrained_model")
    assert parts.config.device == "cpu"
    assert parts.config.push_to_hub is False
    assert list(parts.config.input_features) == [
        "observation.state",
        "observation.environment_state",
    ]
    assert "action.mean" in parts.preprocessor.steps[3].state()
    assert parts.notes == ()
    assert last.readlink() == Path("000008")


def test_a_policy_looks_at_what_it_is_told_to(numbers, tmp_path, capsys):
    asked = {"dataset.inputs": "[observation.environment_state]"}
    train(*words(numbers, tmp_path / "run", SMALL_ACT, RUN, asked))
    parts = read_checkpoint(tmp_path / "run/checkpoints/last/pretrained_model")
    assert list(parts.config.input_features) == ["observation.environment_state"]
    wrong = {"dataset.inputs": "[observation.stat]"}
    train(*words(numbers, tmp_path / "other", SMALL_ACT, RUN, wrong), expect=2)
    assert "did you mean 'observation.state'?" in capsys.readouterr().err


def test_several_batches_make_one_update_of_their_mean(numbers, tmp_path):
    """Two accumulated batches of 4 equal one batch of 8, without padding."""
    plain = {"policy.dropout": 0.0, "policy.use_vae": "false", "optimizer.type": "sgd"}
    plain |= {"optimizer.lr": 0.1, "policy.chunk_size": 1, "policy.n_action_steps": 1}
    halves = {"batch_size": 4, "steps": 2, "accelerator.gradient_accumulation.steps": 2}
    found = []
    for name, how in (("halves", halves), ("whole", {"batch_size": 8, "steps": 1})):
        train(*words(numbers, tmp_path / name, SMALL_ACT, RUN, plain, how))
        parts = read_checkpoint(tmp_path / name / "checkpoints/last/pretrained_model")
        found.append(parts.network.state_dict())
    for key, value in found[1].items():
        torch.testing.assert_close(found[0][key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:mkldnn")
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_computes_with_weights_that_stay_float32(numbers, tmp_path, family):
    half = {"accelerator.mixed_precision": "bf16", "steps": 2}
    for name, how in (("half", half), ("whole", {"steps": 2})):
        train(*words(numbers, tmp_path / name, FAMILIES[family], RUN, how))
    half, whole = (
        [json.loads(n)["loss"] for n in (tmp_path / name / "log.jsonl").open()]
        for name in ("half", "whole")
    )
    assert half == pytest.approx(whole, rel=0.05)
    assert half != whole
    parts = read_checkpoint(tmp_path / "half/checkpoints/last/pretrained_model")
    assert {p.dtype for p in parts.network.parameters()} == {torch.float32}


def test_only_the_newest_checkpoints_are_kept(numbers, tmp_path):
    train(*words(numbers, tmp_path / "run", SMALL_ACT, RUN, {"keep_last": 2}))
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert names == ["000006", "000008", "last"]


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(numbers, tmp_path, monkeypatch, capsys):
    train(*words(numbers, tmp_path / "whole", SMALL_ACT, RUN))
    untouched = loop.write_state

    def full(folder, *rest):
        if folder.parent.name == ".000006.part":
            raise OSError(errno.ENOSPC, "No space left on device")
        untouched(folder, *rest)

    monkeypatch.setattr(loop, "write_state", full)
    train(*words(numbers, tmp_path / "run", SMALL_ACT, RUN), expect=2)
    said = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device" in said
    assert "000004" in said
    monkeypatch.undo()
    train("--resume", f"--output_dir={tmp_path / 'run'}")
    newest = files_of(tmp_path / "run/checkpoints/000008")
    assert newest == files_of(tmp_path / "whole/checkpoints/000008")


def test_a_dataset_without_one_of_its_files_is_refused_before_the_start(numbers, tmp_path):
    root = tmp_path / "data"
    shutil.copytree(numbers, root)
    (root / "data/chunk-000/file-000.parquet").unlink()
    with refuses(DatasetError, "dataset.missing-file"):
        train_command(words(root, tmp_path / "run", SMALL_ACT, RUN))


@pytest.mark.parametrize(
    ("lengths", "setting", "cause"),
    [
        ((4, 4), {"dataset.episodes": "[]"}, "--dataset.episodes"),
        ((4, 4), {"dataset.exclude_episodes": "[0,1]"}, "--dataset.exclude_episodes"),
        ((4, 4), {"dataset.eval_split": 0.99}, "--dataset.eval_split"),
        ((), {}, "has no episodes"),
    ],
)
def test_a_training_without_episodes_is_refused_with_the_cause(tmp_path, lengths, setting, cause):
    root = write_numbers(tmp_path / "data", lengths)
    with refuses(UsageError, "dataset.no-episodes") as refused:
        train_command(words(root, tmp_path / "run", SMALL_ACT, RUN, setting))
    assert cause in str(refused.value)
    assert "drop_n_last_frames" not in str(refused.value)


@pytest.mark.parametrize(("accumulated", "saved"), [(1, 3), (2, 2)])
def test_data_that_cannot_be_read_any_more_cost_no_finished_step(
    numbers, tmp_path, monkeypatch, accumulated, saved
):
    often = RUN | {"accelerator.gradient_accumulation.steps": accumulated}
    train(*words(numbers, tmp_path / "whole", SMALL_ACT, often))
    untouched, reads = Dataset.batch, []

    def batch(self, positions, keys=None):
        reads.append(positions)
        if len(reads) > 3:
            raise DatasetError("the disk of the dataset is gone", code="dataset.unreadable")
        return untouched(self, positions, keys)

    monkeypatch.setattr(Dataset, "batch", batch)
    run = tmp_path / "run"
    rare = often | {"save_freq": 2 if accumulated > 1 else 100}
    with refuses(TrainingError, "dataset.unreadable") as refused:
        train_command(words(numbers, run, SMALL_ACT, rare))
    assert f"{run / 'checkpoints' / f'{saved:06d}'} is complete" in str(refused.value)
    monkeypatch.undo()
    train("--resume", f"--output_dir={run}")
    newest = files_of(run / "checkpoints/000008")
    assert newest == files_of(tmp_path / "whole/checkpoints/000008")


def loss_with(monkeypatch, what, steps):
    """Let the loss or the gradient of some steps be no number."""
    untouched = loop.Trainer.loss

    def loss(self, batch, draws):
        found, parts = untouched(self, batch, draws)
        if self.trainer_state.step + 1 not in steps:
            return found, parts
        return (found * float("nan") if what == "loss" else found * 1e38 * 1e38), parts

    monkeypatch.setattr(loop.Trainer, "loss", loss)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_losses_that_are_no_numbers_end_the_run_and_change_no_weights(
    numbers, tmp_path, monkeypatch, capsys, what
):
    loss_with(monkeypatch, what, range(5, 9))
    train(*words(numbers, tmp_path / "run", SMALL_ACT, RUN), expect=2)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("proctor: error: ")
    assert "step 5 " in said
    checkpoints = Checkpoints(tmp_path / "run/checkpoints")
    assert checkpoints.newest().name == "000004"
    weights = [folder / "pretrained_model/model.safetensors" for folder in checkpoints.all()[1:]]
    assert len({file.read_bytes() for file in weights}) == 1
    rows = [json.loads(line) for line in (tmp_path / "run/divergence.jsonl").open()]
    assert [row["step"] for row in rows] == list(range(1, rows[-1]["step"] + 1))
    assert [row["step"] for row in rows if row["skipped"]] == list(range(5, len(rows) + 1))
    assert str(tmp_path / "run/divergence.jsonl") in said
    advised = shlex.split(said.split("proctor train ")[1])
    assert "--optimizer.lr=5e-06" in advised
    monkeypatch.undo()
    train(*advised)  # the command works
    groups = tmp_path / "run/checkpoints/000008/training_state/optimizer_param_groups.json"
    assert json.loads(groups.read_text())[0]["lr"] == 5e-6


@pytest.fixture
def risen(monkeypatch):
    """The losses of some steps; that of all others is 1."""
    untouched, losses = loop.Trainer.loss, {5: 50.0, 6: 500.0} | dict.fromkeys((7, 8, 9), math.nan)

    def loss(self, batch, draws):
        found, parts = untouched(self, batch, draws)
        return 0 * found + losses.get(self.trainer_state.step + 1, 1.0), parts

    monkeypatch.setattr(loop.Trainer, "loss", loss)
    return losses


def test_a_diverged_run_goes_on_from_the_checkpoint_before_its_loss_rose(
    numbers, tmp_path, risen, capsys
):
    run = tmp_path / "run"
    train(*words(numbers, run, SMALL_ACT, RUN, {"steps": 20}), expect=2)
    said = capsys.readouterr().err.splitlines()[-1]
    assert "go on from step 4 " in said
    assert {"000004", "000006"} <= {path.name for path in (run / "checkpoints").iterdir()}
    assert (run / "checkpoints/last").resolve().name == "000004"
    risen.clear()
    train(*shlex.split(said.split("proctor train ")[1]), "--steps=8")
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert {"000004", "000006", "000006.old1", "000008"} <= names
    assert "checkpoints/000006.old1" in capsys.readouterr().err
    assert (run / "checkpoints/last").resolve().name == "000008"


def test_a_resumed_run_that_diverges_at_once_goes_on_from_the_checkpoint_before(
    numbers, tmp_path, risen, capsys
):
    run = tmp_path / "run"
    risen.clear()
    train(*words(numbers, run, SMALL_ACT, RUN, {"steps": 4}))
    risen |= dict.fromkeys((5, 6, 7), math.nan)
    train("--resume", f"--output_dir={run}", "--steps=20", expect=2)
    said = capsys.readouterr().err.splitlines()[-1]
    assert "go on from step 2 " in said
    risen.clear()
    train(*shlex.split(said.split("proctor train ")[1]), "--steps=6")
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert {"000002", "000004", "000004.old1", "000006"} <= names


def test_a_diverged_run_without_a_good_checkpoint_says_that_the_oldest_may_be_bad(
    numbers, tmp_path, risen, capsys
):
    train(
        *words(numbers, tmp_path / "run", SMALL_ACT, RUN, {"steps": 20, "keep_last": 1}), expect=2
    )
    said = capsys.readouterr().err.splitlines()[-1]
    assert "no checkpoint up to step 4 " in said
    assert "go on from step 6 " in said
    assert Checkpoints(tmp_path / "run/checkpoints").newest().name == "000006"


LONG = {"steps": 400, "save_freq": 50, "log_freq": 50}


@pytest.fixture
def tenfold(monkeypatch):
    """Multiply loss and gradients by ten from step 261 on, until the list is emptied."""
    untouched, since = loop.Trainer.loss, [261]

    def loss(self, batch, draws):
        found, parts = untouched(self, batch, draws)
        risen = since and self.trainer_state.step + 1 >= since[0]
        return found * (10.0 if risen else 1.0), parts

    monkeypatch.setattr(loop.Trainer, "loss", loss)
    return since


def test_a_rise_of_finite_losses_ends_the_run_if_asked(numbers, tmp_path, tenfold, capsys):
    run = tmp_path / "run"
    asked = LONG | {"stop_on_divergence": "true"}
    train(*words(numbers, run, SMALL_ACT, RUN, asked), expect=2)
    said = capsys.readouterr().err.splitlines()[-1]
    assert "as was seen at step 300" in said
    assert "go on from step 250 " in said
    assert (run / "checkpoints/last").resolve().name == "000250"
    assert str(run / "divergence.jsonl") in said
    tenfold.clear()
    train(*shlex.split(said.split("proctor train ")[1]), "--steps=300")
    assert (run / "checkpoints/last").resolve().name == "000300"


def test_a_rise_is_said_once_and_the_checkpoint_before_it_is_kept(
    numbers, tmp_path, tenfold, capsys
):
    run = tmp_path / "run"
    train(*words(numbers, run, SMALL_ACT, RUN, LONG | {"keep_last": 2}))
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert "the loss rose from " in warnings[0]
    names = {path.name for path in Checkpoints(run / "checkpoints").all()}
    assert names == {"000250", "000350", "000400"}
    tenfold.clear()
    train(*shlex.split(warnings[0].split("proctor train ")[1]), "--steps=260")
    assert (run / "checkpoints/last").resolve().name == "000260"


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_one_gradient_that_is_no_number_skips_its_update(
    numbers, tmp_path, monkeypatch, capsys, what
):
    loss_with(monkeypatch, what, [6])
    train(*words(numbers, tmp_path / "run", SMALL_ACT, RUN))
    rows = [row for row in read_training_log(tmp_path / "run") if isinstance(row, TrainingLogRow)]
    assert sum(row.skipped for row in rows) == 1
    assert "updates skipped: 1" in capsys.readouterr().err
    at = {n: files_of(tmp_path / f"run/checkpoints/{n:06}/pretrained_model") for n in (4, 6, 8)}
    assert at[4]["model.safetensors"] != at[6]["model.safetensors"] != at[8]["model.safetensors"]


def test_weights_that_are_no_numbers_are_not_saved(numbers, tmp_path, monkeypatch, capsys):
    loss_with(monkeypatch, "loss", [6])

    def spoil(optimizer, bad, *, sharded):
        optimizer.step()  # as if a finite gradient had spoiled the weights

    monkeypatch.setattr(loop, "update_unless", spoil)
    train(*words(numbers, tmp_path / "run", SMALL_ACT, RUN), expect=2)
    assert Checkpoints(tmp_path / "run/checkpoints").newest().name == "000004"
    assert "from step 4 " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"accelerator.cuda_graph": "true"}, "--accelerator.cuda_graph=true"),
        ({"policy.type": "zero"}, "--policy.type=zero"),
        ({"dataset.episodes": "[7]"}, "--dataset.episodes"),
        ({"steps": 0}, "--steps"),
        ({"parallelism.dp_shard": 2}, "--parallelism.dp_shard=2"),
        ({"parallelism.dp_replicate": 3}, "--parallelism.dp_replicate=3"),
        ({"accelerator.compile.mode": "fast"}, "--accelerator.compile.mode"),
        ({"peft.r": 8}, "--policy.path=DIR"),
        ({"policy.push_to_hub": "true"}, "--policy.repo_id=USER/NAME"),
        ({"policy.chunk_sizes": 4}, "--policy.chunk_sizes"),
        ({"eval_steps": 2}, "--eval_steps"),
        ({"dataset.paraphrase_tasks": "true"}, "--dataset.paraphrase_tasks"),
        ({"accelerator.gradient_accumulation.steps": 3}, "--steps"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_line_and_leaves_no_folder(numbers, tmp_path, capsys, settings, told):
    asked = words(numbers, tmp_path / "run", SMALL_ACT, RUN, settings)
    if settings.get("policy.type") == "zero":
        asked = words(numbers, tmp_path / "run", RUN, settings)
    train(*asked, expect=2)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert told in said[0]
    assert not (tmp_path / "run").exists()


def test_a_dataset_that_lacks_what_the_policy_needs_is_one_line(numbers, tmp_path, capsys):
    train(*words(numbers, tmp_path / "run", SMALL_ACT, RUN))
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": None},
        "action": {"dtype": "float32", "shape": [2], "names": None},
    }
    poor = write_numbers(tmp_path / "poor", (5,), features)
    path = {"policy.path": tmp_path / "run/checkpoints/last/pretrained_model"}
    capsys.readouterr()
    train(*words(poor, tmp_path / "other", RUN, path), expect=2)
    said = capsys.readouterr().err
    assert "the policy wants observation.environment_state; someone/numbers offers only" in said
    train(*words(poor, tmp_path / "other", RUN, SMALL_ACT), expect=2)
    assert "ACT needs a camera or observation.environment_state" in capsys.readouterr().err


def test_training_goes_on_from_another_checkpoint_with_this_datasets_statistics(
    numbers, tmp_path, capsys
):
    train(*words(numbers, tmp_path / "first", SMALL_ACT, RUN))
    other = write_numbers(tmp_path / "other", (20,))
    path = {"policy.path": tmp_path / "first/checkpoints/last/pretrained_model"}
    path |= {"policy.dropout": 0.0, "policy.device": "cpu"}
    path |= {"policy.normalization_mapping": "{STATE: MEAN_STD, ENV: MIN_MAX, ACTION: QUANTILES}"}
    train(*words(other, tmp_path / "third", RUN, path, {"dataset.inputs": "[a]"}), expect=2)
    assert "--dataset.inputs" in capsys.readouterr().err
    train(*words(other, tmp_path / "second", RUN, path))
    first, second = (
        read_checkpoint(tmp_path / name / "checkpoints/last/pretrained_model")
        for name in ("first", "second")
    )
    assert second.config.dropout == 0.0
    assert second.config.chunk_size == first.config.chunk_size
    means = [parts.preprocessor.steps[3].state()["action.mean"] for parts in (first, second)]
    assert not torch.equal(*means)
    for step in (second.preprocessor.steps[3], second.postprocessor.steps[0]):
        assert step.norm_map == second.config.normalization_mapping
        assert step.mode("action").value == "QUANTILES"
    stats = tmp_path / "other" / "meta" / "stats.json"
    told = json.loads(stats.read_text())
    del told["action"]["q01"]
    stats.write_text(json.dumps(told))
    train(*words(other, tmp_path / "third", RUN, path), expect=2)
    assert "QUANTILES needs action.q01" in capsys.readouterr().err


def test_held_out_episodes_are_not_trained_on_but_judged_by(numbers, tmp_path):
    split = {"dataset.eval_split": 0.5, "eval_steps": 4}
    train(*words(numbers, tmp_path / "run", SMALL_ACT, RUN, split))
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").open()]
    judged = [line for line in lines if line["kind"] == "held_out"]
    assert [line["step"] for line in judged] == [4, 8]
    assert all(line["loss"] > 0 for line in judged)


def test_a_folder_that_is_there_is_neither_overwritten_nor_resumed_by_itself(
    numbers, tmp_path, capsys
):
    train(*words(numbers, tmp_path / "run", SMALL_ACT, RUN))
    before = files_of(tmp_path / "run")
    train(*words(numbers, tmp_path / "run", SMALL_ACT, RUN), expect=2)
    assert "--resume" in capsys.readouterr().err
    assert files_of(tmp_path / "run") == before
    shutil.rmtree(tmp_path / "run/checkpoints")
    (tmp_path / "run/train.json").unlink()
    train("--resume", f"--output_dir={tmp_path / 'run'}", expect=2)
    assert "--resume" in capsys.readouterr().err


def test_more_steps_can_be_asked_for_when_resuming_and_a_policys_fields_cannot(
    numbers, tmp_path, capsys
):
    train(*words(numbers, tmp_path / "run", SMALL_ACT, RUN))
    config = tmp_path / "run/checkpoints/last/pretrained_model/train_config.json"
    train("--resume", f"--config_path={config}", "--steps=10")
    assert Checkpoints(tmp_path / "run/checkpoints").newest().name == "000010"
    train("--resume", f"--output_dir={tmp_path / 'run'}", "--policy.dropout=0", expect=2)
    assert "--policy.dropout" in capsys.readouterr().err


def test_the_first_line_says_which_frames_are_not_used_and_why(numbers, tmp_path, capsys):
    some = {"dataset.eval_split": 0.3, "steps": 1, "save_freq": 1}
    train(*words(numbers, tmp_path / "all", SMALL_ACT, RUN, {"steps": 1, "save_freq": 1}))
    assert " on 24 frames of someone/numbers, cpu" in capsys.readouterr().err
    train(*words(numbers, tmp_path / "some", SMALL_DIFFUSION, RUN, some))
    assert (
        " on 7 of 24 frames of someone/numbers (not used: 15 of 2 validation episode(s) "
        "(--dataset.eval_split), 2 at the ends of episodes (--policy.drop_n_last_frames)), cpu"
    ) in capsys.readouterr().err
    train(*words(numbers, tmp_path / "one", SMALL_ACT, RUN, {"dataset.episodes": "[1]"}))
    assert (
        " on 7 of 24 frames of someone/numbers (not used: 17 of episodes that are not selected "
        "(--dataset.episodes)), cpu"
    ) in capsys.readouterr().err
