"""Layout of help texts: one flag's name, type, meaning and default as lines."""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from proctor.config.flags import Flag
from proctor.parsing import inner_type

WIDTH = 98
_INDENT = " " * 6


def help_lines(flags: Iterable[Flag]) -> list[str]:
    """Return every flag with its type, its meaning below it, and its default."""
    return [line for flag in flags for line in entry(flag_usage(flag), flag.help, flag)]


def entry(usage: str, text: str, flag: Flag | None = None) -> list[str]:
    """Return ``usage`` with ``text`` below it, followed by the default of ``flag``."""
    said = text if flag is None else text + default_text(flag)
    return [
        f"  {usage}",
        *textwrap.wrap(said, 92, initial_indent=_INDENT, subsequent_indent=_INDENT),
    ]


def flag_usage(flag: Flag) -> str:
    """Return how a flag is written: ``--port=int``, ``--in_place``, ``--csv[=FILE]``."""
    if flag.inner is bool and flag.default is False:
        return f"--{flag.name}"
    value = f"={flag.placeholder or type_name(flag.type)}"
    return f"--{flag.name}[{value}]" if flag.optional_value else f"--{flag.name}{value}"


def default_text(flag: Flag) -> str:
    """Return " (default: 8)", " (required)", or nothing for a flag that is unset by default."""
    if flag.required:
        return " (required)"
    default = flag.default.value if isinstance(flag.default, Enum) else flag.default
    if default is None or default is False:
        return ""
    return f" (default: {default if default != '' else 'none'})"


def two_columns(name: str, text: str, width: int) -> list[str]:
    """Return ``text`` beside ``name``, or below it where the name is too long for its column."""
    beside = textwrap.wrap(text, WIDTH - width)
    first = [f"{name:<{width}}{beside.pop(0)}" if len(name) < width and beside else name]
    return first + [" " * width + line for line in beside]


def type_name(kind: Any) -> str:
    """Return how a flag's type is written in help texts."""
    if inner_type(kind) is not kind:
        return type_name(inner_type(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(member.value for member in kind)
    if typing.get_origin(kind) is not None:
        inner = ",".join(type_name(arg) for arg in typing.get_args(kind) if arg is not ...)
        return f"{typing.get_origin(kind).__name__}[{inner}]"
    return "path" if kind is Path else str(kind.__name__)
