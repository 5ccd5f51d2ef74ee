"""Misleading settings are refused or noted before a training starts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proctor.benchmarks.fake import Fake

from .builders import FEATURES, RUN, SMALL_ACT, SMALL_LANGUAGE_ACT, words, write_numbers
from .test_train import train
from .test_vqbet_tdmpc_training import REWARD, SMALL_TDMPC

LAST = "checkpoints/last/pretrained_model"
ONE = RUN | {"steps": 1, "save_freq": 1}


def test_who_learns_by_words_is_not_taught_without(
    numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = tmp_path / "mute"
    shutil.copytree(numbers, root)
    file = root / "meta/tasks.parquet"
    table = pq.read_table(file)
    (name,) = set(table.column_names) - {"task_index"}
    mute = pa.array([" " if words == "task 1" else words for words in table[name].to_pylist()])
    pq.write_table(table.set_column(table.column_names.index(name), name, mute), file)
    train(*words(root, tmp_path / "run", SMALL_LANGUAGE_ACT, ONE), expect=2)
    assert "episode 1" in capsys.readouterr().err
    one = {"dataset.exclude_episodes": "[1]"}
    train(*words(root, tmp_path / "one", SMALL_LANGUAGE_ACT, ONE, one))
    train(*words(root, tmp_path / "deaf", SMALL_ACT, ONE))


def test_an_adapter_that_cannot_hold_what_is_learnt_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_numbers(tmp_path / "data", features=FEATURES | REWARD)
    train(*words(root, tmp_path / "base", SMALL_TDMPC, ONE))
    how = {"policy.path": tmp_path / "base" / LAST, "policy.device": "cpu", "peft.r": 2}
    how["peft.target_modules"] = "all-linear"
    train(*words(root, tmp_path / "run", ONE, how), expect=2)
    assert "its target model is a moving average" in capsys.readouterr().err


def test_codes_alone_are_no_policy_and_no_adapter() -> None:
    from proctor.policies.vqbet.network import VqBet

    config = SimpleNamespace(n_vqvae_training_steps=5)
    for learnt in (False, True):
        network: Any = SimpleNamespace(config=config, codes=SimpleNamespace(discretized=learnt))
        found = VqBet.training_notes(network, 5)
        assert [("n_vqvae_training_steps" in line) for line in found] == [True] * (not learnt)
        assert VqBet.training_notes(network, 6) == ()
        whole: Any = VqBet.adapter_conflict
        assert (whole.fget(network) is None) is learnt


def test_a_latency_that_no_chunk_lasts_for_is_refused_before_anything_is_learnt(
    numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = {"env.type": "fake", "eval.latency_steps": 4}
    train(*words(numbers, tmp_path / "run", SMALL_ACT, ONE, how), expect=2)
    said = capsys.readouterr().err
    assert "latency_steps=4: act" in said
    assert not (tmp_path / "run").exists()


def test_half_precision_is_refused_with_the_reason_and_what_to_use(
    numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = {"accelerator.mixed_precision": "fp16"}
    train(*words(numbers, tmp_path / "run", SMALL_ACT, ONE, how), expect=2)
    said = capsys.readouterr().err
    assert "mixed_precision=fp16" in said
    assert "bf16" in said


def test_what_only_a_new_policy_begins_with_is_said_to_change_nothing(
    numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*words(numbers, tmp_path / "base", SMALL_ACT, ONE))
    how = {"policy.path": tmp_path / "base" / LAST, "policy.device": "cpu"}
    weights = {"policy.pretrained_backbone_weights": "ResNet18_Weights.IMAGENET1K_V1"}
    capsys.readouterr()
    train(*words(numbers, tmp_path / "run", ONE, how, weights))
    assert "weights changes nothing here: a checkpoint has all" in capsys.readouterr().err
    train(*words(numbers, tmp_path / "no", ONE, how, {"policy.dtype": "float16"}), expect=2)
    assert "--accelerator.mixed_precision=bf16" in capsys.readouterr().err


RESUMED = (
    "peft.r=2",
    "dataset.inputs=[observation.state]",
    "rename_map={observation.state: observation.x}",
    "ema.enable=true",
)


def test_what_a_checkpoint_says_is_not_said_otherwise_when_it_is_resumed(
    numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*words(numbers, tmp_path / "run", SMALL_ACT, ONE))
    again = "--resume", f"--output_dir={tmp_path / 'run'}", "--steps=2"
    for flag in RESUMED:
        train(*again, f"--{flag}", expect=2)
        assert f"--{flag.partition('=')[0]}:" in capsys.readouterr().err
    train(*again, "--ema.enable=false")


def test_who_is_told_its_task_is_not_trained_for_tasks_that_say_nothing(
    numbers: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = Fake.tasks
    mute = lambda self: [replace(task, instruction="") for task in tasks(self)]  # noqa: E731
    monkeypatch.setattr(Fake, "tasks", mute)
    how = {"env.type": "fake"}
    train(*words(numbers, tmp_path / "run", SMALL_LANGUAGE_ACT, ONE, how), expect=2)
    assert "needs an instruction, fake has none for point-0" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_flags_that_nothing_asks_for_are_named_where_the_training_begins(
    numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = {"ema.decay": 0.5, "dataset.image_size": "[16,16]", "wandb.project": "p"}
    train(*words(numbers, tmp_path / "run", SMALL_ACT, ONE, how))
    said = capsys.readouterr().err
    assert "note: --ema.decay" in said
    assert "note: --dataset.image_size" in said
    assert "note: --wandb.project" in said


def test_diffusion_refuses_kernels_without_a_middle_and_says_when_nothing_is_cropped() -> None:
    from proctor.errors import UsageError
    from proctor.policies.diffusion.config import DiffusionConfig
    from proctor.policies.diffusion.network import Diffusion
    from proctor.policies.lerobot.processors.limits import check_fields

    with pytest.raises(UsageError) as refused:
        DiffusionConfig(kernel_size=4)._validate_widths()
    assert "kernel_size" in str(refused.value)
    with pytest.raises(UsageError) as refused:
        check_fields(DiffusionConfig(crop_ratio=2.0))
    assert "crop_ratio" in str(refused.value)
    seen = {"cameras": ["a"], "crop_ratio": 0.5, "resize_shape": None}
    network: Any = SimpleNamespace(config=SimpleNamespace(**seen))
    assert "resize_shape" in Diffusion.training_notes(network, 1)[0]
    network.config.resize_shape = [8, 8]
    assert Diffusion.training_notes(network, 1) == ()
