"""Finds LeRobot's plug-in packages of third parties and adapts their devices.

A distribution named ``lerobot_robot_NAME``, ``lerobot_teleoperator_NAME`` or
``lerobot_camera_NAME`` registers config classes with LeRobot when it is imported, so LeRobot must
be installed too. It is imported by ``proctor list``, and when a type is asked for that Proctor does
not have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from proctor.errors import UsageError, did_you_mean
from proctor.parsing import container_of, inner_type
from proctor.robots.base import (
    Camera,
    CameraConfig,
    CameraPlugin,
    Clock,
    RobotConfig,
    RobotPlugin,
    TeleoperatorConfig,
    TeleoperatorPlugin,
)
from proctor.system.user_code import explaining_user_code_errors

DevicePlugin = RobotPlugin | TeleoperatorPlugin | CameraPlugin
_SIMPLE = (int, float, str, bool, Path, type(None))
_CAMERA_MODULES = {"intelrealsense": "realsense"}
"""Camera types of LeRobot that are not in a module of their own name."""


@dataclass(frozen=True)
class _DeviceKind:
    """One kind of device in LeRobot."""

    flag: str
    prefix: str
    package: str
    config: str
    """Class with the registry of types."""
    base: type[Any]
    """Our class with the flags that every device of the kind has."""


_KINDS = {
    "robots": _DeviceKind(
        "--robot.type", "lerobot_robot_", "lerobot.robots", "RobotConfig", RobotConfig
    ),
    "teleoperators": _DeviceKind(
        "--teleop.type",
        "lerobot_teleoperator_",
        "lerobot.teleoperators",
        "TeleoperatorConfig",
        TeleoperatorConfig,
    ),
    "cameras": _DeviceKind(
        "--robot.cameras: type", "lerobot_camera_", "lerobot.cameras", "CameraConfig", CameraConfig
    ),
}


def third_party_names(kind: str) -> list[str]:
    """List the types that imported packages registered; a package is imported on demand."""
    if kind not in _KINDS:
        return []
    imported = [module for module in _modules(kind) if module in sys.modules]
    return [name for module in imported for name in _registered(kind, module)]


def import_third_party(kind: str) -> dict[str, str]:
    """Import all packages of a kind; return those that fail, each with the reason."""
    failed = {}
    for module in _modules(kind) if kind in _KINDS else ():
        try:
            _import(kind, module.removeprefix(_KINDS[kind].prefix), module)
        except UsageError as error:
            failed[module] = str(error)
    return failed


def find_third_party(kind: str, name: str) -> DevicePlugin | None:
    """Return the adapted plug-in that registers the type ``name``; None if there is none."""
    module = third_party_module(kind, name)
    if module is None:
        return None
    return _adapted(kind, name, _registered(kind, module)[name])


def third_party_module(kind: str, name: str) -> str | None:
    """Return the package that registers the type ``name``; it is imported. None: there is none."""
    if kind not in _KINDS:
        return None
    own = _KINDS[kind].prefix + name
    for module in sorted(_modules(kind), key=lambda module: module != own):
        if module == own:
            _import(kind, name, module)
        else:
            with contextlib.suppress(UsageError):  # a broken package hides no other one
                _import(kind, name, module)
        if module in sys.modules and name in _registered(kind, module):
            return module
        if module == own:
            types = ", ".join(_registered(kind, module)) or "none"
            raise UsageError(
                f"{_KINDS[kind].flag}={name}: the package {module} has the types: {types}",
                code="plugin.unknown",
            )
    return None


def _modules(kind: str) -> tuple[str, ...]:
    """Return the packages of a kind that are installed, sorted."""
    prefix = _KINDS[kind].prefix
    return tuple(name for name in _installed(tuple(sys.path)) if name.startswith(prefix))


@cache
def _installed(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of all distributions on ``path`` that are LeRobot's plug-ins.

    A distribution has a folder of metadata, as ``lerobot_robot_acme-1.0.dist-info``. Its name is
    enough, and reading the metadata of all distributions takes 0.2 s.
    """
    folders = [Path(entry) for entry in path]
    found = [file.name for folder in folders for file in folder.glob("lerobot[_-]*-info")]
    names = {re.split(r"-\d|\.", name)[0].replace("-", "_") for name in found}
    prefixes = tuple(kind.prefix for kind in _KINDS.values())
    return tuple(sorted(name for name in names if name.startswith(prefixes)))


def _import(kind: str, name: str, module: str) -> None:
    """Import a package."""
    what = f"{_KINDS[kind].flag}={name}: {module}"
    with explaining_user_code_errors(what):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as missing:
            if (missing.name or "").partition(".")[0] == "lerobot":
                raise UsageError(
                    f"{what} needs LeRobot ({missing}); run: pip install lerobot",
                    code="plugin.needs-lerobot",
                ) from None
            raise


def _registry(kind: str) -> Any:
    """Return LeRobot's class that knows all registered types of a kind."""
    of = _KINDS[kind]
    return getattr(importlib.import_module(of.package), of.config)


def _registered(kind: str, module: str) -> dict[str, Any]:
    """Return the types that an imported package registered: name -> config class."""
    known: Mapping[str, Any] = _registry(kind).get_known_choices()
    return {
        name: config
        for name, config in known.items()
        if config.__module__.partition(".")[0] == module
    }


@cache
def _adapted(kind: str, name: str, theirs: Any) -> DevicePlugin:
    from proctor.robots import lerobot_devices as adapters  # imports numpy

    flags = flags_class(theirs, _KINDS[kind].base, name)
    summary = f"{name} of the package {theirs.__module__.partition('.')[0]}"
    if kind == "robots":
        return RobotPlugin(flags, lambda c: adapters.LerobotRobot(_made(kind, theirs, c)), summary)
    if kind == "teleoperators":
        return TeleoperatorPlugin(
            flags, lambda c: adapters.LerobotTeleoperator(_made(kind, theirs, c)), summary
        )

    def make_camera(config: Any, clock: Clock) -> Camera:
        return adapters.LerobotCamera(_made(kind, theirs, config), clock)

    return CameraPlugin(flags, make_camera, summary)


def flags_class(theirs: type[Any], base: type[Any], name: str) -> type[Any]:
    """Return a config class with our common flags and the fields of LeRobot's config class."""
    hints = typing.get_type_hints(theirs)
    common = {field.name for field in dataclasses.fields(base)}
    fields: list[tuple[str, Any, Any]] = [
        ("type", str, dataclasses.field(default=name, kw_only=True))
    ]
    for field in dataclasses.fields(theirs):
        if field.init and field.name not in common:
            fields.append((field.name, _flag_type(hints[field.name]), _copied(field)))
    return dataclasses.make_dataclass(f"{theirs.__name__}Flags", fields, bases=(base,))


def _copied(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=field.default_factory, kw_only=True)
    if field.default is not dataclasses.MISSING:
        return dataclasses.field(default=field.default, kw_only=True)
    return dataclasses.field(kw_only=True)


def _flag_type(hint: Any) -> Any:
    """Return the type of a flag for a field: its own if flags have it, else a map or text."""
    inner = inner_type(hint)
    if container_of(hint) is dict and not _is_simple(hint):
        return dict[str, Any]
    if dataclasses.is_dataclass(inner) and all(map(_is_simple, _hints_of(inner))):
        return hint
    return hint if _is_simple(hint) else Any


def _hints_of(cls: Any) -> Iterator[Any]:
    return iter(typing.get_type_hints(cls).values())


def _is_simple(hint: Any) -> bool:
    """Return whether flags can have this type."""
    arguments = typing.get_args(hint)
    if arguments:
        return all(_is_simple(argument) for argument in arguments if argument is not Ellipsis)
    return hint in _SIMPLE or (isinstance(hint, type) and issubclass(hint, enum.Enum))


def _made(kind: str, theirs: type[Any], config: Any) -> Any:
    """Make LeRobot's device from our flags, through LeRobot's own factory."""
    what = f"{_KINDS[kind].flag}={config.type}"
    settings = _settings(theirs, config)
    try:
        made = theirs(**settings)
    except (TypeError, ValueError) as bad:
        raise UsageError(f"{what}: {bad}", code="flag.invalid-value") from bad
    with explaining_user_code_errors(what, theirs):
        if kind == "cameras":
            return _factory("cameras", "make_cameras_from_configs")({"camera": made})["camera"]
        word = "robot" if kind == "robots" else "teleoperator"
        return _factory(kind, f"make_{word}_from_config")(made)


def _factory(kind: str, name: str) -> Callable[[Any], Any]:
    factory: Callable[[Any], Any] = getattr(
        importlib.import_module(f"{_KINDS[kind].package}.utils"), name
    )
    return factory


def _settings(theirs: type[Any], config: Any) -> dict[str, Any]:
    """Return the values for LeRobot's config class; what is None is left to its default."""
    hints = typing.get_type_hints(theirs)
    settings = {}
    for field in dataclasses.fields(theirs):
        if field.init and (value := getattr(config, field.name, None)) is not None:
            settings[field.name] = _with_choices(hints[field.name], value, field.name)
    return settings


def _with_choices(hint: Any, value: Any, where: str) -> Any:
    """Return a map of configs by type, as ``cameras``, with LeRobot's config classes."""
    arguments = typing.get_args(inner_type(hint))
    if not isinstance(value, Mapping) or len(arguments) != 2:
        return value
    registry = arguments[1]
    if not hasattr(registry, "get_known_choices"):
        return value
    return {name: _choice(registry, fields, f"{where}.{name}") for name, fields in value.items()}


def _choice(registry: Any, fields: Any, where: str) -> Any:
    if not isinstance(fields, Mapping):
        return fields
    name = str(fields.get("type", ""))
    with contextlib.suppress(ImportError):  # LeRobot registers a camera when it is imported
        importlib.import_module(f"lerobot.cameras.{_CAMERA_MODULES.get(name, name)}")
    known = registry.get_known_choices()
    if name not in known:
        near = did_you_mean(name, known) or f" (choose from: {', '.join(known)})"
        raise UsageError(f"{where}: unknown type {name!r}{near}", code="plugin.unknown")
    try:
        return known[name](**{key: value for key, value in fields.items() if key != "type"})
    except (TypeError, ValueError) as bad:
        raise UsageError(f"{where}: {bad}", code="flag.invalid-value") from bad
