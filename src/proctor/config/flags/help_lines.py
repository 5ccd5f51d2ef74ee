"""Layout of help texts: how a flag is typed, its meaning, and its default as one types it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import textwrap
import typing
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum
from os import environ
from pathlib import Path
from typing import Any

from proctor.config.flags.parsing import Flag
from proctor.parsing import inner_type, parse_flow

WIDTH = 98
"""Columns of help that is piped, and the most columns on a terminal."""
FLAGS = "Flags"
"""Heading of flags without a group."""
VARIES = object()
"""Default of a flag that has another default in each plug-in: none is printed."""
_LEAST_WIDTH, _LEAST_TWO_COLUMNS = 40, 70
_LONGEST_DEFAULT = 90
_INDENT = " " * 6
_NAMES = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", bool: "true|false"}
_NEEDS_NO_QUOTES = re.compile(r"[\w@%+=:,./\[\]-]+", re.ASCII)
_BOLD, _CYAN, _RESET = "\033[1m", "\033[36m", "\033[0m"


def help_width() -> int:
    """Return the columns of help on standard output: those of the terminal, or ``WIDTH``."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(_LEAST_WIDTH, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def print_help(text: str) -> None:
    """Print help; on a terminal, headings are bold and flags coloured (unless NO_COLOR is set)."""
    if sys.stdout.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb":
        text = re.sub(r"(?m)^(\S.*)(?=\n  \S)", rf"{_BOLD}\1{_RESET}", text)
        text = re.sub(r"(?m)^  (--[\w.-]+)", rf"  {_CYAN}\1{_RESET}", text)
    print(text, end="")


def group_flags(flags: Iterable[Flag]) -> dict[str, list[Flag]]:
    """Return the flags by heading, in the order in which the headings first occur."""
    groups: dict[str, list[Flag]] = {}
    for flag in flags:
        groups.setdefault(flag.group or FLAGS, []).append(flag)
    return groups


def grouped_lines(flags: Iterable[Flag], width: int = WIDTH) -> list[str]:
    """Return every flag with its meaning and default, under headings with a blank line before."""
    lines: list[str] = []
    for heading, members in group_flags(flags).items():
        lines += ["", heading, *help_lines(members, width)]
    return lines


def help_lines(flags: Iterable[Flag], width: int = WIDTH) -> list[str]:
    """Return every flag with its type and its other name; its meaning and default below it."""
    lines: list[str] = []
    for flag in flags:
        other = "" if flag.alias is None else flag_usage(replace(flag, name=flag.alias))
        usage = f"{flag_usage(flag)} (or {other})" if other else flag_usage(flag)
        lines += entry(usage, flag_text(flag), width)
    return lines


def entry(usage: str, text: str, width: int = WIDTH) -> list[str]:
    """Return ``usage`` with ``text`` below it."""
    most = min(width, WIDTH - len(_INDENT))
    return [
        f"  {usage}",
        *_wrapped(f"{_INDENT}{text}", most, _INDENT),
    ]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def short_lines(flags: Iterable[Flag], name_width: int, width: int = WIDTH) -> list[str]:
    """Return one line per flag where it fits: its name beside its meaning and default."""
    if width < _LEAST_TWO_COLUMNS:
        return help_lines(flags, width)
    return [
        line
        for flag in flags
        for line in two_columns(f"  {flag_usage(flag)}", flag_text(flag), name_width, width)
    ]


def two_columns(name: str, text: str, name_width: int, width: int = WIDTH) -> list[str]:
    """Return ``text`` beside ``name``, or below it where the name is too long for its column."""
    if width < _LEAST_TWO_COLUMNS:
        return [
            name,
            *textwrap.wrap(text, width, initial_indent=_INDENT, subsequent_indent=_INDENT),
        ]
    beside = _wrapped(text, width - name_width)
    first = [f"{name:<{name_width}}{beside.pop(0)}" if len(name) < name_width and beside else name]
    return first + [" " * name_width + line for line in beside]


def flag_usage(flag: Flag) -> str:
    """Return how a flag is typed: ``--port=INT``, ``--in_place``, ``--csv[=FILE]``."""
    if flag.inner is bool and flag.default is False:
        return f"--{flag.name}"
    listed = "NAME,..." if flag.names else type_name(flag.type)
    value = f"={flag.placeholder or listed}"
    return f"--{flag.name}[{value}]" if flag.optional_value else f"--{flag.name}{value}"


def flag_text(flag: Flag) -> str:
    """Return what a flag does and its default."""
    return flag.help + default_text(flag)


def default_text(flag: Flag) -> str:
    """Return " (default: 8)", " (default: 0 = no limit)", " (required)", or nothing for a switch.

    Where the default means something else than it says (None, empty, or very long), only its
    meaning is printed: " (default: all tasks)".
    """
    if flag.required:
        return " (required)"
    if flag.default is VARIES or flag.default is False:
        return ""
    typed, meaning = typed_default(flag), flag.default_help
    if meaning.startswith("required"):
        return f" ({meaning})"
    if meaning and (flag.default in (None, "", [], {}) or len(str(typed)) > _LONGEST_DEFAULT):
        return f" (default: {meaning})"
    if typed is None:
        return ""
    return f" (default: {typed} = {meaning})" if meaning else f" (default: {typed})"


def typed_default(flag: Flag) -> str | None:
    """Return the default as one types it in a shell, or None where no text gives it.

    Of text flags, None is such a default: ``--name=none`` is the text "none".
    """
    if flag.default is None and flag.inner is str:
        return None
    text = _typed(flag.default)
    return text if _NEEDS_NO_QUOTES.fullmatch(text) else shlex.quote(text)


def _typed(value: Any) -> str:
    """Return a value as the text of a flag, before the shell's quotes."""
    if isinstance(value, list | tuple) and value and all(isinstance(v, str) for v in value):
        return ",".join(value)
    if isinstance(value, list | tuple | dict):
        return _flow(value)
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


def _flow(value: Any) -> str:
    """Return a list or map in YAML's flow style: ``[1,2]``, ``{STATE: MEAN_STD}``."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_flow, value)) + "]"
    text = _scalar(value)
    if not isinstance(value, str | Enum):
        return text
    plain = re.fullmatch(r"[\w./-]+", text) and parse_flow(f"[{text}]") == [text]
    return text if plain else json.dumps(text)


def type_name(kind: Any) -> str:
    """Return how the value of a flag is written in help texts."""
    kind = inner_type(kind)
    origin, args = typing.get_origin(kind), list(_value_types(kind))
    if origin is dict:
        name = "NAME" if args[0] is str else type_name(args[0])
        return f"{{{name}: {type_name(args[1])}}}"
    if origin in (list, tuple):
        return "NAME,..." if args[0] is str else f"[{type_name(args[0])},...]"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    return _NAMES.get(kind, "VALUE")


def _value_types(kind: Any) -> Iterator[Any]:
    return (arg for arg in typing.get_args(kind) if arg is not ...)
