"""One builder for every config: what a second one takes is a class, and nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proctor.benchmarks.base import BenchmarkConfig
from proctor.config.base import RunConfig, plugin_section
from proctor.config.builder import BooleanFlags, build, own_flags
from proctor.config.evaluation import EvalConfig
from proctor.config.flags.help import flags_help
from proctor.config.flags.parsing import split_argv
from proctor.errors import UsageError
from proctor.policies.base import PolicyConfig
from tests.refusals import refuses

BASE = {"policy.type": "random", "env.type": "fake"}


@dataclass
class CountingConfig(PolicyConfig):
    compile: int = field(default=0, metadata={"help": "elsewhere this is a switch"})


def make_counting(config: CountingConfig, benchmark: Any) -> None:
    """Never made."""


@dataclass
class Optimizer:
    lr: float = field(default=1e-3, metadata={"help": "learning rate"})
    fused: bool = field(default=False, metadata={"help": "one kernel for all"})


@dataclass
class MadeUpTraining(RunConfig):
    """What training may look like: the common part, a section, and now and then a world."""

    env: BenchmarkConfig | None = plugin_section("benchmarks", optional=True)  # type: ignore[assignment]
    optimizer: Optimizer = field(default_factory=Optimizer)
    steps: int = field(default=100, metadata={"help": "of the optimizer"})

    def validate(self) -> None:
        if self.env is not None:
            super().validate()
        if self.steps < 1:
            raise UsageError(f"--steps must be at least 1, got {self.steps}")


def test_a_second_config_is_a_few_lines_and_has_the_common_flags_too() -> None:
    settings = {
        "policy": {"type": "act", "chunk_size": 10, "n_action_steps": 5},
        "env.type": "fake",
        "env.n_tasks": "3",
        "optimizer.lr": "1e-4",
        "steps": "7",
        "output_dir": "out",
        "eval": {"batch_size": 2},
        "rename_map": "{a: b}",
    }
    config = build(MadeUpTraining, settings)
    assert (type(config.policy).__name__, type(config.env).__name__) == ("ActConfig", "FakeConfig")
    assert config.policy.chunk_size == 10  # type: ignore[attr-defined]
    assert config.policy.rename_map == {"a": "b"}  # type: ignore[attr-defined]
    assert (config.optimizer.lr, config.steps, config.output_dir) == (1e-4, 7, Path("out"))
    assert config.eval.batch_size == 2
    assert build(MadeUpTraining, json.loads(json.dumps(config.as_dict()))) == config


def test_an_optional_section_may_be_left_out_and_is_checked_where_it_is_not() -> None:
    assert build(MadeUpTraining, {"policy.type": "zero"}).env is None
    assert build(MadeUpTraining, {"policy.type": "zero", "env": None}).env is None
    with refuses(UsageError, "flag.missing") as refused:
        build(MadeUpTraining, {"policy.type": "zero", "env.n_tasks": 3})
    assert "--env.type" in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer.lrr": "1"}, "unknown flag --optimizer.lrr; did you mean --optimizer.lr?"),
        ({"optimizer.lr": "fast"}, "--optimizer.lr: expected float, got 'fast'"),
        ({"steps": "0"}, "--steps must be at least 1, got 0"),
        ({"against": "run"}, "unknown flag --against"),
    ],
)
def test_the_errors_of_a_second_config_name_its_flags(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        build(MadeUpTraining, {"policy.type": "zero", **settings})
    assert str(caught.value).startswith(message)


def test_the_help_of_a_second_config_has_its_own_flags_and_the_plug_ins() -> None:
    text = flags_help(MadeUpTraining, {"policy.type": "zero", "env.type": "fake"})
    for flag in ("optimizer.lr=FLOAT", "steps=INT", "seed=INT", "rename_map={", "env.n_tasks"):
        assert f"--{flag}" in text
    assert "--against" not in text


def test_switches_are_the_bool_fields_of_the_config_and_its_plug_ins() -> None:
    words = ["--env.type", "fake", "--env.endless", "--resume", "--optimizer.fused", "word"]
    positional, given = split_argv(words, BooleanFlags(MadeUpTraining, words))
    assert positional == ["word"]
    assert given == {
        "env.type": "fake", "env.endless": "true", "resume": "true", "optimizer.fused": "true",
    }  # fmt: skip
    bools = {flag.name for flag in own_flags(EvalConfig) if flag.inner is bool}
    assert {"resume", "live", "eval.strict", "wandb.enable"} <= bools
    assert all(name in BooleanFlags(EvalConfig, []) for name in bools)


def test_a_switch_of_a_plug_in_that_only_a_file_names_is_known_too() -> None:
    switches = BooleanFlags(EvalConfig, ["--resume"])
    assert "trust_remote_code" in switches
    assert "env.trust_remote_code" in switches
    assert "policy.compile" in switches
    assert "policy.chunk_size" not in switches
    assert "no_such_flag" not in switches


def test_a_flag_of_the_plug_in_that_is_named_is_what_that_one_declares() -> None:
    name = f"{__name__}:make_counting"
    assert "policy.compile" not in BooleanFlags(EvalConfig, [f"--policy.type={name}"])
    assert "policy.compile" not in BooleanFlags(EvalConfig, ["--policy.type", name])


def test_an_alias_stands_for_the_field_that_declares_it() -> None:
    named = build(EvalConfig, {"policy.type": "act", "env.type": "fake", "rename_map": {"a": "b"}})
    assert named.policy.rename_map == {"a": "b"}  # type: ignore[attr-defined]
    open_one = {"policy.path": "somewhere", "env.type": "fake", "rename_map": "{a: b}"}
    assert build(EvalConfig, open_one).policy.overrides == {"rename_map": "{a: b}"}  # type: ignore[attr-defined]
    with refuses(UsageError, "flag.not-applicable") as refused:
        build(EvalConfig, {**BASE, "rename_map": "{a: b}"})
    assert "--rename_map" in str(refused.value)


def test_a_map_in_a_file_for_a_checkpoints_field_stays_whole() -> None:
    settings = {"policy": {"path": "x", "rename_map": {"a": "b"}}, "env": {"type": "fake"}}
    assert build(EvalConfig, settings).policy.overrides == {"rename_map": {"a": "b"}}  # type: ignore[attr-defined]


@pytest.mark.parametrize("strict", [True, False])
def test_building_and_preparing_leave_the_config_as_it_was_given(strict: bool) -> None:
    config = build(EvalConfig, {"policy.type": "act", "env.type": "fake", "eval.strict": strict})
    before = config.as_dict()
    assert (config.played_policy.pad_to is None) is not strict
    assert config.policy.pad_to is None
    assert config.as_dict() == before


def test_a_setting_whose_name_is_no_text_is_unknown_in_one_line() -> None:
    from proctor.config.evaluation import EvalConfig

    settings = {1: 2, "policy": {"type": "zero"}, "env": {"type": "fake"}}
    with refuses(UsageError, "flag.unknown"):
        build(EvalConfig, settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("polcy.type", "policy.type"),
        ("evn.type", "env.type"),
        ("policy.typ", "policy.type"),
    ],
)
def test_a_misspelt_section_is_named_before_the_type_that_is_missing(
    misspelt: str, meant: str
) -> None:
    settings = {misspelt if name == meant else name: value for name, value in BASE.items()}
    with refuses(UsageError, "flag.unknown") as refused:
        build(EvalConfig, settings)
    assert f"--{meant}" in str(refused.value)


@pytest.mark.parametrize("other", ["policy.dtype", "eval.n_episodes", 1])
def test_a_missing_type_beside_other_settings_is_missing(other: Any) -> None:
    with refuses(UsageError, "flag.missing"):
        build(EvalConfig, {"env.type": "fake", other: "2"})
