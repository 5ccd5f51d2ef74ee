"""Keys come from a flag, a file or the environment, and reach nobody but the server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proctor import cli
from proctor.commands.evaluation.eval_several import evaluate_several, variants_of
from proctor.config.base import Config
from proctor.config.builder import build, own_flags
from proctor.config.evaluation import EvalConfig
from proctor.config.online_training import OnlineTrainConfig
from proctor.config.serving import ServeConfig
from proctor.config.training import TrainConfig
from proctor.errors import EXIT_INTERRUPTED, UsageError
from proctor.fingerprint import API_KEY_VARIABLE, without_secrets
from proctor.policies.remote.config import RemoteConfig, check_flags
from proctor.system.platform.environment import hidden_keys, key_variable
from tests.refusals import refuses
from tests.unit.protocols.serving import served

KEY = "SESAME-0123456789"
REMOTE = {"policy.type": "remote", "policy.url": "ws://127.0.0.1:1", "env.type": "fake"}


@pytest.fixture(autouse=True)
def no_key_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    return path


def eval_key(settings: dict[str, Any]) -> Any:
    return vars(build(EvalConfig, {**REMOTE, **settings}).policy)["api_key"]


def serve_key(settings: dict[str, Any]) -> Any:
    own = {name.removeprefix("policy."): value for name, value in settings.items()}
    return build(ServeConfig, {"policy.type": "random", "env.type": "fake", **own}).api_key


@pytest.mark.parametrize("key_of", [eval_key, serve_key])
def test_a_key_comes_from_a_flag_a_file_or_a_variable(
    key_of: Callable[[dict[str, Any]], Any], key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert key_of({}) is None
    assert key_of({"policy.api_key": KEY}) == KEY
    assert key_of({"policy.api_key_file": str(key_file)}) == KEY
    monkeypatch.setenv(API_KEY_VARIABLE, "")
    assert key_of({}) is None
    monkeypatch.setenv(API_KEY_VARIABLE, KEY)
    assert key_of({}) == KEY
    assert key_of({"policy.api_key_file": str(key_file), "policy.api_key": KEY}) == KEY


def online_key(settings: dict[str, Any]) -> Any:
    own = {name.removeprefix("policy."): value for name, value in settings.items()}
    learner = {"role": "learner", "policy.type": "gaussian_actor", "env.type": "fake"}
    return build(OnlineTrainConfig, learner | own).api_key


@pytest.mark.parametrize("key_of", [eval_key, serve_key, online_key])
@pytest.mark.parametrize("key", ["", "ab\tc", "\x7f"])
def test_an_empty_or_unprintable_key_is_refused(
    key_of: Callable[[dict[str, Any]], Any], key: str
) -> None:
    with refuses(UsageError, "secret.invalid"):
        policy = key_of({"policy.api_key": key})
        check_flags(RemoteConfig(url="ws://127.0.0.1:1", api_key=policy))


def test_a_learner_for_other_machines_needs_a_key_before_anything_is_written() -> None:
    with refuses(UsageError, "rl.key-missing"):
        online_key({"learner": "0.0.0.0:50051"})
    assert online_key({"learner": "0.0.0.0:50051", "policy.api_key": KEY}) == KEY
    assert online_key({"learner": "127.0.0.1:50051"}) is None


@pytest.mark.parametrize("key_of", [eval_key, serve_key])
def test_sources_that_differ_are_refused_without_showing_a_key(
    key_of: Callable[[dict[str, Any]], Any], key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError) as refused:
        key_of({"policy.api_key_file": str(key_file), "policy.api_key": "another"})
    assert "api_key_file" in str(refused.value)
    assert KEY not in str(refused.value)
    monkeypatch.setenv(API_KEY_VARIABLE, "another")
    with refuses(UsageError, "secret.conflict") as refused:
        key_of({"policy.api_key": KEY})
    assert API_KEY_VARIABLE in str(refused.value)
    assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    "content", [b"", b"\n", f"{KEY} b".encode(), b"a\nb", b"\xff", b"a" * 5000]
)
def test_a_file_that_holds_no_key_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    code = "secret.unreadable" if len(content) > 4096 else "secret.invalid"
    with refuses(UsageError, code) as refused:
        eval_key({"policy.api_key_file": str(path)})
    assert "--policy.api_key_file" in str(refused.value)
    assert KEY not in str(refused.value)
    with refuses(UsageError, "secret.unreadable") as refused:
        eval_key({"policy.api_key_file": str(tmp_path / "none")})
    assert "--policy.api_key_file" in str(refused.value)


def test_a_config_with_a_key_from_a_file_can_be_built_again_elsewhere(key_file: Path) -> None:
    """A cluster's nodes are sent the settings, and have neither the file nor the variable."""
    config = build(EvalConfig, {**REMOTE, "policy.api_key_file": str(key_file)})
    key_file.unlink()
    assert build(EvalConfig, config.as_dict()) == config


def test_a_key_in_the_url_is_refused() -> None:
    with pytest.raises(UsageError) as refused:
        check_flags(RemoteConfig(url=f"ws://127.0.0.1:1/?api_key={KEY}"))
    assert API_KEY_VARIABLE in str(refused.value)


def holders(folder: Path) -> list[str]:
    """The files below a folder that hold the key."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [str(path.relative_to(folder)) for path in files if KEY.encode() in path.read_bytes()]


EVAL = ("eval", "--policy.type=remote", "--env.type=fake", "--env.episode_length=5",
        "--eval.n_episodes=2", "--wandb.enable", "--wandb.mode=offline")  # fmt: skip


@pytest.mark.parametrize("flag", ["--policy.api_key={key}", "--policy.api_key_file={file}"])
def test_neither_the_run_nor_wandb_holds_the_key_of_a_command(
    flag: str, key_file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("wandb", reason="W&B is not installed (proctor[wandb])")
    run = tmp_path / "run"
    with served(api_key=KEY) as (url, _):
        words = [*EVAL, f"--policy.url={url}", f"--output_dir={run}"]
        words.append(flag.format(key=KEY, file=key_file))
        done = subprocess.run(
            [sys.executable, "-m", "proctor.cli", *words], capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    assert list(run.glob("wandb/offline-run-*"))
    assert holders(run) == []
    assert KEY not in done.stdout + done.stderr


def test_nothing_of_a_run_holds_the_secrets_of_its_flags(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="W&B is not installed (proctor[wandb])")
    run = tmp_path / "run"
    with served() as (url, _):
        words = [
            *EVAL,
            f"--policy.url={url}/?token={KEY}",
            f"--env.command=env MY_TOKEN={KEY} {sys.executable}",
            f"--wandb.notes=see https://me:{KEY}@site/",
            f"--record={run / 'rollouts'}",
            "--record_images=false",
            f"--output_dir={run}",
        ]
        command = [sys.executable, "-m", "proctor.cli"]
        done = subprocess.run([*command, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert list(run.glob("wandb/offline-run-*"))
        assert (run / "report.html").is_file()
        assert holders(run) == []
        assert KEY not in done.stdout + done.stderr

        again = [*command, "eval", "--resume", f"--output_dir={run}"]
        done = subprocess.run(again, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--policy.url=" in done.stderr, "a secret that was not recorded is given again"
    assert KEY not in done.stderr


@pytest.mark.parametrize("config", [EvalConfig, OnlineTrainConfig, ServeConfig, TrainConfig])
def test_no_record_of_settings_holds_a_secret_of_any_flag(config: type[Config]) -> None:
    flags = [flag.name for flag in own_flags(config) if flag.inner in (str, list[str])]
    given = {name: [f"wss://me:{KEY}@host/?x={KEY}"] for name in flags}
    given |= {"env.kwargs": {"password": KEY}, "robot.cameras": {"a": {"url": f"x://{KEY}@b"}}}
    assert KEY not in str(without_secrets(SimpleConfig(), given))


@dataclass
class SimpleConfig:
    """A config without keys."""


def test_a_url_that_is_refused_is_shown_without_its_password() -> None:
    with refuses(UsageError, "flag.invalid-value") as refused:
        check_flags(RemoteConfig(url=f"ws://me:{KEY}@127.0.0.1:1"))
    assert KEY not in str(refused.value)


def test_wandb_is_not_told_the_words_of_a_script_that_evaluates(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="W&B is not installed (proctor[wandb])")
    script, run = tmp_path / "script.py", tmp_path / "run"
    script.write_text(
        "import sys, proctor\n"
        "if __name__ == '__main__':\n"
        "    proctor.evaluate(policy='random', env='fake', n_episodes=2, output_dir=sys.argv[1],\n"
        "        wandb={'enable': True, 'mode': 'offline'})\n"
    )
    command = [sys.executable, str(script), str(run), KEY]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(run.glob("wandb/offline-run-*"))
    assert holders(run) == []


def test_libraries_do_not_see_the_words_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["proctor", "list", "benchmarks", f"--api_key={KEY}"])
    cli.main()
    assert sys.argv == ["proctor"]


def test_how_to_resume_several_runs_is_said_without_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {**REMOTE, "policy.api_key": KEY, "seed": "1,2", "output_dir": str(tmp_path / "runs")}
    variants = variants_of(dict(given))
    evaluate_several(variants, given, lambda settings, name: (tmp_path, EXIT_INTERRUPTED))
    said = capsys.readouterr().err
    assert "--resume" in said
    assert KEY not in said


@pytest.mark.parametrize("variable", ["PROCTOR_API_KEY", "WANDB_API_KEY"])
def test_child_processes_of_a_command_do_not_get_keys(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "planted-secret")
    with hidden_keys():
        assert key_variable(variable) == "planted-secret"
        environment = subprocess.run(
            [sys.executable, "-c", "import os; print(dict(os.environ))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert "planted-secret" not in environment
    assert os.environ[variable] == "planted-secret"
