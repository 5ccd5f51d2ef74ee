"""``--help``: levels, headings, search and layout."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.commands.shared.names import command_module
from proctor.config.base import Config
from proctor.config.evaluation import EvalConfig
from proctor.config.flags.help import help_text
from proctor.config.recording import RecordConfig
from proctor.config.training import TrainConfig


def flags_in(text: str) -> list[str]:
    return re.findall(r"^  --([\w.]+)", text, re.MULTILINE)


@pytest.mark.parametrize("config", [EvalConfig, TrainConfig, RecordConfig])
def test_the_first_level_has_the_flags_that_people_use_first(config: type[Config]) -> None:
    text = help_text(config, "eval", [], {})
    assert sorted(flags_in(text)) == sorted(config.first.split()), "all of them exist"
    assert len(flags_in(text)) == 25
    assert max(map(len, text.splitlines())) <= 98


def test_what_no_plug_in_was_chosen_for_is_said_in_words_for_all() -> None:
    text = help_text(EvalConfig, "eval", [], {})
    assert "--env.task=NAME,...            tasks or groups of tasks, comma-separated" in text
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
    assert re.search(r"--policy.n_action_steps=INT\n .*\(default: 37\)", text)
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
        (["policy", "ackt"], "did you mean act"),
        (["env", "liberro", "camera"], "did you mean libero"),
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


def test_flags_stand_under_headings() -> None:
    text = help_text(EvalConfig, "eval", [], {})
    assert re.findall(r"^(\w.*)\n  --", text, re.MULTILINE)[:5] == [
        "Policy",
        "Benchmark",
        "Episodes",
        "Simulators",
        "Run folder",
    ]
    policy = help_text(TrainConfig, "train", ["policy", "act"], {})
    headings = set(re.findall(r"^(\w.*)\n  --", policy, re.MULTILINE))
    assert headings >= {"Inference", "Network", "Training", "Hugging Face Hub"}


def test_a_search_finds_names_texts_choices_and_flags_of_plug_ins() -> None:
    def found(*words: str) -> list[str]:
        return flags_in(help_text(EvalConfig, "eval", words, {}))

    assert "eval.n_episodes" in found("N_EPISODES")
    assert "eval.n_episodes" in found("n-episodes")
    assert "eval.scheduler" in found("lockstep")
    assert "eval.watchdog_s" in found("worker", "process")
    assert "eval.batch_size" not in found("worker", "process")
    assert found("shadow") == ["env.shadow_map"]
    assert found("libero", "comma", "camera") == ["env.camera_name"]


def test_a_search_lists_a_flag_of_several_plug_ins_once_with_each_default() -> None:
    text = help_text(EvalConfig, "eval", ["chunk_size"], {})
    (entry,) = re.findall(r"--policy\.chunk_size=INT\n((?:      .*\n)+)", text)
    assert "50 in groot_n15, pi0, pi05, pi0_fast, smolvla; 20 in language_act" in " ".join(
        entry.split()
    )


def test_a_search_is_limited_to_the_chosen_plug_in() -> None:
    text = help_text(EvalConfig, "eval", ["chunk_size"], {"policy.type": "act"})
    assert "(default: 100) [act]" in text


def test_the_name_of_a_plug_in_shows_its_flags() -> None:
    assert help_text(EvalConfig, "eval", ["libero"], {}) == help_text(
        EvalConfig, "eval", ["env", "libero"], {}
    )


def test_every_command_searches(capsys: pytest.CaptureFixture[str]) -> None:
    for words, flag in {
        "train --help gradient accumulation": "accelerator.gradient_accumulation.steps",
        "record --help noise": "record.noise",
        "serve --help tls": "tls_cert",
        "compare a b --help significance": "alpha",
        "report --help=csv": "csv",
        "audit --help again": "episodes",
        "data view --help rerun": "rerun",
        "data edit --help stats": "operation.skip_image_video",
        "data --help in_place": "in_place",
        "help data delete in_place": "in_place",
        "--help in_place": "in_place",
    }.items():
        assert main(words.split()) == 0, words
        assert flag in flags_in(capsys.readouterr().out), words


def test_a_search_over_all_commands_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "video.fps"]) == 0
    assert "[eval, train, train-online]" in capsys.readouterr().out
    assert main(["data", "--help", "key", "frame"]) == 0
    assert "[to-video, reencode]" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["", "eval", "train", "compare", "data", "data push"])
def test_a_search_without_a_result_is_one_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--help", "xyzzy"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'xyzzy'" in line


def test_words_that_no_flag_has_together_are_told_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["eval", "--help", "shadow", "wandb"]) == 2
    assert "give fewer words" in capsys.readouterr().err


class Terminal(io.StringIO):
    """Standard output that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def on_a_terminal(command: str, *words: str) -> str:
    """Return what a command prints, without ``main``, which replaces standard output."""
    with contextlib.redirect_stdout(Terminal()) as stream:
        assert import_module(command_module(command)).run(list(words)) == 0
    return stream.getvalue()


@pytest.mark.parametrize("words", ["eval --help policy act", "train --help", "data view --help"])
def test_help_fits_the_terminal_and_is_coloured_there(words: str) -> None:
    text = on_a_terminal(*words.split())
    assert "\033[1m" in text
    plain = re.sub(r"\033\[\d*m", "", text)
    flags_part = plain[plain.index("\n  --") :]
    too_long = [line for line in flags_part.splitlines() if len(line) > 60 and " " in line.strip()]
    assert [line for line in too_long if not line.lstrip().startswith(("--", "proctor "))] == []


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in on_a_terminal("eval", "--help")


def test_piped_help_has_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--help", "all"]) == 0
    assert "\033" not in capsys.readouterr().out


def test_the_first_level_does_not_wait_for_numpy() -> None:
    program = (
        "import sys; from proctor.cli import main; main(['eval', '--help']);"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'torch', 'rich', 'yaml')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == 0


def test_the_help_of_a_training_lists_the_flags_of_a_reward_model() -> None:
    wanted = {"reward_model.type", "reward_model.path", "reward_model.num_cameras"}
    for topic in (["reward_model"], ["all"]):
        assert set(flags_in(help_text(TrainConfig, "train", topic, {}))) >= wanted
