"""`make robot-demo`: every command's flags exist and fit together; the target runs it whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.robot_demo import commands

from proctor.commands.shared.all_flags import command_configs
from proctor.config.builder import build
from proctor.config.flags.parsing import split_argv


@pytest.mark.parametrize("number", range(4))
def test_the_flags_of_the_demo_are_valid(number: int, tmp_path: Path) -> None:
    name, *words = commands(tmp_path)[number]
    positional, given = split_argv(words, set())
    assert positional == []
    build(command_configs(name)[-1], given)
