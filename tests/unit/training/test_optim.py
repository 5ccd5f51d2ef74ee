"""Optimisers and schedules: LeRobot's presets and values, and the user's settings."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.refusals import refuses

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'proctor[torch]'")

from proctor.errors import UsageError  # noqa: E402
from proctor.policies.act.config import ActConfig  # noqa: E402
from proctor.policies.diffusion.config import DiffusionConfig  # noqa: E402
from proctor.policies.lerobot.config.presets import OptimizerSettings, ScheduleSettings  # noqa: E402
from proctor.policies.pi0.config import Pi0Config  # noqa: E402
from proctor.policies.runtime.network import LR_FLAG, LR_MULTIPLIER  # noqa: E402
from proctor.training.optim.optimizers import (  # noqa: E402
    clip_gradients,
    make_optimizer,
    make_scheduler,
    multiplier,
    own_rate_notes,
    param_groups,
    resolve,
)

DATA = Path(__file__).parents[2] / "golden" / "data"
LR = json.loads((DATA / "misc.json").read_text())["lr"]
TRAINED = DATA / "checkpoints" / "act_train_run_meta" / "pretrained_model" / "train_config.json"
ADAM = OptimizerSettings(type="adam")
NOTHING = (OptimizerSettings(), ScheduleSettings())
DECAY = {
    "type": "cosine_decay_with_warmup",
    "num_warmup_steps": 100,
    "num_decay_steps": 1000,
    "peak_lr": 1e-4,
    "decay_lr": 2.5e-6,
}
WARM = {"num_warmup_steps": 50}


@pytest.mark.parametrize(
    ("golden", "schedule", "steps"),
    [
        ("cosine_decay_with_warmup(peak1e-4,decay2.5e-6,w100,d1000), total 2000", DECAY, 2000),
        ("same but total 500 (auto-scaled)", DECAY, 500),
        (
            "diffuser cosine warm 50 total 500",
            {"type": "diffuser", "name": "cosine", **WARM},
            500,
        ),
        (
            "vqbet warm 50 vq 100 total 500",
            {"type": "vqbet", "num_vqvae_training_steps": 100, "num_cycles": 0.5, **WARM},
            500,
        ),
    ],
)
def test_learning_rates_are_lerobots(golden, schedule, steps):
    at = multiplier(schedule, steps)
    found = [at(i) for i in LR[golden]["i"]]
    assert found == pytest.approx(LR[golden]["v"], rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("decay", [0, 40, 190])
def test_a_rate_is_constant_between_warm_up_and_decay(decay):
    given = {"type": "warmup_stable_decay", "num_warmup_steps": 20, "num_decay_steps": decay}
    at = multiplier(resolve(None, ADAM, ScheduleSettings(**given)).schedule, 200)
    found = [at(i) for i in range(200)]
    expected = [min(1.0, i / 20, (200 - i) / decay if decay else 1.0) for i in range(200)]
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_length_of_a_decay_is_not_taken_from_another_schedule():
    pi0 = Pi0Config().training_preset()
    with refuses(UsageError, "flag.missing"):
        resolve(pi0, NOTHING[0], ScheduleSettings(type="warmup_stable_decay"))


def test_acts_preset_is_the_one_of_lerobots_run():
    optimization = resolve(ActConfig().training_preset(), *NOTHING)
    assert optimization.optimizer == json.loads(TRAINED.read_text())["optimizer"]
    assert optimization.schedule is None
    assert make_scheduler(optimization, an_optimizer(optimization), 100) is None


def test_diffusions_preset_is_adam_and_a_cosine():
    optimization = resolve(DiffusionConfig().training_preset(), *NOTHING)
    assert optimization.optimizer == {
        "type": "adam",
        "lr": 1e-4,
        "weight_decay": 1e-6,
        "grad_clip_norm": 10.0,
        "betas": [0.95, 0.999],
        "eps": 1e-8,
    }
    assert optimization.schedule == {"type": "diffuser", "num_warmup_steps": 500, "name": "cosine"}


def test_what_is_given_by_hand_wins_over_the_preset():
    by_hand = OptimizerSettings(lr=3e-4), ScheduleSettings(num_warmup_steps=7)
    optimization = resolve(DiffusionConfig().training_preset(), *by_hand)
    assert optimization.optimizer["lr"] == 3e-4
    assert optimization.optimizer["betas"] == [0.95, 0.999]
    assert optimization.schedule == {"type": "diffuser", "num_warmup_steps": 7, "name": "cosine"}


def test_another_type_keeps_what_it_shares_with_the_preset():
    optimization = resolve(ActConfig().training_preset(), OptimizerSettings(type="sgd"), NOTHING[1])
    assert optimization.optimizer == {
        "type": "sgd",
        "lr": 1e-5,
        "weight_decay": 1e-4,
        "grad_clip_norm": 10.0,
        "momentum": 0.0,
        "dampening": 0.0,
        "nesterov": False,
    }


def test_another_schedule_keeps_what_it_shares_with_the_preset():
    preset = DiffusionConfig(scheduler_warmup_steps=4).training_preset()
    optimization = resolve(preset, NOTHING[0], ScheduleSettings(type="constant_with_warmup"))
    assert optimization.schedule == {"type": "constant_with_warmup", "num_warmup_steps": 4}


@pytest.mark.parametrize(
    ("optimizer", "schedule", "flag"),
    [
        ({"type": "lion"}, {}, "--optimizer.type"),
        ({"momentum": 0.9}, {}, "--optimizer.momentum"),
        ({}, {"type": "step"}, "--scheduler.type"),
        ({}, {"type": "cosine_decay_with_warmup"}, "--scheduler.num_warmup_steps"),
        ({}, {"num_warmup_steps": 3}, "--scheduler.type"),
        ({"grad_clip_norm": -1.0}, {}, "--optimizer.grad_clip_norm"),
        ({"betas": [0.9, math.nan]}, {}, "--optimizer.betas"),
        ({"grad_skip_factor": 0.5}, {}, "--optimizer.grad_skip_factor"),
        ({}, DECAY | {"num_decay_steps": 0}, "--scheduler.num_decay_steps"),
    ],
)
def test_what_cannot_be_is_refused_by_its_flag(optimizer, schedule, flag):
    given = OptimizerSettings(**optimizer), ScheduleSettings(**schedule)
    with pytest.raises(UsageError) as refused:
        resolve(ActConfig().training_preset(), *given)
    assert flag in str(refused.value)


def test_without_the_preset_all_is_left_to_the_user():
    with refuses(UsageError, "flag.missing"):
        resolve(None, *NOTHING)
    optimization = resolve(None, OptimizerSettings(type="adamw", lr=0.1), NOTHING[1])
    assert optimization.optimizer["lr"] == 0.1
    assert optimization.optimizer["weight_decay"] == 0.01


def an_optimizer(optimization):
    weight = torch.nn.Parameter(torch.ones(2))
    return make_optimizer(
        optimization, [{"params": [weight]}, {"params": [], "lr": 0.5}], fused=False
    )


def test_numbers_that_an_optimiser_does_not_take_are_one_line():
    optimization = resolve(
        ActConfig().training_preset(), OptimizerSettings(betas=[1.5, 1.0]), NOTHING[1]
    )
    with refuses(UsageError, "flag.invalid-value"):
        an_optimizer(optimization)


def test_a_schedule_moves_every_group_by_its_own_rate():
    optimization = resolve(
        DiffusionConfig(scheduler_warmup_steps=4).training_preset(),
        OptimizerSettings(lr=0.1),
        NOTHING[1],
    )
    optimizer = an_optimizer(optimization)
    scheduler = make_scheduler(optimization, optimizer, 100)
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.0]
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.025, 0.125])


def test_gradients_are_scaled_down_and_their_norm_is_told():
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    assert clip_gradients([weight], 1.0) == 5.0
    assert weight.grad.norm() == pytest.approx(1.0, rel=1e-4)
    optimization = resolve(
        ActConfig().training_preset(), OptimizerSettings(grad_clip_norm=0.0), NOTHING[1]
    )
    assert optimization.clip_norm == math.inf


def test_a_share_of_the_rate_is_one_of_the_rate_that_was_given_by_hand() -> None:
    slow = {"params": [], LR_MULTIPLIER: 0.1}
    network: Any = SimpleNamespace(parameter_groups=lambda: [{"params": []}, slow])
    optimization = resolve(
        DiffusionConfig().training_preset(), OptimizerSettings(lr=3.0), NOTHING[1]
    )
    assert param_groups(optimization, network) == [
        {"params": []},
        {"params": [], "lr": pytest.approx(0.3)},
    ]


def test_a_group_that_keeps_its_own_rate_is_named_if_another_is_given():
    own = {"params": [torch.ones(1)], "lr": 1e-5, LR_FLAG: "policy.optimizer_lr_backbone"}
    network: Any = SimpleNamespace(parameter_groups=lambda: [{"params": []}, own])
    (note,) = own_rate_notes(OptimizerSettings(lr=1e-3), "adamw", network)
    assert "--policy.optimizer_lr_backbone" in note
    assert own_rate_notes(OptimizerSettings(), "adamw", network) == []
    assert own_rate_notes(OptimizerSettings(lr=1e-5), "adamw", network) == []
    optimization = resolve(None, ADAM, NOTHING[1])
    assert param_groups(optimization, network)[1].keys() == {"params", "lr"}


def test_a_schedule_that_names_another_rate_than_the_optimisers_says_what_becomes_of_it() -> None:
    decay = ScheduleSettings(**DECAY)
    for rate, said in (
        (1e-4, []),
        (1e-3, ["2.5e-05"]),
    ):
        optimization = resolve(None, OptimizerSettings(type="adam", lr=rate), decay)
        assert len(optimization.notes) == len(said)
        assert all(words in line for words, line in zip(said, optimization.notes, strict=True))
