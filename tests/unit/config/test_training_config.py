"""A training's settings: LeRobot's files and flags, taken or refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.config.flags.help import flags_help
from proctor.config.lerobot.training import drop_lerobot_settings, lerobot_train_config
from proctor.config.sections.training import Precision
from proctor.config.training import TrainConfig
from proctor.errors import UsageError
from proctor.features import Feature, FeatureKind
from proctor.lerobot_flags import lerobot_flags
from proctor.policies.act.config import ActConfig
from tests.refusals import refuses

CHECKPOINTS = Path(__file__).parents[2] / "golden/data/checkpoints"
LEROBOTS = json.loads(
    (CHECKPOINTS / "act_train_run_meta/pretrained_model/train_config.json").read_text()
)
ADAPTER = {"peft.target_modules": "[linear1]"}
LEAST = {"policy.type": "act", "dataset.repo_id": "someone/demos"}


def test_a_missing_policy_is_answered_with_those_that_can_be_trained() -> None:
    with pytest.raises(UsageError) as caught:
        build(TrainConfig, {"dataset.repo_id": "someone/demos"})
    said = str(caught.value)
    assert said.startswith("--policy.type is missing (choose from: act, ")
    assert said.endswith(", or --policy.path=CHECKPOINT")
    assert not {"expert", "random", "zero", "pretrained", "python"} & set(said.split())


def test_lerobots_own_file_is_read_as_it_was_meant():
    config = build(TrainConfig, drop_lerobot_settings(LEROBOTS))
    assert (config.steps, config.batch_size, config.save_freq, config.seed) == (4, 4, 2, 1000)
    assert config.dataset.root == Path("demo_ds2")
    assert config.optimizer.lr == 1e-5
    assert config.scheduler.type is None
    assert isinstance(config.policy, ActConfig)
    assert config.policy.chunk_size == 5
    assert config.policy.kl_weight == 10.0
    assert config.env is None
    assert not config.dataset.image_transforms.enable
    assert len(config.dataset.image_transforms.transforms()) == 6


def test_the_defaults_are_lerobots():
    config = build(TrainConfig, LEAST)
    for name in ("seed", "num_workers", "prefetch_factor", "env_eval_freq", "tolerance_s"):
        assert getattr(config, name) == LEROBOTS.get(name) or name == "num_workers"
    assert config.num_workers == 4
    assert (config.steps, config.batch_size, config.log_freq) == (100_000, 8, 200)
    told = config.as_dict()
    assert told["dataset"]["image_transforms"] == LEROBOTS["dataset"]["image_transforms"]
    assert told["ema"] == LEROBOTS["ema"]


@pytest.mark.parametrize("name", lerobot_flags("training"))
def test_what_lerobot_alone_does_is_refused_with_a_reason_and_its_default_is_not(name):
    known = lerobot_flags("training")[name]
    assert drop_lerobot_settings({name: known.values[0]}) == {}
    assert drop_lerobot_settings({name: str(known.values[0]).lower()}) == {}
    assert known.reason
    if name != "dataset.return_uint8":  # there is no third
        with refuses(UsageError, "flag.unsupported") as refused:
            drop_lerobot_settings({name: "7"})
        assert f"--{name}=7: " in str(refused.value)
        assert known.reason in str(refused.value)


def test_a_field_of_what_is_not_there_is_refused_with_the_reason():
    with refuses(UsageError, "flag.unsupported") as refused:
        drop_lerobot_settings({"sample_weighting.type": "x"})
    assert "--sample_weighting=x: " in str(refused.value)


def test_older_names_and_nulls_are_read_as_lerobot_reads_them():
    found = drop_lerobot_settings(
        {"eval_freq": 5, "policy.pretrained_backbone_weights": "null", "scheduler": None}
    )
    assert found == {"env_eval_freq": 5, "policy.pretrained_backbone_weights": None}


def test_what_we_write_has_no_key_that_lerobot_does_not_know():
    config = build(TrainConfig, {**LEAST, "keep_last": 3, "dataset.root": "here"})
    features = {
        "observation.environment_state": Feature(FeatureKind.ENV, (3,), "float32"),
    }
    action = {"action": Feature(FeatureKind.ACTION, (2,), "float32")}
    policy = ActConfig(input_features=features, output_features=action)
    recipe = {"optimizer": LEROBOTS["optimizer"], "scheduler": None}
    written = json.loads(json.dumps(lerobot_train_config(config, policy, recipe)))
    assert written.keys() <= LEROBOTS.keys()
    for section in ("dataset", "eval", "policy"):
        assert written[section].keys() <= LEROBOTS[section].keys(), section
    assert "accelerator" not in written  # LeRobot 0.6.1 has none
    other = build(TrainConfig, {**LEAST, "accelerator.mixed_precision": "bf16"})
    assert other.accelerator.mixed_precision is Precision.BF16
    assert lerobot_train_config(other, policy, recipe)["accelerator"]["mixed_precision"] == "bf16"


def test_flags_of_training_are_none_of_an_evaluation_and_the_other_way_round():
    training = flags_help(TrainConfig, {"policy.type": "act"})
    evaluation = flags_help(EvalConfig, {"policy.type": "act"})
    for flag in ("--policy.dropout", "--policy.kl_weight", "--optimizer.lr", "--ema.enable"):
        assert flag in training
        assert flag not in evaluation
    for flag in ("--policy.dtype", "--policy.pad_to"):
        assert flag not in training
        assert flag in evaluation
    idle = {"policy.type": "act", "env.type": "fake", "policy.dropout": "0"}
    assert build(EvalConfig, idle).notes == [
        "--policy.dropout changes nothing here: it affects training only"
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ema.decay": 1}, "--ema.decay must be from 0 to below 1"),
        ({"keep_best": 1}, "--keep_best needs --keep_last"),
        ({"keep_best": 1, "keep_last": 1}, "--keep_best needs --env or --eval_steps"),
        (
            {"keep_best": 1, "keep_last": 1, "env.type": "fake", "env_eval_freq": 0},
            "--keep_best needs --env or --eval_steps",
        ),
        (
            {"keep_best": 1, "keep_last": 1, "eval_steps": 300, "dataset.eval_split": 0.1}
            | {"save_freq": 200, "steps": 500},
            "--eval_steps=300 and --save_freq=200 meet at step 600, and --steps=500",
        ),
        ({"dataset.eval_split": 1.5}, "--dataset.eval_split must be from 0 to below 1"),
        ({"dataset.episodes": "[0]", "dataset.exclude_episodes": "[1]"}, "give one of them"),
        ({"env.type": "fake", "save_checkpoint": "false"}, "--save_checkpoint=false"),
        ({"dataset.repo_id": ""}, "--dataset.repo_id is missing"),
        ({"tolerance_s": 0}, "--tolerance_s must be above 0"),
        ({"ema.inv_gamma": "inf"}, "--ema.inv_gamma must be a finite number, got inf"),
        ({"peft.r": 8}, "--peft.* adapts a trained policy"),
        (ADAPTER, "--peft.* adapts a trained policy: give it as --policy.path"),
        (ADAPTER | {"peft.r": 10**9}, "--peft.r must be at most 16384"),
        (ADAPTER | {"peft.method_type": "OFT"}, "--peft.method_type=OFT: only LORA"),
        (
            ADAPTER | {"peft.init_type": "pissa"},
            "--peft.init_type=pissa: only gaussian, orthogonal",
        ),
        ({"peft.target_modules": "("}, "'(' is no regex"),
        ({"peft.target_modules": "[a, {b: 1}]"}, "names no layers (as [linear1,linear2])"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, told):
    with pytest.raises(UsageError) as refused:
        build(TrainConfig, {**LEAST, **changes})
    assert told in str(refused.value)


def test_an_adapter_is_asked_for_as_in_lerobot():
    adapts = {"policy.path": "base", "dataset.repo_id": "someone/demos"}
    plain = build(TrainConfig, adapts)
    assert not plain.peft.active
    section = {"target_modules": ["a", "b"], "full_training_modules": None, "method_type": "LORA"}
    section |= {"init_type": None, "r": 16, "lora_alpha": None}
    lerobots = build(TrainConfig, drop_lerobot_settings({**adapts, "peft": section}))
    flags = build(TrainConfig, {**adapts, "peft.target_modules": "[a, b]"})
    assert lerobots.peft.to_lerobot() == flags.peft.to_lerobot() == section
    assert build(TrainConfig, drop_lerobot_settings({**adapts, "peft": None})).peft == plain.peft
    regex = build(TrainConfig, {**adapts, "peft.target_modules": r".*\.layers\.\d{1,2}\.linear1"})
    assert regex.peft.targets == r".*\.layers\.\d{1,2}\.linear1"
    with refuses(UsageError, "flag.conflict") as refused:
        build(TrainConfig, {**adapts, **ADAPTER, "ema.enable": "true"})
    assert "--ema.enable" in str(refused.value)
    with refuses(UsageError, "flag.conflict") as refused:
        build(TrainConfig, {**adapts, **ADAPTER, "parallelism.dp_shard": "2"})
    assert "--parallelism.dp_shard" in str(refused.value)
