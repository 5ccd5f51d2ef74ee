"""Reads the cameras of a robot: the map ``{front: {type: opencv, width: 640, ...}}`` of a flag."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from proctor import plugins
from proctor.errors import UsageError, did_you_mean
from proctor.parsing import enum_in, parse_flow
from proctor.robots.base import Camera, CameraConfig, Clock

_NAME = re.compile(r"[\w.-]+")
_REQUIRED = ("width", "height", "fps")
"""A robot's features are known before its cameras are opened, so their size must be given."""

MOST_SIDE = 8192
"""Largest width and height in pixels."""


def camera_configs(
    given: Mapping[str, Any] | str | None, flag: str = "robot.cameras"
) -> dict[str, CameraConfig]:
    """Return the checked config of every camera of a robot, by name and in order."""
    cameras = _as_map(given, flag)
    configs = {}
    for name, fields in cameras.items():
        _check_name(name, flag)
        config = camera_config(fields, f"{flag}.{name}")
        config.name = name
        for field in _REQUIRED:
            if getattr(config, field) is None:
                raise UsageError(
                    f"--{flag}.{name}: {field} is missing; a robot's camera needs width, height "
                    "and fps",
                    code="camera.field-missing",
                )
        configs[name] = config
    return configs


def camera_config(fields: Any, where: str) -> CameraConfig:
    """Return the checked config of one camera; ``where`` begins the text of errors."""
    if not isinstance(fields, Mapping):
        raise UsageError(
            f"--{where}: expected {{type: opencv, ...}}, got {fields!r}",
            code="camera.invalid-value",
        )
    if not fields.get("type"):
        names = ", ".join(plugins.known_plugins("cameras"))
        raise UsageError(
            f"--{where}: type is missing (choose from: {names})", code="camera.field-missing"
        )
    cls = plugins.find_camera(str(fields["type"])).config
    hints = typing.get_type_hints(cls)
    known = [field.name for field in dataclasses.fields(cls) if field.init]
    for name in fields:
        if name not in known:
            near = did_you_mean(str(name), known) or f" (choose from: {', '.join(known)})"
            raise UsageError(
                f"--{where}: unknown field {name!r}{near}", code="camera.unknown-field"
            )
    values = {
        name: _converted(value, hints[name], f"{where}.{name}") for name, value in fields.items()
    }
    _check_complete(cls, values, where)
    try:
        config = cls(**values)
    except ValueError as bad:  # of the config's __post_init__
        raise UsageError(f"--{where}: {bad}", code="camera.invalid-value") from None
    for name in _REQUIRED:
        value = getattr(config, name)
        if value is not None and not 1 <= value <= MOST_SIDE:
            raise UsageError(
                f"--{where}: {name} must be 1 to {MOST_SIDE}, got {value}",
                code="camera.invalid-value",
            )
    return config


def make_cameras(configs: Mapping[str, CameraConfig], clock: Clock) -> dict[str, Camera]:
    """Make closed cameras, by name; depth images are NAME_depth, as in LeRobot."""
    cameras: dict[str, Camera] = {}
    for name, config in configs.items():
        made = plugins.find_camera(config.type).make(config, clock)
        cameras[name] = made
        if made.depth is not None:
            if f"{name}_depth" in configs:
                raise UsageError(
                    f"--robot.cameras: {name}_depth are the depth images of {name}; choose another "
                    "name for the other camera",
                    code="camera.invalid-name",
                )
            cameras[f"{name}_depth"] = made.depth
    return cameras


def _as_map(given: Mapping[str, Any] | str | None, flag: str) -> Mapping[str, Any]:
    try:
        cameras = parse_flow(given) if isinstance(given, str) else given or {}
    except ValueError as bad:
        raise UsageError(
            f"--{flag}: {given!r} is not valid YAML or JSON ({bad})", code="camera.invalid-value"
        ) from None
    if not isinstance(cameras, Mapping):
        raise UsageError(
            f"--{flag}: expected {{NAME: {{type: opencv, ...}}}}, got {given!r}",
            code="camera.invalid-value",
        )
    return cameras


def _check_name(name: Any, flag: str) -> None:
    """Refuse a camera's name that cannot be part of a feature's name in a dataset."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"--{flag}: {name!r} is not a name of a camera", code="camera.invalid-name"
        )
    if name == "type":
        raise UsageError(
            f"--{flag}: name the camera first: {{front: {{type: ...}}}}", code="camera.invalid-name"
        )


def _converted(value: Any, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as bad:
        choices = enum_in(kind)
        if choices is not None:
            words = ", ".join(str(member.value) for member in choices)
            reason = f"got {value!r} (choose {words})"
        else:
            reason = str(bad)[0].lower() + str(bad)[1:].replace("`", "").replace(" | null", "")
            reason = f"{reason.split(', got')[0]}, got {value!r}"
        raise UsageError(f"--{where}: {reason}", code="camera.invalid-value") from None


def _check_complete(cls: type[CameraConfig], values: Mapping[str, Any], where: str) -> None:
    nothing = dataclasses.MISSING
    for field in dataclasses.fields(cls):
        needed = field.init and field.default is nothing and field.default_factory is nothing
        if needed and field.name not in values:
            raise UsageError(f"--{where}: {field.name} is missing", code="camera.field-missing")
