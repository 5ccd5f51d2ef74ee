"""Arguments of the Python API: checked, and converted to the settings of a config file."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from proctor import plugins
from proctor.benchmarks.base import BenchmarkConfig
from proctor.config.base import Config, plugin_sections
from proctor.config.builder import aliased_flags, own_flags
from proctor.errors import UsageError, did_you_mean
from proctor.fingerprint import to_json
from proctor.policies.callable_policy import CallableConfig, policy_name
from proctor.system.hub.repositories import HUB_ID


def check_names(
    function: str, cls: type[Config], settings: Mapping[str, Any], own: Iterable[str]
) -> None:
    """Refuse an unknown argument, and a section that is not a mapping.

    Args:
        function: the function that was called.
        cls: the config whose flags are its arguments.
        settings: the arguments that are flags.
        own: the names of all other arguments.
    """
    flags = {flag.name for flag in own_flags(cls)}
    sections = _sections(cls)
    known = {name for name in flags if "." not in name} | sections
    aliases: set[str] | None = None
    for name, value in settings.items():
        if "." not in name and name not in known:
            aliases = aliases or {str(flag.alias) for flag in aliased_flags(cls)}
            if name not in aliases:
                refuse_unknown(function, [name], known | aliases | {*own})
        if name in sections and not isinstance(value, Mapping):
            raise UsageError(
                f"{name}={value!r}: expected settings, as {name}={{...}}", code="flag.invalid-value"
            )


def refuse_unknown(function: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments that a function does not have, with the nearest that it has."""
    for name in names:
        raise UsageError(
            f"{function}() has no argument {name!r}{did_you_mean(name, set(known))}",
            code="flag.unknown",
        )


def flat_settings(cls: type[Config], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted name, as the command line has them: ``{"env.type": "fake"}``.

    So the settings of a resumed run are replaced one by one, and not a section at a time.
    """
    sections, flat = _sections(cls), dict[str, Any]()
    for name, value in settings.items():
        if name in sections and isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": setting for inner, setting in value.items()}
        else:
            flat[name] = value
    return flat


def _sections(cls: type[Config]) -> set[str]:
    flags = (flag.name for flag in own_flags(cls))
    return {name.partition(".")[0] for name in flags if "." in name} | {*plugin_sections(cls)}


def policy_settings(policy: Any) -> tuple[dict[str, Any], Any]:
    """Return the settings that name a policy, and the policy object if one was passed."""
    if policy is None:
        return {}, None
    if isinstance(policy, Mapping):
        return {"policy": plain(policy)}, None
    if isinstance(policy, str | Path):
        return {"policy": {_kind_of_name(policy): str(policy)}}, None
    return {"policy": {"type": CallableConfig.type, "name": policy_name(policy)}}, policy


def _kind_of_name(policy: str | Path) -> str:
    """Return "type" or "path": whether a text names a policy type or a checkpoint."""
    if isinstance(policy, Path):
        return "path"
    if policy in plugins.known_plugins("policies") or ":" in policy:
        return "type"
    is_path = policy.startswith(("~", ".", "/")) or HUB_ID.fullmatch(policy)
    return "path" if is_path or Path(policy).exists() else "type"


def env_settings(env: str | Mapping[str, Any] | BenchmarkConfig | None) -> dict[str, Any]:
    """Return the settings that name a benchmark."""
    if env is None:
        return {}
    if isinstance(env, BenchmarkConfig):
        return {"env": to_json(env)}
    return {"env": {"type": env} if isinstance(env, str) else plain(env)}


def put(settings: dict[str, Any], section: str, name: str, value: Any) -> None:
    """Set a setting that has its own argument; refuse it if its section has it too."""
    if value is None:
        return
    inside = dict(settings.get(section) or {})
    if name in inside or f"{section}.{name}" in settings:
        raise UsageError(
            f"{name}= and {section}[{name!r}] are both given; leave one out", code="flag.conflict"
        )
    settings[section] = inside | {name: plain(value)}


def warn_caller(text: str, category: type[Warning]) -> None:
    """Issue a Python warning at the line outside this package that called it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("proctor."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def plain(value: Any) -> Any:
    """Convert numpy numbers, paths, tuples and enums to the types of a config file."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple | set | frozenset | range):
        return [plain(item) for item in (sorted(value) if isinstance(value, set) else value)]
    return value
