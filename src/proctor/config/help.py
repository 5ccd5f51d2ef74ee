"""The help text of a config's flags."""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from proctor import plugins
from proctor.config.base import Config, plugin_sections
from proctor.config.builder import aliased_flags, find_plugin, own_flags, plugin_flags
from proctor.config.flags import Flag
from proctor.values import inner_type


def flags_help(cls: type[Config], given: Mapping[str, str]) -> str:
    """Return the help of all flags of a config, or of the chosen plug-ins only."""
    lines = [*help_lines(own_flags(cls)), *_alias_lines(aliased_flags(cls))]
    lines += [
        "  --config_path=path",
        "      a YAML or JSON file of the same settings, nested; flags win",
    ]
    for section, marked in reversed(plugin_sections(cls).items()):
        chosen = given.get(f"{section}.type")
        for name in [chosen] if chosen else plugins.known(marked.kind):
            lines += ["", f"--{section}.type={name}: {find_plugin(marked.kind, name).summary}"]
            flags = plugin_flags(cls, section, name)
            lines += help_lines([flag for flag in flags if flag.name != f"{section}.type"])
    return "\n".join(lines) + "\n"


def help_lines(flags: list[Flag]) -> list[str]:
    """Return help text: every flag with its type, default and meaning."""
    lines = []
    for flag in flags:
        default = flag.default.value if isinstance(flag.default, Enum) else flag.default
        shown = "" if default is None else f" (default: {default if default != '' else 'none'})"
        lines.append(f"  --{flag.name}={type_name(flag.type)}")
        lines += textwrap.wrap(
            flag.help + shown, 92, initial_indent=" " * 6, subsequent_indent=" " * 6
        )
    return lines


def _alias_lines(flags: list[Flag]) -> list[str]:
    lines = []
    for flag in flags:
        value = "" if flag.is_switch else f"={type_name(flag.type)}"
        lines += [f"  --{flag.alias}{value}", f"      {flag.alias_help}"]
    return lines


def type_name(kind: Any) -> str:
    """Return how a flag's type is written in the help."""
    if inner_type(kind) is not kind:
        return type_name(inner_type(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(member.value for member in kind)
    if typing.get_origin(kind) is not None:
        inner = ",".join(type_name(arg) for arg in typing.get_args(kind) if arg is not ...)
        return f"{typing.get_origin(kind).__name__}[{inner}]"
    return "path" if kind is Path else str(kind.__name__)
