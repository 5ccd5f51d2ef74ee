"""Every flag of LeRobot's robot commands is taken, noted or refused with a reason, never unknown.

``data/robots/script_flags.json`` has the flags and defaults of LeRobot 0.6.1, without those of
devices and policies.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proctor.commands.shared.all_flags import command_configs
from proctor.config.base import Config
from proctor.config.builder import build
from proctor.errors import UsageError

FLAGS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "robots" / "script_flags.json").read_text()
)
ROBOT = {"robot.type": "so101_follower", "robot.port": "sim"}
TELEOP = {"teleop.type": "so101_leader", "teleop.port": "sim"}
DATASET = {"dataset.repo_id": "me/rollout_cubes", "dataset.single_task": "lift"}
BASE = {
    "calibrate": ROBOT,
    "setup-motors": ROBOT,
    "teleoperate": {**ROBOT, **TELEOP},
    "record": {**ROBOT, **TELEOP, **DATASET},
    "replay": {**ROBOT, "dataset.repo_id": "me/cubes", "dataset.episode": "0"},
    "rollout": {
        **ROBOT,
        **TELEOP,
        **DATASET,
        "policy.type": "zero",
        "strategy.type": "dagger",
        "inference.type": "rtc",
    },
}
CASES = [(script, name) for script, flags in FLAGS.items() for name in flags]


def typed(value: Any) -> str:
    """Return a value as it is written on a command line."""
    if value is None:
        return "null"
    return json.dumps(value) if isinstance(value, dict | list | bool) else str(value)


@pytest.mark.parametrize(("script", "name"), CASES)
def test_a_flag_with_lerobots_default_is_known(script: str, name: str) -> None:
    if name in BASE[script] or FLAGS[script][name] == "" or name == "dataset":
        return  # given by the test itself, or a required flag's empty default
    config = command_configs(script)[-1]
    refusal = refusal_of(config, {**BASE[script], name: typed(FLAGS[script][name])})
    assert refusal is None or refusal.code != "flag.unknown"
    assert refusal is None or str(refusal).startswith(f"--{name}")


def refusal_of(config: type[Config], settings: dict[str, str]) -> UsageError | None:
    try:
        build(config, settings)
    except UsageError as refused:
        return refused
    return None
