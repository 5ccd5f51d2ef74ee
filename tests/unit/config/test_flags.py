from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proctor.benchmarks.fake import Fault
from proctor.config.builder import BooleanFlags, build, own_flags
from proctor.config.evaluation import EvalConfig
from proctor.config.flags.help_lines import help_lines
from proctor.config.flags.parsing import flags_of, read_config_file, split_argv
from proctor.config.sections.evaluation import SchedulerKind
from proctor.errors import UsageError
from tests.refusals import refuses

BASE = {"policy.type": "random", "env.type": "fake"}


def test_both_spellings_of_a_flag_are_the_same() -> None:
    _, given = split_argv(["--a.b=c", "--d.e", "f", "--resume", "--g=x=y"], {"resume"})
    assert given == {"a.b": "c", "d.e": "f", "resume": "true", "g": "x=y"}


def test_a_switch_takes_a_following_true_or_false_and_nothing_else() -> None:
    assert split_argv(["--resume", "false"], {"resume"}) == ([], {"resume": "false"})
    assert split_argv(["--resume", "folder"], {"resume"}) == (["folder"], {"resume": "true"})


@pytest.mark.parametrize("words", [["--seed"], ["--seed", "--resume"]])
def test_a_flag_without_its_value_is_refused(words: list[str]) -> None:
    with refuses(UsageError, "flag.missing-value") as refused:
        split_argv(words, {"resume"})
    assert "--seed" in str(refused.value)


def test_a_switch_that_is_misspelt_is_suggested() -> None:
    words = ["--resum", "--output_dir=x"]
    with refuses(UsageError, "flag.unknown") as refused:
        split_argv(words, BooleanFlags(EvalConfig, words))
    assert "did you mean --resume?" in str(refused.value)
    with refuses(UsageError, "flag.unknown") as refused:
        split_argv(["a", "b", "--unpair"], {"unpaired"})
    assert "did you mean --unpaired?" in str(refused.value)


def test_a_flag_given_twice_is_refused() -> None:
    with refuses(UsageError, "flag.duplicate") as refused:
        split_argv(["--seed=1", "--seed=2"], set())
    assert "--seed" in str(refused.value)


def test_strings_become_the_types_the_config_declares() -> None:
    config = build(
        EvalConfig,
        {
            **BASE,
            "eval.n_episodes": "3",
            "eval.use_async_envs": "false",
            "eval.watchdog_s": "2.5",
            "eval.scheduler": "lockstep",
            "env.task_ids": "[0]",
            "env.faults": '{"0/0/1":"raise"}',
            "policy.inputs": "observation.image,observation.state",
            "output_dir": "some/where",
        },
    )
    assert config.eval.n_episodes == 3
    assert config.eval.use_async_envs is False
    assert config.eval.watchdog_s == 2.5
    assert config.eval.scheduler is SchedulerKind.LOCKSTEP
    assert config.env.task_ids == [0]
    assert config.env.faults == {"0/0/1": Fault.RAISE}  # type: ignore[attr-defined]
    assert config.policy.inputs == ["observation.image", "observation.state"]  # type: ignore[attr-defined]
    assert config.output_dir == Path("some/where")


def test_a_home_folder_is_found_in_every_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somebody")
    config = build(EvalConfig, {**BASE, "output_dir": "~/a", "against": "~", "record": "~/b/~"})
    paths = (config.output_dir, config.against, config.record)
    assert paths == (Path("/somebody/a"), Path("/somebody"), Path("/somebody/b/~"))


@pytest.mark.parametrize(
    "task", ["[reach-v3,push-v3]", '["reach-v3", "push-v3"]', ["reach-v3", "push-v3"]]
)
def test_several_tasks_are_a_list_in_a_flag_a_file_and_python(tmp_path: Path, task: Any) -> None:
    from proctor.config.builder import benchmark_config_from

    flat = build(EvalConfig, {"policy.type": "zero", "env.type": "metaworld", "env.task": task})
    nested = {"policy": {"type": "zero"}, "env": {"type": "metaworld", "task": task}}
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(nested))
    of_file = build(EvalConfig, read_config_file(file))
    of_python = benchmark_config_from({"type": "metaworld", "task": task})
    assert {flat.env.task, of_file.env.task, of_python.task} == {"reach-v3,push-v3"}


def test_nested_settings_and_flat_flags_mix_and_the_later_wins() -> None:
    config = build(
        EvalConfig, {"policy": {"type": "zero"}, "env": {"type": "fake"}, "policy.type": "random"}
    )
    assert config.policy.type == "random"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"eval.n_episode": "3"}, "unknown flag --eval.n_episode; did you mean --eval.n_episodes?"),
        ({"env.taks": "x"}, "unknown flag --env.taks; did you mean --env.task?"),
        ({"eval.n_episodes": "ten"}, "--eval.n_episodes: expected int, got 'ten'"),
        ({"eval.n_episodes": "0"}, "--eval.n_episodes must be at least 1, got 0"),
        ({"eval.batch_size": "-1"}, "--eval.batch_size must be at least 0, got -1"),
        ({"eval.watchdog_s": "0"}, "--eval.watchdog_s must be above 0, got 0"),
        (
            {"eval.scheduler": "fifo"},
            "--eval.scheduler: got 'fifo' (choose continuous, lockstep)",
        ),
        (
            {"video.which": "failure"},
            "--video.which: got 'failure'; did you mean 'failures'? (choose failures, first, all)",
        ),
        (
            {"env.faults": "{0/0/1: rais}"},
            "--env.faults: got '{0/0/1: rais}' (choose raise,",
        ),
        ({"output_dir": "~nobody_here/x"}, "--output_dir: the path ~nobody_here/x begins"),
        ({"seed": "-3"}, "--seed must be at least 0, got -3"),
        (
            {"env.faults": "{0/0:raise}"},
            "--env.faults: '{0/0:raise}' is not valid YAML or JSON ('0/0:raise' has no value",
        ),
        ({"env.task_ids": "[a]"}, "--env.task_ids: expected int, got '[a]'"),
        (
            {"env.type": "metawrld"},
            "--env.type: unknown type 'metawrld'; did you mean 'metaworld'?",
        ),
        (
            {"env.type": ""},
            "--env.type is missing (choose from: aloha, calvin, fake, gym, ",
        ),
        ({"policy.type": "expret"}, "--policy.type: unknown type 'expret'; did you mean 'expert'?"),
        (
            {"env.type": "no_such_module:PLUGIN"},
            "--env.type=no_such_module:PLUGIN: No module named",
        ),
        ({"env.type": "json:loads"}, "--env.type=json:loads is a function, not a BenchmarkPlugin"),
        (
            {"policy.type": "json:loads"},
            "--policy.type=json:loads is neither a PolicyPlugin nor callable",
        ),
        (
            {"policy.type": "zero", "policy.path": "x"},
            "--policy.path states the policy's type itself",
        ),
    ],
)
def test_bad_input_gets_one_line_that_names_the_flag(flags: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(EvalConfig, {**BASE, **flags})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "policy: {type: random, n_action_steps: 3}\nenv: {type: fake}\nseed: 7\n"),
        (
            "config.json",
            json.dumps(
                {
                    "policy": {"type": "random", "n_action_steps": 3},
                    "env": {"type": "fake"},
                    "seed": 7,
                }
            ),
        ),
    ],
)
def test_config_files_are_yaml_or_json(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    config = build(EvalConfig, {**read_config_file(tmp_path / name), "seed": "8"})
    assert config.policy.n_action_steps == 3  # type: ignore[attr-defined]
    assert config.seed == 8, "flags win over the file"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "not valid YAML or JSON"),
        ("- 1", "expected a mapping"),
        ("!!python/object:os.system x", "not valid"),
    ],
)
def test_a_bad_config_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with refuses(UsageError, "config-file.invalid") as caught:
        read_config_file(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key", "place"),
    [
        ("eval:\n  n_episodes: 3\neval:\n  batch_size: 1\n", "'eval'", "on lines 1 and 3"),
        ("eval: {n_episodes: 3, n_episodes: 5}", "'eval.n_episodes'", "on line 1"),
        ("eval.n_episodes: 3\neval: {n_episodes: 5}", "'eval.n_episodes'", "on lines 1 and 2"),
        ('{"seed": 1,\n "seed": 2}', "'seed'", "on lines 1 and 2"),
        ("a: [{b: 1}, {b: 1, b: 2}]", "'a.1.b'", "on line 1"),
    ],
)
def test_a_config_file_gives_each_key_once(tmp_path: Path, text: str, key: str, place: str) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text(text)
    with refuses(UsageError, "config-file.repeated-key") as refused:
        read_config_file(path)
    assert str(path) in str(refused.value)
    assert f"{key} is given twice, {place}" in str(refused.value)


def test_a_config_file_may_merge_and_repeat_anchors(tmp_path: Path) -> None:
    path = tmp_path / "anchors.yaml"
    path.write_text("a: &base {x: 1, y: 2}\nb: *base\nc: {<<: *base, y: 3}\nd: [*base, *base]\n")
    assert read_config_file(path)["c"] == {"x": 1, "y": 3}


def test_a_missing_config_file_is_one_line(tmp_path: Path) -> None:
    with refuses(UsageError, "config-file.unreadable") as refused:
        read_config_file(tmp_path / "none.yaml")
    assert "none.yaml" in str(refused.value)


def test_the_resolved_config_can_be_given_again() -> None:
    config = build(EvalConfig, {**BASE, "output_dir": "x", "env.faults": '{"0/0/1":"raise"}'})
    assert build(EvalConfig, config.as_dict()) == config


def test_every_flag_has_a_line_of_meaning() -> None:
    from proctor import plugins

    flags = own_flags(EvalConfig)
    for name in plugins.known_plugins("benchmarks"):
        flags += flags_of(plugins.find_benchmark(name).config, "env.")
    for name in plugins.known_plugins("policies"):
        flags += flags_of(plugins.find_policy(name).config, "policy.")
    missing = [flag.name for flag in flags if not flag.help and not flag.name.endswith(".type")]
    assert missing == []
    assert any("continuous|lockstep" in line for line in help_lines(flags))


def test_help_imports_neither_torch_nor_a_simulator() -> None:
    program = (
        "import sys; from proctor.cli import main; main(['eval', '--help', 'all']); "
        "print([m for m in ('torch', 'mujoco', 'metaworld', 'gymnasium') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    for field in (
        "--eval.n_episodes=INT",
        "--env.camera_name_mapping={NAME: TEXT}",
        "480 in aloha",
    ):
        assert field in done.stdout


def test_defaults_of_the_common_part_are_those_of_the_config() -> None:
    config = build(EvalConfig, BASE)
    assert config == EvalConfig(policy=config.policy, env=config.env)
