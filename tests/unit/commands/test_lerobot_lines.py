"""Command lines of LeRobot's documentation: each runs as it stands, or is refused with the mend.

The table is ``tests/unit/config/data/lerobot_lines.json``: the lines for Meta-World, LIBERO, PushT
and ALOHA, and one line at least of every other command. A line that runs is read here up to its
checked config; ``test_lerobot_command_lines`` plays some to their end.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from proctor import cli
from proctor.cli import main
from proctor.commands.data.lerobot import DataEditCommand
from proctor.commands.evaluation.eval_settings import settings_from
from proctor.commands.lerobot import INSTEAD, RUN_AS, translate
from proctor.commands.shared.all_flags import CONFIGS, command_configs, plain_command
from proctor.commands.shared.arguments import choose_config, split_arguments
from proctor.commands.training.train import settings_from as training_settings_from
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.config.lerobot.training import drop_lerobot_settings
from proctor.config.training import TrainConfig
from proctor.errors import ProctorError, UsageError
from tests.refusals import refuses

FILE = Path(__file__).parents[1] / "config" / "data" / "lerobot_lines.json"
LINES: list[dict[str, Any]] = json.loads(FILE.read_text())
SCRIPTS = [
    "calibrate", "find-cameras", "find-port", "record", "replay", "setup-motors", "teleoperate",
    "convert-dcp", "eval", "train", "train-tokenizer", "dataset-viz", "info", "find-joint-limits",
    "imgtransform-viz", "edit-dataset", "setup-can", "annotate", "rollout",
]  # fmt: skip
"""The commands that LeRobot 0.6.1 installs, each with the prefix ``lerobot-``."""


def read(line: str) -> None:
    """Read a line as ``proctor`` does, up to its checked config."""
    words = translate(shlex.split(line))
    assert words is not None
    command, *rest = words
    if command == "eval":
        build(EvalConfig, settings_from(split_arguments(EvalConfig, rest)[1]))
    elif command == "train":
        settings, _ = training_settings_from(split_arguments(TrainConfig, rest)[1])
        build(TrainConfig, drop_lerobot_settings(settings))
    elif command == "data":
        assert DataEditCommand.parse("proctor data edit", rest[1:]) is not None
    elif command in CONFIGS:
        config = choose_config(command_configs(command), rest)
        build(config, split_arguments(config, rest)[1])
    elif command in ("find-port", "find-cameras"):  # they look at this machine's devices
        assert plain_command(command).parse(f"proctor {command}", rest) is not None
    else:
        assert main([command, *rest]) == 0


def read_checkpoint_of(family: str, folder: Path) -> None:
    """Read the config of a checkpoint of ``family``."""
    pytest.importorskip("torch")
    from proctor.policies.lerobot.checkpoint.checkpoint import read_config

    (folder / "config.json").write_text(json.dumps({"type": family}))
    read_config(folder)


@pytest.mark.parametrize("row", LINES, ids=lambda row: f"{row['page']}: {row['line'][:60]}")
def test_a_line_of_lerobots_documentation_runs_or_is_refused_with_the_mend(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if row["verdict"] == "runs":
        read(row["line"])
        return
    if "family" in row:
        read(row["line"])  # its flags are accepted
    with pytest.raises(ProctorError) as refused:
        read_checkpoint_of(row["family"], tmp_path) if "family" in row else read(row["line"])
    assert refused.value.code == row["verdict"]
    assert row["mend"] in str(refused.value)


def test_the_table_has_lines_for_every_benchmark_and_command() -> None:
    text = " ".join(row["line"] for row in LINES)
    for name in ("metaworld", "libero", "pusht", "aloha"):
        assert f"--env.type={name}" in text
    for command in ("eval", "train", "edit-dataset"):
        ran = [r for r in LINES if r["line"].startswith(f"lerobot-{command} ")]
        assert sum(row["verdict"] == "runs" for row in ran) >= 10


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_command_of_lerobot_runs_or_is_named_with_ours(name: str) -> None:
    assert (name in RUN_AS) != (name in INSTEAD)
    for spelt in (f"lerobot-{name}", name, f"lerobot_{name.replace('-', '_')}"):
        if name in RUN_AS:
            assert (translate([spelt, "--x=1"]) or [])[-1] == "--x=1"
        else:
            with refuses(UsageError, "command.lerobot"):
                translate([spelt])


def test_our_own_commands_are_not_lerobots(capsys: pytest.CaptureFixture[str]) -> None:
    assert not set(INSTEAD) & set(cli.COMMANDS)
    assert translate(["evaluate"]) is None
    assert main(["lerobot-eval", "--help"]) == 0
    assert "proctor eval" in capsys.readouterr().out
    assert main(["edit-dataset", "--operation.type=rotate"]) == 2
    assert "unknown operation" in capsys.readouterr().err
    assert main(["calibrate"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("flag", ["--dataset.num_episodes=5", "--dataset.single_task=x"])
def test_flags_of_lerobots_record_are_refused_with_ours(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["record", "--policy.type=expert", "--env.type=fake", "--dataset.root=d", flag]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--record.n_episodes" in line or "proctor data set-task" in line


def test_an_edit_is_read_from_a_file(tmp_path: Path) -> None:
    operation = {"type": "delete_episodes", "episode_indices": [0, 2]}
    file = tmp_path / "edit.json"
    file.write_text(json.dumps({"repo_id": "a/b", "root": None, "operation": operation}))
    words = [f"--config_path={file}", "--repo_id=c/d"]
    command = DataEditCommand.parse("proctor data edit", words)
    assert command is not None
    assert command.repo_id == "c/d"
    assert command.operation.episode_indices == "[0, 2]"  # type: ignore[attr-defined]
