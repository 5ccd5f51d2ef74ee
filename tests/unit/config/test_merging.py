"""Settings come from flags, a config file, a resumed run and a reference run, in that order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proctor.config.flags.merging import EarlierRun, Settings, merge_settings
from proctor.errors import UsageError
from proctor.permissions import require_permission
from tests.refusals import refuses


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"a": "file", "b": "file"}))
    return str(path)


def earlier(settings: Settings) -> EarlierRun:
    assert "config_path" not in settings
    given = {"a": "resumed", "b": "resumed", "c": "resumed", "folder": "given"}
    return EarlierRun(given, "runs/1", found={"folder": "runs/1"})


def compared(settings: Settings) -> EarlierRun:
    assert settings["c"] == "resumed", "a reference is found by all other settings"
    names = ("a", "b", "c", "d")
    return EarlierRun(dict.fromkeys(names, "reference"), "runs/0")


def test_flags_win_over_the_file_the_file_over_the_resumed_run_and_that_over_the_reference(
    file: str,
) -> None:
    flags = {"config_path": file, "a": "flag"}
    assert merge_settings(flags, resumed=earlier, reference=compared) == {
        "a": "flag",
        "b": "file",
        "c": "resumed",
        "d": "reference",
        "folder": "runs/1",
    }


def test_each_source_is_optional(file: str) -> None:
    assert merge_settings({"a": "flag"}) == {"a": "flag"}
    assert merge_settings({"config_path": file}) == {"a": "file", "b": "file"}
    assert merge_settings({"a": "flag"}, resumed=lambda _: None) == {"a": "flag"}


def test_only_the_config_file_is_translated(file: str) -> None:
    def upper(settings: Settings) -> Settings:
        return {name.upper(): value for name, value in settings.items()}

    merged = merge_settings({"config_path": file, "a": "flag"}, translate=upper)
    assert merged == {"A": "file", "B": "file", "a": "flag"}


def test_no_source_but_a_flag_permits_code() -> None:
    def of_code(settings: Settings) -> EarlierRun:
        given = {"policy.type": "somewhere:CODE"}
        return EarlierRun(given, "runs/1", adapt=lambda kept: {"policy.path": "x", **kept})

    with refuses(UsageError, "code.not-trusted") as refused:
        merge_settings({}, resumed=of_code)
    assert "--policy.type=somewhere:CODE" in str(refused.value)
    flags = {"policy.type": "somewhere:CODE"}
    assert merge_settings(flags, resumed=of_code) == {**flags, "policy.path": "x"}


@pytest.mark.parametrize(
    "robot",
    [
        {"type": "so101_follower", "cameras": {"front": {"type": "evil:CAMERA", "fps": 30}}},
        {"type": "so101_follower", "cameras": "{front: {type: 'evil:CAMERA', fps: 30}}"},
        {"left_arm_config": {"cameras": {"front": {"type": "evil:CAMERA"}}}},
    ],
)
def test_a_file_cannot_name_the_code_of_a_camera(robot: dict[str, Any]) -> None:
    with refuses(UsageError, "code.not-trusted"):
        require_permission({"robot": robot}, {}, "file.yaml")
    flags = {"robot.cameras": "{front: {type: evil:CAMERA}}"}
    require_permission({"robot": robot}, flags, "file.yaml")


def test_a_flat_file_cannot_name_the_code_of_a_camera() -> None:
    with refuses(UsageError, "code.not-trusted"):
        require_permission({"robot.cameras": {"a": {"type": "evil:CAMERA"}}}, {}, "file.yaml")
