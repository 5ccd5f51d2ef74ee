"""Flags that nothing asks for, since what they belong to is off, are said to change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.config.flags.unused_flags import (
    unused_in_run,
    unused_in_training,
    unused_without_images,
    unused_without_preset,
)
from proctor.config.training import TrainConfig
from proctor.errors import UsageError
from proctor.policies.lerobot.checkpoint.pretrained import PretrainedConfig
from proctor.policies.lerobot.config.config import CheckpointConfig

TRAIN = {"dataset.repo_id": "a/b", "policy.type": "act"}
EVAL = {"policy.type": "zero", "env.type": "fake"}
PLAYED = {"env.type": "fake"}


def train(**flags: Any) -> TrainConfig:
    return build(TrainConfig, TRAIN | {k.replace("__", "."): v for k, v in flags.items()})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"ema.decay": 0.5}, "--ema.decay changes nothing here: --ema.enable is not set"),
        ({"accelerator.compile.mode": "default"}, "--accelerator.compile.enabled is not set"),
        ({"dataset.image_transforms.random_order": True}, "image_transforms.enable is not set"),
        ({"wandb.project": "p", "wandb.notes": "n"}, "--wandb.project, --wandb.notes change noth"),
        ({"dataset.cache_gb": 3}, "--dataset.cache is off"),
        ({"num_workers": 0, "prefetch_factor": 2}, "--num_workers=0 starts no process"),
        ({"dataset.cache": "device", "num_workers": 2}, "--num_workers changes nothing here"),
        ({"eval.n_episodes": 3}, "--eval.n_episodes changes nothing here: no --env.type is given"),
        ({"env_eval_freq": 5, "video.fps": 9}, "--env_eval_freq, --video.fps change nothing"),
        ({"ema.enable": True, "ema.use_for_eval": False}, "--ema.use_for_eval changes nothing"),
        (PLAYED | {"env_eval_freq": 0}, "--env.type changes nothing here: --env_eval_freq=0"),
        ({"save_checkpoint": False, "keep_last": 2}, "--keep_last changes nothing here: --save"),
        ({"max_eval_samples": 9}, "no validation loss is computed without --eval_steps"),
        ({"dataset.eval_split": 0.2}, "eval_split=0.2 holds episodes out and no loss is computed"),
    ],
    ids=str,
)
def test_a_training_says_what_it_does_not_ask_for(flags: dict[str, Any], said: str) -> None:
    assert unused_in_training(build(TrainConfig, TRAIN)) == []
    (line,) = unused_in_training(build(TrainConfig, TRAIN | flags))
    assert said in line


def test_flags_whose_switch_is_on_are_not_spoken_of() -> None:
    asked = {
        "ema.enable": True,
        "ema.decay": 0.5,
        "wandb.enable": True,
        "wandb.project": "p",
        "eval_steps": 5,
        "dataset.eval_split": 0.2,
        "max_eval_samples": 9,
        "env_eval_freq": 5,
        "eval.n_episodes": 3,
        "dataset.cache": "ram",
        "dataset.cache_gb": 3,
    }
    assert unused_in_training(build(TrainConfig, TRAIN | PLAYED | asked)) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"wandb.entity": "me"}, "--wandb.entity changes nothing here: --wandb.enable is not set"),
        ({"video.episodes": 0, "video.fps": 9}, "--video.fps changes nothing here: --video.epis"),
        ({"live_port": 1}, "--live_port changes nothing here: --live is not set"),
        ({"alpha": 0.01}, "--alpha changes nothing here: it is the level of a test"),
        ({"eval.use_async_envs": False, "eval.watchdog_s": 9}, "--eval.watchdog_s changes nothing"),
        (
            {"env.type": "metaworld", "env.expert": "smooth"},
            "--env.expert changes nothing here: no expert acts or labels",
        ),
    ],
    ids=str,
)
def test_an_evaluation_says_what_it_does_not_ask_for(flags: dict[str, Any], said: str) -> None:
    assert unused_in_run(build(EvalConfig, EVAL)) == []
    (line,) = unused_in_run(build(EvalConfig, EVAL | flags))
    assert said in line


def test_who_looks_at_no_pictures_is_told_what_is_for_pictures_only() -> None:
    assert unused_without_images(train()) == []
    (line,) = unused_without_images(train(dataset__image_size="[16,16]", dataset__cache="ram"))
    assert line.startswith("--dataset.image_size, --dataset.cache change nothing here: the policy")
    assert unused_without_images(train(dataset__cache="device")) == []  # it also holds states


def test_without_its_preset_a_policy_is_told_which_of_its_rates_are_unused() -> None:
    rates: dict[str, Any] = {"policy__optimizer_lr": 1e-3, "policy__optimizer_lr_backbone": 1e-3}
    config = train(**rates, use_policy_training_preset=False)
    assert isinstance(config.policy, CheckpointConfig)
    (line,) = unused_without_preset(config, config.policy)
    assert line.startswith("--policy.optimizer_lr changes nothing"), "the backbone's own is used"
    assert unused_without_preset(train(**rates), config.policy) == []
    loaded = PretrainedConfig(path="x", overrides={"dropout": 0.5})
    assert unused_without_preset(replace(config, policy=loaded), config.policy) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"eval.stop_when": "soon"}, "soon"),
        ({"eval.stop_when": "ci_width<0.1", "eval.scheduler": "lockstep"}, "lockstep"),
        ({"eval.stop_when": "ci_width<0.1", "env.max_parallel_tasks": 1}, "max_parallel_tasks=1"),
    ],
    ids=str,
)
def test_what_evaluations_would_be_refused_for_is_refused_before_a_training(
    flags: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        build(TrainConfig, TRAIN | PLAYED | flags)
    assert said in str(refused.value)
