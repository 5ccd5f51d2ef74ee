"""Flags of earlier versions: read from files without effect, unknown on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.commands.evaluation.eval_settings import settings_from
from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.config.flags.removed_flags import REMOVED_FLAGS
from proctor.errors import UsageError
from proctor.evaluation.run import Evaluation

RUN = {"policy.type": "random", "env.type": "fake"}


@pytest.mark.parametrize("flag", sorted(REMOVED_FLAGS))
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_config_file_of_an_earlier_version_is_read(
    tmp_path: Path, flag: str, is_nested: bool
) -> None:
    section, _, name = flag.partition(".")
    old: dict[str, Any] = {section: {name: 3, "n_episodes": 2}} if is_nested else {flag: 3}
    file = tmp_path / "old.json"
    file.write_text(json.dumps(RUN | old))
    config = build(EvalConfig, settings_from({"config_path": str(file)}))
    assert config.eval.n_episodes == (2 if is_nested else 50)


@pytest.mark.parametrize("flag", sorted(REMOVED_FLAGS))
def test_a_run_folder_of_an_earlier_version_is_resumed(
    run: Callable[..., Evaluation], flag: str
) -> None:
    path = run(eval__n_episodes=1).path
    record = json.loads((path / "run.json").read_text())
    record["config"]["given"][flag] = "3"
    (path / "run.json").write_text(json.dumps(record))
    settings = settings_from({"resume": "true", "output_dir": str(path)})
    assert build(EvalConfig, settings).resume


@pytest.mark.parametrize("flag", sorted(REMOVED_FLAGS))
def test_on_the_command_line_a_removed_flag_is_unknown(flag: str) -> None:
    with pytest.raises(UsageError) as refused:
        build(EvalConfig, settings_from(RUN | {flag: "3"}))
    assert f"--{flag}" in str(refused.value)
