"""``--help`` in levels."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.config.base import Config
from proctor.config.evaluation import EvalConfig
from proctor.config.help import help_text
from proctor.config.recording import RecordConfig
from proctor.config.training import TrainConfig


def flags_in(text: str) -> list[str]:
    return re.findall(r"^  --([\w.]+)", text, re.MULTILINE)


@pytest.mark.parametrize("config", [EvalConfig, TrainConfig, RecordConfig])
def test_the_first_level_has_the_flags_that_people_use_first(config: type[Config]) -> None:
    text = help_text(config, "eval", [], {})
    assert flags_in(text) == config.first.split(), "all of them exist"
    assert len(flags_in(text)) == 25
    assert max(map(len, text.splitlines())) <= 98


def test_what_no_plug_in_was_chosen_for_is_said_in_words_for_all() -> None:
    text = help_text(EvalConfig, "eval", [], {})
    assert "--env.task=str               tasks or groups of tasks, comma-separated\n" in text
    assert "Aloha" not in text


def test_chosen_plug_ins_show_their_flags() -> None:
    text = help_text(EvalConfig, "eval", [], {"policy.type": "random", "env.type": "metaworld"})
    assert "policy.inputs" in flags_in(text)
    assert "env.camera_name" in flags_in(text)
    assert "(default: mt50)" in text


def test_a_checkpoint_shows_the_flags_of_its_policy_with_its_own_values(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"type": "act", "n_action_steps": 37}))
    text = help_text(EvalConfig, "eval", [], {"policy.path": str(tmp_path)})
    assert f"--policy.path={tmp_path}: act" in text
    assert re.search(r"--policy.n_action_steps=int\n .*\(default: 37\)", text)
    assert "policy.chunk_size" in flags_in(text)


def test_topics_are_a_plug_in_a_part_or_all() -> None:
    assert "env.control_mode" in flags_in(help_text(EvalConfig, "eval", ["env", "libero"], {}))
    assert "policy.chunk_size" in flags_in(help_text(EvalConfig, "eval", ["policy", "act"], {}))
    assert set(flags_in(help_text(EvalConfig, "eval", ["wandb"], {}))) >= {"wandb.enable"}
    assert "Meta-World" in help_text(EvalConfig, "eval", ["env"], {})
    every = flags_in(help_text(EvalConfig, "eval", ["all"], {}))
    assert len(every) > 150
    assert set(every) >= {name for name in EvalConfig.first.split() if not name.endswith(".type")}


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        (["nonsense"], "choose all, policy NAME, env NAME, eval, video, wandb"),
        (["policy", "ackt"], "did you mean 'act'?"),
        (["env", "libero", "x"], "there is no such topic"),
    ],
)
def test_a_topic_that_is_none_is_one_line(
    topic: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--help", *topic]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_words_after_help_may_stand_behind_an_equals_sign(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["eval", "--help=video"]) == 0
    assert "video.which" in flags_in(capsys.readouterr().out)
    assert main(["eval", "video"]) == 2, "without --help it is no flag"


def test_a_checkpoint_that_is_none_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("[1]")
    assert main(["eval", f"--policy.path={tmp_path}", "--help"]) == 2
    assert str(tmp_path / "config.json") in capsys.readouterr().err
