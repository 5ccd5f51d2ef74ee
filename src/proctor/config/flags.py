"""Flags: from ``--a.b=c`` words and config files to dataclasses, and the help text of both.

The words become a nested dict of strings; msgspec turns that dict into dataclasses and says which
field is wrong. What this module adds is LeRobot's spelling of flags and errors in the user's terms.
"""

from __future__ import annotations

import dataclasses
import json
import os
import textwrap
import types
import typing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from proctor.errors import UsageError, did_you_mean
from proctor.machine.files import read_plain

T = TypeVar("T")
_DEEPEST_CONFIG, _MOST_CONFIG = 32, 2**20
_LONGEST_PATH, _LONGEST_NAME = 3500, 240
"""Linux takes 4096 and 255 bytes; the files of a run need some of them."""
_UNION = (typing.Union, types.UnionType)


@dataclass(frozen=True)
class Flag:
    """One flag: its dotted name without dashes, its type, default and meaning."""

    name: str
    type: Any
    default: Any
    help: str

    @property
    def inner(self) -> Any:
        """The type without ``| None``."""
        if typing.get_origin(self.type) in _UNION:
            return next(t for t in typing.get_args(self.type) if t is not type(None))
        return self.type

    @property
    def container(self) -> Any:
        """``list`` or ``dict`` for flags that take JSON, else None."""
        origin = typing.get_origin(self.inner)
        return origin if origin in (list, dict) else None


def flags_of(cls: type[Any], prefix: str = "") -> list[Flag]:
    """List the flags of a dataclass, nested dataclasses included, fields marked hidden not."""
    hints = typing.get_type_hints(cls)
    flags: list[Flag] = []
    for field in dataclasses.fields(cls):
        if field.metadata.get("hidden"):
            continue
        name, kind = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(kind):
            flags += flags_of(typing.cast(type[Any], kind), name + ".")
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        flags.append(Flag(name, kind, default, field.metadata.get("help", "")))
    return flags


def split_argv(argv: list[str], switches: set[str]) -> tuple[list[str], dict[str, str]]:
    """Split words into positional ones and flags; both ``--a.b=c`` and ``--a.b c`` are taken.

    ``switches`` are the flags that may stand without a value (``--resume``).

    Raises:
        UsageError: a flag that needs a value has none, or is given twice.
    """
    positional: list[str] = []
    given: dict[str, str] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            positional.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        if not equals:
            value = _value_after(name, words, switches)
        if name in given:
            raise UsageError(f"--{name} is given twice")
        given[name] = value
    return positional, given


def _value_after(name: str, words: list[str], switches: set[str]) -> str:
    if name in switches:
        return words.pop(0) if words and words[0].lower() in ("true", "false") else "true"
    if not words or words[0].startswith("--"):
        raise UsageError(f"--{name} needs a value (--{name}=VALUE)")
    return words.pop(0)


def check_known(
    given: typing.Iterable[str], flags: list[Flag], others: typing.Iterable[str]
) -> None:
    """Refuse a name that is neither one of ``flags`` nor one of ``others``.

    Raises:
        UsageError: with the nearest known flag.
    """
    known = {flag.name for flag in flags} | set(others)
    for name in given:
        if name not in known:
            near = did_you_mean(f"--{name}", [f"--{other}" for other in known])
            raise UsageError(f"unknown flag --{name}{near.replace(chr(39), '')}")


def flatten(nested: dict[str, Any], flags: list[Flag], prefix: str = "") -> dict[str, Any]:
    """Turn ``{"a": {"b": 1}}`` into ``{"a.b": 1}``, leaving the values of dict flags whole."""
    whole = {flag.name for flag in flags if flag.container is dict}
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = prefix + str(key)
        if isinstance(value, dict) and name not in whole:
            flat |= flatten(value, flags, name + ".")
        else:
            flat[name] = value
    return flat


def decode(cls: type[T], values: dict[str, Any], prefix: str = "") -> T:
    """Build dataclass ``cls`` from flat values (strings from the command line, or typed ones).

    Raises:
        UsageError: naming the flag whose value is wrong.
    """
    nested: dict[str, Any] = {}
    for flag in flags_of(cls, prefix):
        if flag.name in values:
            _put(nested, flag.name[len(prefix) :].split("."), _parsed(flag, values[flag.name]))
    try:
        return msgspec.convert(nested, cls, strict=False, dec_hook=_decode_path)
    except msgspec.ValidationError as bad:
        raise UsageError(_in_our_words(str(bad), prefix, values)) from None
    except UnicodeEncodeError as bad:  # msgspec reads UTF-8, which half a character is not
        odd = bad.object[bad.start : bad.end]
        given = [flag.name for flag in flags_of(cls, prefix) if odd in str(values.get(flag.name))]
        raise UsageError(f"--{', --'.join(given)}: {odd!r} is no character") from None


def _decode_path(kind: type[Any], value: Any) -> Any:
    """Teach msgspec the one type of ours that it does not know."""
    if kind is not Path or not isinstance(value, str):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return path_of(value)


def path_of(text: str) -> Path:
    """Return the path that ``text`` names, if a file can be called so.

    Raises:
        UsageError: it holds control codes, which terminals obey, or is longer than paths may be.
    """
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise UsageError(f"the path {text!r} holds control codes")
    try:
        raw = os.fsencode(text)
    except UnicodeEncodeError:
        raise UsageError(f"the path {text!r} is not valid UTF-8") from None
    if len(raw) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in raw.split(b"/")):
        raise UsageError(f"the path {text} is too long")
    return Path(text)


def _put(nested: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        nested = nested.setdefault(part, {})
    nested[path[-1]] = value


def _parsed(flag: Flag, value: Any) -> Any:
    """Parse the JSON of list and dict flags; a list of strings may also be comma-separated."""
    if not isinstance(value, str):
        return value
    if flag.inner is not str and value.lower() in ("none", "null"):
        return None
    if flag.container is None:
        return value
    if flag.container is list and not value.lstrip().startswith("["):
        return [part.strip() for part in value.split(",") if part.strip()]
    try:
        return json.loads(value)
    except json.JSONDecodeError as bad:
        example = "[0,3]" if flag.container is list else '{"corner2":"front"}'
        raise UsageError(
            f"--{flag.name}: {value!r} is not valid JSON ({bad.msg}); write it like {example}"
        ) from None


def _in_our_words(message: str, prefix: str, values: dict[str, Any]) -> str:
    """``Expected `int`, got `str` - at `$.eval.n``` -> ``--eval.n: expected int, got 'ten'``."""
    reason, _, where = message.partition(" - at `$.")
    name = prefix + where.rstrip("`").split("[")[0]
    reason = reason[0].lower() + reason[1:].replace("`", "")
    given = values.get(name)
    if isinstance(given, str):
        reason = f"{reason.split(', got')[0]}, got {given!r}"
    return f"--{name}: {reason}"


def read_config_file(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file of nested settings.

    Raises:
        UsageError: it cannot be read, or does not hold a mapping.
    """
    import yaml

    class Shallow(yaml.SafeLoader):
        """Reads no deeper than settings go: past that, a file is an attack on the stack."""

        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.depth += 1
            if self.depth > _DEEPEST_CONFIG:
                raise yaml.YAMLError(f"nested deeper than {_DEEPEST_CONFIG} levels")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        content = yaml.load(read_plain(path, _MOST_CONFIG), Shallow)  # noqa: S506  it is a SafeLoader
    except OSError as bad:
        raise UsageError(f"--config_path={path}: {bad.strerror}") from None
    except (yaml.YAMLError, ValueError, LookupError) as bad:  # dates, tags and merges that are none
        problem = " ".join(str(bad).split())
        raise UsageError(f"--config_path={path}: not valid YAML or JSON: {problem}") from None
    if not isinstance(content, dict):
        raise UsageError(f"--config_path={path}: expected a mapping of settings at the top")
    return content


def type_name(kind: Any) -> str:
    """Return how a flag's type is written in the help."""
    if typing.get_origin(kind) in _UNION:
        return type_name(next(t for t in typing.get_args(kind) if t is not type(None)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(member.value for member in kind)
    if typing.get_origin(kind) is not None:
        inner = ",".join(type_name(arg) for arg in typing.get_args(kind) if arg is not ...)
        return f"{typing.get_origin(kind).__name__}[{inner}]"
    return "path" if kind is Path else str(kind.__name__)


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
