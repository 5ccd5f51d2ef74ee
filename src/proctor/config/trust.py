"""Permission to run third-party code: flags give it, files never do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from proctor.config.base import RunConfig
from proctor.config.builder import get_setting
from proctor.config.removed_flags import without_removed_flags
from proctor.errors import UsageError
from proctor.parsing import parse_flow

TRUST = ("trust_remote_code", "env.trust_remote_code")
"""Both spellings of the flag that permits code from the Hub."""
CODE_NAMES = ("policy.type", "env.type", "env.id", "robot.type", "teleop.type")
"""Flags whose value may be MODULE:NAME; the module is then imported."""
PROGRAM_NAMES = ("env.python", "env.command")
"""Flags whose value is a program that is run."""
_DEVICES = ("robot", "teleop")
"""Sections whose maps may name code: cameras have types too."""


def without_code_trust(
    settings: dict[str, Any], flags: Mapping[str, Any], origin: str
) -> dict[str, Any]:
    """Return settings from a file without the permission to run third-party code.

    A file may come from anywhere, a flag comes from the user. The permission must be a flag, and
    ``module:ATTRIBUTE``, which is imported, is refused unless a flag names it too. So is a program.
    Flags that only an earlier version had are left out: every file that settings are read from
    comes through here.

    Raises:
        UsageError: with the flag that says that the code is to be trusted.
    """
    for name in CODE_NAMES:
        section, _, field_name = name.partition(".")
        value = get_setting(section, field_name, settings)
        if ":" in value and flags.get(name) != value:
            raise UsageError(
                f"{origin} asks to import {value}; if you trust that code, add --{name}={value}",
                code="code.not-trusted",
            )
    for name in PROGRAM_NAMES:
        section, _, field_name = name.partition(".")
        value = get_setting(section, field_name, settings)
        if value and name not in flags:
            raise UsageError(
                f"{origin} asks to run {value}; if you trust that program, add "
                f"--{name}={shlex.quote(value)}",
                code="code.not-trusted",
            )
    _refuse_nested_code(settings, flags, origin)
    known = without_removed_flags(settings)
    kept = {name: value for name, value in known.items() if name not in TRUST}
    if isinstance(kept.get("env"), dict):
        kept["env"] = {k: v for k, v in kept["env"].items() if k != TRUST[0]}
    return kept


def _refuse_nested_code(settings: Mapping[str, Any], flags: Mapping[str, Any], origin: str) -> None:
    """Refuse a camera of a device whose type is code, unless a flag gives the cameras."""
    for name, given in settings.items():
        section = str(name).partition(".")[0]
        if section not in _DEVICES or name in CODE_NAMES:
            continue
        said = [str(text) for flag, text in flags.items() if flag.startswith(f"{section}.")]
        for value in _named_types(given):
            own_type = get_setting(section, "type", settings) == value
            if not own_type and not any(value in text for text in said):
                raise UsageError(
                    f"{origin} asks to import {value}; if you trust that code, give it as a flag: "
                    f"--{section}.cameras='{{NAME: {{type: {value}, ...}}}}'",
                    code="code.not-trusted",
                )


def _named_types(value: Any) -> Iterator[str]:
    """Yield the types in nested maps that name code as MODULE:NAME; text may hold a map too."""
    if isinstance(value, str) and ":" in value:
        try:
            value = parse_flow(value)
        except ValueError:
            return  # refused later, when the flag is read
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        if key == "type" and ":" in str(inner):
            yield str(inner)
        yield from _named_types(inner)


def code_flags(config: RunConfig) -> str:
    """Return the flags that name or permit code, which a resumed run needs again."""
    values = (config.policy.type, config.env.type, str(getattr(config.env, "id", "")))
    named = zip(("policy.type", "env.type", "env.id"), values, strict=True)
    flags = [f" --{name}={shlex.quote(value)}" for name, value in named if ":" in value]
    programs = zip(PROGRAM_NAMES, (config.env.python, config.env.command), strict=True)
    flags += [f" --{name}={shlex.quote(value)}" for name, value in programs if value]
    trust = getattr(config.env, "trust_remote_code", False)
    return "".join(flags) + " --trust_remote_code" * bool(trust)
