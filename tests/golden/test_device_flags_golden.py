"""Flags of robots, teleoperators and cameras are LeRobot 0.6.1's, with its defaults.

Differences are listed here with their reason; a flag that is not listed must be equal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proctor import plugins
from proctor.commands.shared.all_flags import command_configs
from proctor.config.builder import build, own_flags
from proctor.config.flags.parsing import Flag, flags_of
from proctor.fingerprint import to_json

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "robots" / "device_flags.json").read_text()
)
REQUIRED = "(required)"
OTHER_DEFAULTS = {
    ("lekiwi", "cameras"): "the same cameras; each names its type",
    ("lekiwi_client", "cameras"): "the same cameras; each names its type",
    ("intelrealsense", "serial_number_or_name"): "a missing one is refused when it is opened",
    ("zmq", "server_address"): "a missing one is refused when it is opened",
    ("opencv", "index_or_path"): "the first camera",
}
"""(type, flag) -> why our default differs."""
ABSENT_FLAGS = {
    ("gamepad", "hidapi_fallback"): "accepted as false: there is one way to read it",
    ("lekiwi_client", "teleop_keys"): "accepted with a note: the keyboard teleoperator has keys",
}
"""(type, flag) -> why we lack the flag."""
ABSENT_TYPES = {
    "omx_follower": "not supported",
    "omx_leader": "not supported",
    "keyboard_rover": "there is no rover to drive",
    "reachy2_camera": "not supported",
    "phone": "in none of LeRobot's commands either",
}


def cases(kind: str) -> list[Any]:
    return [
        pytest.param(kind, name, flags, id=name)
        for name, flags in GOLDEN[kind].items()
        if name not in ABSENT_TYPES
    ]


@pytest.mark.parametrize(
    ("kind", "name", "theirs"), [*cases("robots"), *cases("teleoperators"), *cases("cameras")]
)
def test_a_device_has_lerobots_flags_and_defaults(
    kind: str, name: str, theirs: dict[str, Any]
) -> None:
    ours = {flag.name: flag for flag in flags_of(plugins.FINDERS[kind](name).config)}
    missing = [n for n in theirs if n not in ours and (name, n) not in ABSENT_FLAGS]
    assert missing == []
    different = {
        n: (default_of(ours[n]), said["default"])
        for n, said in theirs.items()
        if n in ours and (name, n) not in OTHER_DEFAULTS
        if default_of(ours[n]) != said["default"]
    }
    assert different == {}


def default_of(flag: Flag) -> Any:
    return REQUIRED if flag.required else to_json(flag.default)


@pytest.mark.parametrize("script", GOLDEN["scripts"])
def test_a_command_takes_lerobots_flags_with_their_defaults(script: str) -> None:
    name = script.removeprefix("lerobot-")
    (config,) = command_configs(name)
    ours = {flag.name: flag for flag in own_flags(config)}
    devices = {"teleop.type": "so101_leader", "teleop.port": "sim"}
    if name == "teleoperate":
        devices |= {"robot.type": "so101_follower", "robot.port": "sim"}
    for flag, said in GOLDEN["scripts"][script].items():
        if flag.endswith(".type"):
            kind = {"robot": "robots", "teleop": "teleoperators"}[flag.partition(".")[0]]
            assert plugins.known_plugins(kind)
        elif flag in ours:
            assert default_of(ours[flag]) == said["default"]
        else:
            build(config, {**devices, flag: json.dumps(said["default"])})  # accepted


def test_absent_types_are_not_there() -> None:
    known = {*plugins.BUILT_IN["robots"], *plugins.BUILT_IN["teleoperators"]}
    assert not known & set(ABSENT_TYPES)


def test_absent_flags_are_accepted_with_their_default() -> None:
    (config,) = command_configs("teleoperate")
    devices = {"robot.type": "so101_follower", "robot.port": "sim", "teleop.type": "gamepad"}
    given = {"teleop.hidapi_fallback": "false", "robot.teleop_keys": "{forward: w}"}
    assert len(build(config, {**devices, **given}).notes) == 2
