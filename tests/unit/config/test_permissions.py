"""Files permit nothing: what they set is used only if a flag names it too (proctor/permissions)."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proctor import cli, plugins
from proctor import config as config_package
from proctor.config.base import Config, plugin_sections
from proctor.config.builder import plugin_flags
from proctor.config.flags.parsing import Flag, flags_of
from proctor.errors import UsageError
from proctor.permissions import (
    NAMES,
    RECORDING_PLACES,
    SWITCHES,
    permission_flags,
    require_permission,
)
from tests.refusals import refuses

FLAGS_OF_FILES = re.compile(
    r"(^|[._])(trust\w*|open|hosts?|address|ip|urls?|cluster|learner|push_to_hub|private|overwrite|"
    r"backup|force|command|python|(api_|tls_)?key(_file)?|tls_cert|token)$"
)
"""Names that a permission may have."""
HARMLESS = {
    "strategy.save_key": "a key of the keyboard",
    "policy.rotation_key": "the name of an observation",
    "policy.domain_feature_key": "the name of a column",
    "policy.private": "counts with policy.push_to_hub",
    "dataset.private": "counts with dataset.push_to_hub",
    "policy.n_action_pred_token": "a number of action chunks",
}


def every_flag() -> Iterator[Flag]:
    for module in pkgutil.iter_modules(config_package.__path__):
        importlib.import_module(f"proctor.config.{module.name}")
    waiting: list[type[Config]] = [Config]
    while waiting:
        config = waiting.pop()
        waiting += config.__subclasses__()
        sections = plugin_sections(config)
        yield from flags_of(config, sections=dict.fromkeys(sections), use=config.use)
        for name, section in sections.items():
            for plugin in plugins.known_plugins(section.kind, config.use):
                yield from plugin_flags(config, name, plugin)


def test_every_flag_that_looks_like_a_permission_is_one() -> None:
    looks = {flag.name for flag in every_flag() if FLAGS_OF_FILES.search(flag.name)}
    assert sorted(looks - set(NAMES) - HARMLESS.keys()) == []


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"host": "0.0.0.0"}, "--host=0.0.0.0"),
        ({"host": ""}, "--host="),
        ({"host": {"address": "192.168.0.2"}}, "--host.address=192.168.0.2"),
        ({"live_host": "0"}, "--live_host=0"),
        ({"learner": "0.0.0.0:50051"}, "--learner=0.0.0.0:50051"),
        (
            {"policy": {"actor_learner_config": {"learner_host": "a.b", "learner_port": 7}}},
            "--learner=a.b:7",
        ),
        ({"policy.actor_learner_config": "{learner_host: a.b}"}, "--learner=a.b:50051"),
        ({"display_ip": "10.0.0.1"}, "--display_ip=10.0.0.1"),
        ({"cluster": "ray://a:10001"}, "--cluster=ray://a:10001"),
        ({"trust": True}, "--trust=true"),
        ({"policy": {"trust": "yes"}}, "--policy.trust=yes"),
        ({"env": {"trust_remote_code": True}}, "--trust_remote_code=true"),
        ({"wandb": {"enable": 1}}, "--wandb.enable=1"),
        ({"policy": {"push_to_hub": True}}, "--policy.push_to_hub=true"),
        ({"dataset.push_to_hub": "true"}, "--dataset.push_to_hub=true"),
        ({"api_key": "k"}, "--api_key_file=FILE"),
        ({"policy": {"api_key_file": "/home/me/token"}}, "--policy.api_key_file=/home/me/token"),
        ({"tls_key": "key.pem"}, "--tls_key=key.pem"),
        ({"output_dir": "/etc/x"}, "--output_dir=/etc/x"),
        ({"output_dir": "a/../../x"}, "--output_dir=a/../../x"),
        ({"record": "~/x"}, "--record='~/x'"),
        ({"backup": False}, "--backup=false"),
        ({"operation": {"overwrite": True}}, "--operation.overwrite=true"),
        ({"env": {"command": "docker run x"}}, "--env.command='docker run x'"),
        ({"env": "{python: /x/python}"}, "--env.python=/x/python"),
        ({"policy.url": "ws://a/?***"}, "--policy.url="),
        ({"env": {"kwargs": {"token": "***"}}}, "--env.kwargs="),
    ],
)
def test_a_file_needs_the_flag_of_every_permission(
    settings: dict[str, Any], flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        require_permission(settings, {}, "file.yaml")
    assert refused.value.code in ("file.not-permitted", "code.not-trusted")
    assert f" {flag}" in str(refused.value)
    name, _, value = flag.removeprefix("--").partition("=")
    require_permission(settings, {name: value.strip("'")}, "file.yaml")


def test_what_a_file_may_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    harmless = {
        "host": "127.0.0.1",
        "learner": "localhost:50051",
        "live_host": "::1",
        "cluster": "auto",
        "trust": False,
        "wandb": {"enable": True, "mode": "offline", "entity": "team", "project": "p"},
        "policy": {"type": "remote", "url": "ws://host:1", "push_to_hub": "false", "api_key": None},
        "dataset": {"root": "/data", "push_to_hub": None, "private": False},
        "output_dir": "outputs/x",
        "backup": True,
        "rename_map": {"a": "b"},
    }
    require_permission(harmless, {}, "file.yaml")


def test_a_server_needs_a_flag_where_a_key_would_be_sent_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"policy": {"type": "remote", "url": "ws://127.0.0.1:8000"}}
    with refuses(UsageError, "file.not-permitted"):
        require_permission(settings, {"policy.api_key_file": "key"}, "file.yaml")
    monkeypatch.setenv("PROCTOR_API_KEY", "key")
    with refuses(UsageError, "file.not-permitted"):
        require_permission(settings, {}, "file.yaml")
    require_permission(settings, {"policy.url": "ws://mine"}, "file.yaml")


def test_an_upload_goes_where_a_flag_says() -> None:
    settings = {"policy": {"repo_id": "other/repo", "private": False}}
    require_permission(settings, {}, "file.yaml")
    with refuses(UsageError, "file.not-permitted") as refused:
        require_permission(settings, {"policy.push_to_hub": "true"}, "file.yaml")
    assert "--policy.repo_id=other/repo --policy.private=false" in str(refused.value)
    online = {"wandb": {"enable": True, "mode": "offline"}}
    with refuses(UsageError, "file.not-permitted"):
        require_permission(online, {"wandb.mode": "online"}, "file.yaml")
    with refuses(UsageError, "file.not-permitted"):
        require_permission({"wandb": {"entity": "other"}}, {"wandb.enable": "true"}, "file.yaml")


def test_the_output_folder_of_a_flag_may_be_written(tmp_path: Path) -> None:
    settings = {"record": str(tmp_path / "run" / "rollouts")}
    require_permission(settings, {"output_dir": str(tmp_path / "run")}, "file.yaml")
    with refuses(UsageError, "file.not-permitted"):
        require_permission(settings, {"output_dir": str(tmp_path / "other")}, "file.yaml")


def test_a_recording_does_not_write_the_folder_of_a_file(tmp_path: Path) -> None:
    settings = {"dataset": {"root": str(tmp_path)}}
    with refuses(UsageError, "file.not-permitted"):
        require_permission(settings, {}, "file.yaml", RECORDING_PLACES)


def test_both_spellings_of_a_setting_are_checked() -> None:
    settings = {"env.command": "", "env": {"command": "planted"}}
    with refuses(UsageError, "code.not-trusted"):
        require_permission(settings, {}, "file.yaml")


def test_the_resume_line_names_all_that_the_run_needs_again() -> None:
    settings = {
        "policy": {"type": "remote", "url": "ws://a/?token=secret", "api_key": "secret"},
        "wandb.enable": "true",
        "output_dir": "/elsewhere",
    }
    said = permission_flags(settings, but=("output_dir",))
    assert "secret" not in said
    given = {word.partition("=")[0].removeprefix("--"): "x" for word in said.split()}
    require_permission(settings, given | {"output_dir": "x"}, "runs/1")
    assert permission_flags({"policy.type": "zero", "env.type": "fake"}) == ""


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("eval", {"policy": {"type": "zero"}, "env": {"type": "fake"}, "live_host": "0.0.0.0"}),
        ("record", {"policy": {"type": "zero"}, "env": {"type": "fake"}, "output_dir": "/x/y"}),
        ("record", {"robot": {"type": "so101_follower"}, "dataset": {"push_to_hub": True}}),
        ("rollout", {"robot": {"type": "so101_follower"}, "dataset": {"root": "/x/y"}}),
        ("teleoperate", {"robot": {"type": "so101_follower"}, "live_host": "0.0.0.0"}),
        ("replay", {"robot": {"type": "planted:ROBOT"}}),
        ("calibrate", {"robot": {"type": "planted:ROBOT"}}),
        ("eval", {"robot": {"type": "so101_follower"}, "display_ip": "10.0.0.1"}),
        ("serve", {"policy": {"type": "zero"}, "host": "0.0.0.0", "trust": True}),
        ("train", {"policy": {"type": "act", "push_to_hub": True, "repo_id": "a/b"}}),
        ("train", {"reward_model": {"type": "reward_classifier", "push_to_hub": True}}),
        ("train-online", {"env": {"type": "gym_manipulator", "robot": {"type": "planted:ROBOT"}}}),
        ("train-online", {"env": {"type": "fake"}, "wandb": {"enable": True}}),
        ("data edit", {"operation": {"type": "info"}, "push_to_hub": True}),
    ],
)
def test_no_command_takes_a_permission_from_its_config_file(
    command: str, settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(settings))
    assert cli.main([*command.split(), f"--config_path={file}"]) == 2
    said = capsys.readouterr().err
    assert "sets what only flags may permit" in said
    assert said.count("\n") == 1


def test_a_permission_can_be_declined() -> None:
    for name in SWITCHES:
        require_permission({name: "true"}, {name: "false"}, "file.yaml")
