"""Completion of commands, flags and values in shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proctor.cli import main
from proctor.commands.completion import candidates
from proctor.errors import UsageError
from tests.refusals import refuses


def completed(line: str) -> list[str]:
    *before, last = line.split(" ")
    return sorted(candidates(before, last))


def test_commands_and_verbs_are_completed() -> None:
    assert completed("co") == ["compare", "completion"]
    assert completed("data re") == ["reencode", "remove-feature", "rename-feature"]


def test_flags_of_the_chosen_plug_ins_are_completed() -> None:
    assert "--env.camera_name=" in completed("eval --env.type=metaworld --env.c")
    assert "--env.camera_name=" not in completed("eval --env.type=pusht --env.c")
    assert "--policy.chunk_size=" in completed("train --policy.type=act --policy.")
    assert "--dataset.repo_id=" in completed("train --")
    assert "--alpha=" in completed("compare --")
    assert "--env.type=" not in completed("eval --env.type=pusht --env.t")


def test_values_that_can_be_listed_are_completed() -> None:
    assert completed("eval --env.type=meta") == ["--env.type=metaworld"]
    assert completed("eval --eval.scheduler=") == [
        "--eval.scheduler=continuous",
        "--eval.scheduler=lockstep",
    ]
    assert completed("eval --resume=t") == ["--resume=true"]
    assert completed("eval --output_dir=") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "PROCTOR_COMPLETE=1 proctor" in capsys.readouterr().out


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from proctor.commands.completion import CompletionCommand

    with refuses(UsageError, "argument.unknown"):
        CompletionCommand(shell="tcsh").validate()
    assert main(["completion", "bas"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    program = tmp_path / "proctor"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m proctor "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(proctor completion bash)"\n'
        'COMP_LINE="proctor eval --env.type=me" COMP_POINT=26; _proctor; echo "${COMPREPLY[@]}"\n'
        'COMP_LINE="proctor data set" COMP_POINT=16; _proctor; echo "${COMPREPLY[@]}"\n'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [bash, "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.splitlines() == ["metaworld", "set-task"]


def test_a_mistake_in_an_earlier_word_completes_nothing_and_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROCTOR_COMPLETE", "1")
    monkeypatch.setattr(sys, "argv", ["proctor", "proctor", "eval", "--env.type=no", "--env.t"])
    assert main() == 0
    assert capsys.readouterr() == ("", "")
