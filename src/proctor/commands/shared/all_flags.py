"""The flags of all commands, for ``proctor --help WORD``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TypeVar

from proctor.commands.shared.verbs import VERBS, flags_of_verbs
from proctor.config.base import Config
from proctor.config.flags.command import CommandConfig
from proctor.config.flags.help import all_flags
from proctor.config.flags.help_search import OwnedFlag

Kind = TypeVar("Kind")
CONFIGS = {
    "eval": (
        "proctor.config.evaluation:EvalConfig",
        "proctor.config.robot_evaluation:RobotEvalConfig",
    ),
    "record": (
        "proctor.config.recording:RecordConfig",
        "proctor.config.robot_recording:RobotRecordConfig",
    ),
    "replay": ("proctor.config.replay:ReplayConfig",),
    "train": ("proctor.config.training:TrainConfig",),
    "train-online": ("proctor.config.online_training:OnlineTrainConfig",),
    "serve": ("proctor.config.serving:ServeConfig",),
    "teleoperate": ("proctor.config.sections.devices:TeleoperateConfig",),
    "rollout": ("proctor.config.rollout:RolloutConfig",),
    "calibrate": ("proctor.config.sections.devices:OneDeviceConfig",),
    "setup-motors": ("proctor.config.sections.devices:OneDeviceConfig",),
}
"""Configs of the commands with plug-ins: the usual one, then those that ``choose_config`` takes
where the words name a section of theirs, as --robot.type."""
PLAIN = {
    "report": "proctor.commands.evaluation.report:ReportCommand",
    "audit": "proctor.commands.evaluation.audit:AuditCommand",
    "compare": "proctor.commands.evaluation.compare:CompareCommand",
    "reproduce": "proctor.commands.evaluation.reproduce:ReproduceCommand",
    "plan": "proctor.commands.evaluation.plan:PlanCommand",
    "view": "proctor.commands.evaluation.view:ViewCommand",
    "doctor": "proctor.commands.doctor:DoctorCommand",
    "info": "proctor.commands.info:InfoCommand",
    "find-port": "proctor.commands.robots.find_port:FindPortCommand",
    "find-cameras": "proctor.commands.robots.find_cameras:FindCamerasCommand",
    "completion": "proctor.commands.completion:CompletionCommand",
}
"""Commands without plug-ins, and without verbs."""


def command_configs(name: str) -> list[type[Config]]:
    """Return the configs of a command with plug-ins, the usual one first."""
    return [_load(where, Config) for where in CONFIGS[name]]


def plain_command(name: str) -> type[CommandConfig]:
    """Return the class of a command without plug-ins."""
    return _load(PLAIN[name], CommandConfig)


def _load(where: str, kind: type[Kind]) -> type[Kind]:
    module, _, attribute = where.partition(":")
    found: type[Kind] = getattr(import_module(module), attribute)
    assert issubclass(found, kind)
    return found


def flags_of_commands() -> list[OwnedFlag]:
    """List the flags of all commands with the command, and those of plug-ins with the plug-in."""
    found: dict[tuple[str, str, str], OwnedFlag] = {}
    for one in _flags_of_commands():
        found.setdefault((one.flag.name, one.flag.help, one.owner), one)
    return list(found.values())


def _flags_of_commands() -> Iterator[OwnedFlag]:
    for name in CONFIGS:
        for config in command_configs(name):
            for one in all_flags(config, {}):
                yield one if one.owner else OwnedFlag(one.flag, "Commands", name)
    for name in PLAIN:
        for one in plain_command(name).all_flags():
            yield OwnedFlag(one.flag, "Commands", name)
    for command in VERBS:
        for one in flags_of_verbs(command):
            yield OwnedFlag(one.flag, "Commands", f"{command} {one.owner}")
