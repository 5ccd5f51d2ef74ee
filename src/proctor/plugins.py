"""Finds benchmarks, policies, robots, teleoperators and cameras by name.

A name is looked up in the table of built-in plug-ins, then among entry points, then among LeRobot's
plug-in packages (``robots/third_party``); or it is ``package.module:ATTRIBUTE``. The attribute is a
plug-in or, for a policy, a factory. A plug-in is imported when it is requested.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from proctor.benchmarks.base import Benchmark, BenchmarkConfig, BenchmarkPlugin
from proctor.errors import UsageError, did_you_mean
from proctor.fingerprint import ConfigUse
from proctor.policies.base import PolicyConfig, PolicyPlugin
from proctor.policies.lerobot.config.families import (
    FAMILIES,
    FORMER_NAMES,
    REWARD_MODELS,
    UNIMPLEMENTED_FAMILIES,
    unimplemented_hint,
)
from proctor.robots.base import (
    CameraConfig,
    CameraPlugin,
    RobotConfig,
    RobotPlugin,
    TeleoperatorConfig,
    TeleoperatorPlugin,
)
from proctor.robots.third_party import (
    find_third_party,
    third_party_module,
    third_party_names,
)
from proctor.system.platform.source_files import source_hashes
from proctor.system.user_code import (
    definition_location,
    explaining_user_code_errors,
    import_user_module,
    plugin_error,
)

PYTHON_OBJECT = "python"
"""Type, in a run folder, of a policy object passed to ``proctor.evaluate``; not a flag's value."""
BUILT_IN = {
    "benchmarks": {
        "aloha": "proctor.benchmarks.aloha.benchmark:PLUGIN",
        "calvin": "proctor.benchmarks.calvin.benchmark:PLUGIN",
        "maniskill": "proctor.benchmarks.maniskill.benchmark:PLUGIN",
        "rlbench": "proctor.benchmarks.rlbench.benchmark:PLUGIN",
        "robocasa": "proctor.benchmarks.robocasa.benchmark:PLUGIN",
        "robotwin": "proctor.benchmarks.robotwin.benchmark:PLUGIN",
        "gym_hil": "proctor.benchmarks.gym_hil.benchmark:PLUGIN",
        "gym": "proctor.benchmarks.gym.registered:PLUGIN",
        "hub": "proctor.benchmarks.gym.hub:PLUGIN",
        "libero": "proctor.benchmarks.libero.benchmark:PLUGIN",
        "libero_plus": "proctor.benchmarks.libero_plus.benchmark:PLUGIN",
        "libero_pro": "proctor.benchmarks.libero_pro.benchmark:PLUGIN",
        "metaworld": "proctor.benchmarks.metaworld.benchmark:PLUGIN",
        "ogbench": "proctor.benchmarks.ogbench.benchmark:PLUGIN",
        "pusht": "proctor.benchmarks.pusht.benchmark:PLUGIN",
        "robosuite": "proctor.benchmarks.robosuite.benchmark:PLUGIN",
        "so101_nexus": "proctor.benchmarks.so101_nexus.benchmark:PLUGIN",
        "so101": "proctor.benchmarks.so101.benchmark:PLUGIN",
        "fake": "proctor.benchmarks.fake:PLUGIN",
    },
    "policies": {
        **FAMILIES,
        **REWARD_MODELS,
        "expert": "proctor.policies.scripted.expert:PLUGIN",
        "pretrained": "proctor.policies.lerobot.checkpoint.pretrained:PLUGIN",
        PYTHON_OBJECT: "proctor.policies.callable_policy:PLUGIN",
        "random": "proctor.policies.scripted.random:PLUGIN",
        "remote": "proctor.policies.remote.plugin:PLUGIN",
        "zero": "proctor.policies.scripted.zero:PLUGIN",
    },
    "robots": {
        "bi_so_follower": "proctor.robots.arms.bimanual:FOLLOWER",
        "koch_follower": "proctor.robots.arms.koch:FOLLOWER",
        "lekiwi": "proctor.robots.arms.lekiwi:PLUGIN",
        "lekiwi_client": "proctor.robots.arms.lekiwi_client:PLUGIN",
        "so100_follower": "proctor.robots.arms.so:FOLLOWER",
        "so101_follower": "proctor.robots.arms.so:FOLLOWER",
    },
    "teleoperators": {
        "bi_so_leader": "proctor.robots.arms.bimanual:LEADER",
        "gamepad": "proctor.robots.teleoperators.gamepad:PLUGIN",
        "keyboard": "proctor.robots.teleoperators.keyboard:PLUGIN",
        "keyboard_ee": "proctor.robots.teleoperators.keyboard:END_EFFECTOR_PLUGIN",
        "koch_leader": "proctor.robots.arms.koch:LEADER",
        "scripted": "proctor.robots.teleoperators.scripted:PLUGIN",
        "so100_leader": "proctor.robots.arms.so:LEADER",
        "so101_leader": "proctor.robots.arms.so:LEADER",
    },
    "cameras": {
        "intelrealsense": "proctor.robots.cameras.realsense:PLUGIN",
        "opencv": "proctor.robots.cameras.opencv:PLUGIN",
        "sim": "proctor.robots.emulation.simulated_camera:PLUGIN",
        "zmq": "proctor.robots.cameras.zmq:PLUGIN",
    },
}
"""All built-in plug-ins. A new benchmark is its folder and one line here; a new policy family is
its folder and one line in ``policies/lerobot/config/families``."""

_FLAGS = {
    "benchmarks": "--env.type",
    "policies": "--policy.type",
    "robots": "--robot.type",
    "teleoperators": "--teleop.type",
    "cameras": "--robot.cameras: type",
}
_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def find_benchmark(name: str) -> BenchmarkPlugin:
    """Return the benchmark plug-in called ``name``."""
    plugin = _find("benchmarks", name)
    if not isinstance(plugin, BenchmarkPlugin):
        raise UsageError(
            f"--env.type={name} is a {type(plugin).__name__}, not a BenchmarkPlugin",
            code="plugin.wrong-type",
        )
    _check_config(f"--env.type={name}", plugin.config, BenchmarkConfig)
    return plugin


def benchmark_maker(config: BenchmarkConfig) -> Callable[[], Benchmark]:
    """Return the factory of a benchmark, with simulators in the interpreter of the config."""
    plugin = find_benchmark(config.type)
    if plugin.starts_interpreter or (config.python is None and config.command is None):
        return plugin.maker(config)
    from proctor.benchmarks.isolated.builtin import builtin_maker

    place = BUILT_IN["benchmarks"].get(config.type, config.type)
    if ":" not in place:
        point = _entry_points("benchmarks")[config.type]
        place = f"{point.module}:{point.attr}"
    return builtin_maker(plugin, place, config)


def find_policy(name: str) -> PolicyPlugin:
    """Return the policy plug-in called ``name``."""
    found = _find("policies", name)
    plugin = found if isinstance(found, PolicyPlugin) else _from_factory(found, name)
    _check_config(f"--policy.type={name}", plugin.config, PolicyConfig)
    return plugin


def find_robot(name: str) -> RobotPlugin:
    """Return the robot plug-in called ``name``."""
    return _checked("robots", name, RobotPlugin, RobotConfig)


def find_teleoperator(name: str) -> TeleoperatorPlugin:
    """Return the teleoperator plug-in called ``name``."""
    return _checked("teleoperators", name, TeleoperatorPlugin, TeleoperatorConfig)


def find_camera(name: str) -> CameraPlugin:
    """Return the camera plug-in called ``name``."""
    return _checked("cameras", name, CameraPlugin, CameraConfig)


DeviceT = TypeVar("DeviceT", RobotPlugin, TeleoperatorPlugin, CameraPlugin)


def _checked(kind: str, name: str, plugin_class: type[DeviceT], base: type[Any]) -> DeviceT:
    """Return a device's plug-in of the right class, with a config of the right class."""
    plugin = _find(kind, name)
    what = f"{_FLAGS[kind]}={name}"
    if not isinstance(plugin, plugin_class):
        raise UsageError(
            f"{what} is a {type(plugin).__name__}, not a {plugin_class.__name__}",
            code="plugin.wrong-type",
        )
    _check_config(what, plugin.config, base)
    return plugin


def _check_config(what: str, config: Any, base: type[Any]) -> None:
    """Refuse a plug-in's config class that is not a dataclass with the right base."""
    if not (isinstance(config, type) and issubclass(config, base)):
        name = getattr(config, "__name__", repr(config))
        raise UsageError(
            f"{what}: its config {name} does not inherit from {base.__name__}",
            code="plugin.wrong-type",
        )
    if vars(config).get("__annotations__") and "__dataclass_fields__" not in vars(config):
        raise plugin_error(config, f"{config.__name__} has fields but no @dataclass above it")


def _from_factory(factory: Any, name: str) -> PolicyPlugin:
    """Make a plug-in from a callable with the parameters (config, interface).

    Its flags are the fields of the config class that annotates its first parameter.
    """
    try:
        signature = _signature(factory)
        signature.bind(None, None)
    except (TypeError, ValueError):
        place = definition_location(factory) if callable(factory) else ""
        raise UsageError(
            f"--policy.type={name} is neither a PolicyPlugin nor callable as (config, interface)"
            + (f" ({place})" if place else ""),
            code="plugin.wrong-type",
        ) from None
    annotated = next(iter(signature.parameters.values())).annotation
    is_config = isinstance(annotated, type) and issubclass(annotated, PolicyConfig)
    summary = (inspect.getdoc(factory) or name).splitlines()[0]
    return PolicyPlugin(annotated if is_config else PolicyConfig, factory, summary)


def _signature(factory: Any) -> inspect.Signature:
    try:
        return inspect.signature(factory, eval_str=True)
    except NameError:  # an annotation is imported under TYPE_CHECKING only
        return inspect.signature(factory)


def known_plugins(kind: str, use: ConfigUse = ConfigUse.EVALUATION) -> list[str]:
    """List the names of the plug-ins of ``kind``, a key of ``BUILT_IN``, for ``use``."""
    trained = kind == "policies" and use is ConfigUse.TRAINING
    ours = FAMILIES if trained else BUILT_IN[kind]
    hidden = {PYTHON_OBJECT, *REWARD_MODELS} if kind == "policies" else set()
    return sorted({*ours, *_entry_points(kind), *third_party_names(kind)} - hidden)


def is_known(kind: str, name: str, use: ConfigUse = ConfigUse.EVALUATION) -> bool:
    """Return whether there is a plug-in ``name``; LeRobot's packages are imported to see theirs."""
    return name in known_plugins(kind, use) or third_party_module(kind, name) is not None


def plugin_module(kind: str, name: str) -> str | None:
    """Return the module of a third-party plug-in; None for a built-in one."""
    if ":" in name:
        return name.partition(":")[0]
    if _current_name(kind, name) in BUILT_IN[kind]:
        return None
    if point := _entry_points(kind).get(name):
        return str(point.module)
    return third_party_module(kind, name)


def plugin_code_hashes(kind: str, name: str) -> dict[str, str]:
    """Return the hashes of a third-party plug-in's files; built-in ones have Proctor's version."""
    module = plugin_module(kind, name)
    file = None if module is None else getattr(sys.modules.get(module), "__file__", None)
    if module is None or file is None or not Path(file).is_file():  # it may be in a zip file
        return {}
    return source_hashes(Path(file), module.count(".") + (Path(file).stem == "__init__"))


def blame_plugin(kind: str, name: str) -> contextlib.AbstractContextManager[None]:
    """Add file and line to errors of a third-party plug-in; built-in ones keep their traceback."""
    if plugin_module(kind, name) is None:
        return contextlib.nullcontext()
    return explaining_user_code_errors(f"{_FLAGS[kind]}={name}", FINDERS[kind](name).make)


FINDERS: dict[str, Callable[[str], Any]] = {
    "benchmarks": find_benchmark,
    "policies": find_policy,
    "robots": find_robot,
    "teleoperators": find_teleoperator,
    "cameras": find_camera,
}


def _find(kind: str, name: str) -> Any:
    flag = _FLAGS[kind]
    if not name:
        raise UsageError(
            f"{flag} is missing (choose from: {', '.join(known_plugins(kind))})",
            code="flag.missing",
        )
    if ":" in name:
        return _load_attribute(flag, name)
    if ours := BUILT_IN[kind].get(_current_name(kind, name)):
        module, _, attribute = ours.partition(":")
        return getattr(importlib.import_module(module), attribute)
    outside = _entry_points(kind)
    if name in outside:
        with explaining_user_code_errors(f"{flag}={name}"):
            return outside[name].load()
    if adapted := find_third_party(kind, name):
        return adapted
    names = known_plugins(kind)
    hint = did_you_mean(name, names) or f" (choose from: {', '.join(names)})"
    if kind == "policies" and name in UNIMPLEMENTED_FAMILIES:
        hint = f"; {unimplemented_hint(name)}"
    raise UsageError(f"{flag}: unknown type {name!r}{hint}", code="plugin.unknown")


def _current_name(kind: str, name: str) -> str:
    """Return the current name of a renamed built-in policy type; other names unchanged."""
    return FORMER_NAMES.get(name, name) if kind == "policies" else name


def _load_attribute(flag: str, path: str) -> Any:
    if not _ATTRIBUTE.fullmatch(path):
        raise UsageError(
            f"{flag}={path}: code is named as package.module:ATTRIBUTE", code="plugin.invalid-name"
        )
    module_name, _, attribute = path.partition(":")
    with explaining_user_code_errors(f"{flag}={path}"):
        try:
            module = import_user_module(module_name)
        except ModuleNotFoundError as missing:
            if f"{module_name}.".startswith(f"{missing.name}."):  # else its own import fails
                raise UsageError(
                    f"{flag}={path}: {missing} (looked in {Path.cwd()} and in Python's path)",
                    code="plugin.not-found",
                ) from None
            raise
    if not hasattr(module, attribute):
        hint = did_you_mean(attribute, vars(module))
        raise UsageError(
            f"{flag}={path}: module {module_name} has no {attribute!r}{hint}",
            code="plugin.not-found",
        )
    return getattr(module, attribute)


def _entry_points(kind: str) -> dict[str, Any]:
    points = _installed_entry_points(tuple(sys.path))
    return {point.name: point for point in points.select(group=f"proctor.{kind}")}


@cache
def _installed_entry_points(path: tuple[str, ...]) -> Any:
    """Return the entry points of the distributions on ``path``; scanning them takes long."""
    from importlib.metadata import entry_points

    return entry_points()
