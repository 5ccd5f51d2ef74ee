"""Parses flags (``--a.b=c``) and config files, and decodes them into dataclasses.

Flags are text by dotted name; msgspec converts each to the type of its field. This module adds
LeRobot's spelling of flags and error messages that name the flag.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import msgspec

from proctor.errors import UsageError, did_you_mean
from proctor.fingerprint import ConfigUse, has_mark, is_flag
from proctor.parsing import (
    MOST_CHARACTERS,
    RepeatedKey,
    container_of,
    enum_in,
    inner_type,
    is_flow_list,
    load_yaml,
    parse_flow,
    parse_text,
)
from proctor.system.files import read_regular_file

T = TypeVar("T")
Sections = Mapping[str, type[Any] | None]
"""Classes of sections that replace the declared ones; None omits the section."""
_AS_DECLARED: Sections = MappingProxyType({})
ARGUMENT = "argument"
"""Metadata key of fields that are positional arguments (``config/flags/command``), not flags."""
_LONGEST_PATH, _LONGEST_NAME = 3500, 240
"""In bytes. Linux allows 4096 and 255; the file names of a run need the difference."""


@dataclass(frozen=True)
class Flag:
    """A flag: its dotted name without dashes, type, default and help text."""

    name: str
    type: Any
    default: Any
    help: str
    alias: str | None = None
    """Another name of the flag, without a section."""
    alias_help: str = ""
    names: bool = False
    """Whether the value is a list of names, such as ``a,b``."""
    default_help: str = ""
    """Meaning of the default: "all tasks" for None, "no limit" for 0."""
    group: str = ""
    """Heading in the help."""
    placeholder: str = ""
    """How help texts write the value (``DIR``); empty: the name of the type."""
    optional_value: bool = False
    """Whether ``--name`` without a value is allowed; the value is then the text "true"."""

    @property
    def required(self) -> bool:
        """Whether the flag has no default."""
        return self.default is dataclasses.MISSING

    @property
    def inner(self) -> Any:
        """The type without ``| None``."""
        return inner_type(self.type)

    @property
    def container(self) -> Any:
        """``list``, ``tuple`` or ``dict`` for flags that hold several values, else None."""
        return container_of(self.type)

    @property
    def is_switch(self) -> bool:
        """Whether the flag may be given without a value."""
        return self.optional_value or self.inner is bool


_type_hints = functools.cache(typing.get_type_hints)
"""Types by field; cached, because every annotation is compiled for it."""


def flags_of(
    cls: type[Any],
    prefix: str = "",
    sections: Sections = _AS_DECLARED,
    use: ConfigUse = ConfigUse.EVALUATION,
) -> list[Flag]:
    """List the flags that a dataclass and its sections have for ``use``."""
    flags: list[Flag] = []
    for field, kind in _fields_of(cls, sections, use):
        name = prefix + _flag_name(field)
        if dataclasses.is_dataclass(kind):
            flags += flags_of(typing.cast(type[Any], kind), name + ".", use=use)
        else:
            flags.append(_flag(cls, field, name, kind))
    return flags


def _fields_of(
    cls: type, sections: Sections, use: ConfigUse
) -> Iterator[tuple[dataclasses.Field[Any], type[Any]]]:
    """Yield every field that is a flag, with its type."""
    hints = _type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = sections.get(field.name, hints[field.name])
        if kind is not None and is_flag(field.metadata, use) and ARGUMENT not in field.metadata:
            yield field, kind


def _flag_name(field: dataclasses.Field[Any]) -> str:
    """Return a field's flag without dashes and section; ``flag`` metadata names another one."""
    name: str = field.metadata.get("flag", field.name)
    return name


def _flag(cls: type[Any], field: dataclasses.Field[Any], name: str, kind: Any) -> Flag:
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    metadata = field.metadata
    return Flag(
        name=name,
        type=kind,
        default=default,
        help=metadata.get("help") or _inherited_help(cls, field.name),
        alias=metadata.get("alias"),
        alias_help=metadata.get("alias_help", ""),
        names=has_mark(cls, field.name, "names"),
        default_help=metadata.get("default_help", ""),
        group=_group(cls, field),
        placeholder=metadata.get("placeholder", ""),
        optional_value=metadata.get("optional_value", False),
    )


def _inherited_help(cls: type[Any], field_name: str) -> str:
    """Return the help of a field that a subclass gives only another default, as ``type``."""
    definitions = (getattr(b, "__dataclass_fields__", {}).get(field_name) for b in cls.__mro__)
    texts = (known.metadata.get("help") for known in definitions if known is not None)
    return next((text for text in texts if text), "")


def _group(cls: type[Any], field: dataclasses.Field[Any]) -> str:
    """Return the heading of a flag in the help.

    It is the field's ``group`` metadata; else the heading in a class's ``help_groups`` whose names
    contain the field's; else, for a flag of training only, "Training"; else the ``help_group`` of
    the class that declares the field or of its nearest base; else that of ``cls``.
    """
    if "group" in field.metadata:
        return str(field.metadata["group"])
    for base in cls.__mro__:
        for heading, names in vars(base).get("help_groups", {}).items():
            if field.name in names.split():
                return str(heading)
    if field.metadata.get("only") is ConfigUse.TRAINING:
        return "Training"
    declaring = (b for b in cls.__mro__ if field.name in vars(b).get("__annotations__", ()))
    bases = (*next(declaring, cls).__mro__, *cls.__mro__)
    return str(next((vars(b)["help_group"] for b in bases if "help_group" in vars(b)), ""))


class SwitchNames(Protocol):
    """Names of the flags that may be given without a value."""

    def __contains__(self, name: object, /) -> bool:
        """Return whether ``name`` is such a flag."""

    def __iter__(self) -> Iterator[str]:
        """Yield the names to suggest for an unknown flag."""


def split_argv(argv: list[str], switches: SwitchNames) -> tuple[list[str], dict[str, str]]:
    """Split the command line into positional arguments and flags (``--a.b=c`` or ``--a.b c``).

    ``switches`` are the flags that may be given without a value (``--resume``).
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
            raise UsageError(f"--{name} is given twice", code="flag.duplicate")
        given[name] = value
    return positional, given


def _value_after(name: str, words: list[str], switches: SwitchNames) -> str:
    if name in switches:
        return words.pop(0) if words and words[0].lower() in ("true", "false") else "true"
    if not words or words[0].startswith("--"):
        near = _near(name, switches)
        raise UsageError(
            f"unknown flag --{name}{near}" if near else f"--{name} needs a value (--{name}=VALUE)",
            code="flag.unknown" if near else "flag.missing-value",
        )
    return words.pop(0)


def check_known(given: Iterable[str], known: Collection[str]) -> None:
    """Refuse a flag that is not one of ``known``."""
    for name in given:
        if name not in known:
            raise UsageError(f"unknown flag --{name}{_near(name, known)}", code="flag.unknown")


def _near(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean --x?" for the nearest flag, or an empty string."""
    return did_you_mean(f"--{name}", [f"--{other}" for other in known]).replace("'", "")


def decode(
    cls: type[T],
    values: Mapping[str, Any],
    prefix: str = "",
    sections: Sections = _AS_DECLARED,
    use: ConfigUse = ConfigUse.EVALUATION,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> T:
    """Build dataclass ``cls`` from flat values (strings from the command line, or typed ones).

    ``arguments`` are the values of fields that are positional arguments.
    """
    decoded: dict[str, Any] = dict(arguments)
    for field, kind in _fields_of(cls, sections, use):
        name = prefix + _flag_name(field)
        if dataclasses.is_dataclass(kind):
            chosen = field.name in sections
            if chosen or any(given.startswith(f"{name}.") for given in values):
                section = typing.cast(type[Any], kind)
                decoded[field.name] = decode(section, values, f"{name}.", use=use)
        elif name in values:
            decoded[field.name] = parse_value(_flag(cls, field, name, kind), values[name])
    _require_all(cls, decoded, prefix)
    try:
        return cls(**decoded)
    except (TypeError, ValueError) as bad:  # of a plug-in's own __post_init__
        raise UsageError(f"--{prefix.rstrip('.')}: {bad}", code="flag.invalid-value") from None


def _require_all(cls: type[Any], decoded: Mapping[str, Any], prefix: str) -> None:
    nothing = dataclasses.MISSING
    for field in dataclasses.fields(cls):
        needed = field.init and field.default is nothing and field.default_factory is nothing
        if needed and field.name not in decoded:
            value = field.metadata.get("placeholder", "VALUE")
            name = f"--{prefix}{_flag_name(field)}"
            raise UsageError(f"{name} is missing ({name}={value})", code="flag.missing")


def parse_value(flag: Flag, given: Any) -> Any:
    """Return the value of one flag in the type that its field declares."""
    try:
        value = _as_one_text(given) if flag.names else given
        if isinstance(value, str):
            value = parse_text(flag.type, value)
    except ValueError as bad:
        example = "{corner2: front}" if flag.container is dict else "[0, 3]"
        raise UsageError(
            f"--{flag.name}: {given!r} is not valid YAML or JSON ({bad}); write it like {example}",
            code="flag.invalid-value",
        ) from None
    try:
        return convert(value, flag.type, f"--{flag.name}")
    except msgspec.ValidationError as bad:
        reason = _in_our_words(str(bad), given)
        raise UsageError(
            f"--{flag.name}: {reason}{_choices(flag, value)}", code="flag.invalid-value"
        ) from None
    except UnicodeEncodeError as bad:  # msgspec reads UTF-8, which half a character is not
        odd = bad.object[bad.start : bad.end]
        raise UsageError(
            f"--{flag.name}: {odd!r} is not a character", code="flag.invalid-value"
        ) from None


def convert(value: Any, kind: Any, name: str) -> Any:
    """Return ``value`` as type ``kind``, reading numbers and booleans from text.

    ``name`` is the flag or the argument, for messages about paths.

    Raises:
        msgspec.ValidationError: it is not of that type.
        UsageError: it is no path, where ``kind`` is one.
    """
    return msgspec.convert(
        value, kind, strict=False, dec_hook=functools.partial(_decode_path, name)
    )


def _as_one_text(value: Any) -> Any:
    """Return ``["a", "b"]`` and ``"[a, b]"`` as "a,b", and other values unchanged."""
    listed = parse_flow(value) if isinstance(value, str) and is_flow_list(value) else value
    if isinstance(listed, list | tuple) and all(isinstance(name, str) for name in listed):
        return ",".join(listed)
    return value


def _choices(flag: Flag, value: Any) -> str:
    """Return the choices of an enum flag, and the one nearest to ``value``."""
    kind = enum_in(flag.type)
    if kind is None:
        return ""
    words = [str(member.value) for member in kind]
    near = did_you_mean(value, words) if isinstance(value, str) else ""
    return f"{near} (choose {', '.join(words)})"


def _in_our_words(message: str, given: Any) -> str:
    """``Expected `int`, got `str``` -> ``expected int, got 'ten'``."""
    reason = message.partition(" - at `")[0]
    if reason.startswith("Invalid enum value"):
        return f"got {given!r}"
    reason = reason[0].lower() + reason[1:].replace("`", "").replace(" | null", "")
    if isinstance(given, str):
        return f"{reason.split(', got')[0]}, got {given!r}"
    return reason


def _decode_path(name: str, kind: type[Any], value: Any) -> Any:
    """Convert text to a path, which msgspec does not support."""
    if kind is not Path or not isinstance(value, str):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return path_of(value, name)


def path_of(text: str, name: str) -> Path:
    """Return ``text`` as a path, with ``~`` expanded.

    ``name`` is the flag or the argument that gives it, for messages.
    """
    if not text.strip():  # of an unset shell variable; Path("") is the current folder
        raise UsageError(
            f"{name}: the path is empty; give a path ('.' is the current folder)",
            code="path.empty",
        )
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise UsageError(f"{name}: the path {text!r} contains control codes", code="path.invalid")
    try:
        raw = os.fsencode(text)
    except UnicodeEncodeError:
        raise UsageError(
            f"{name}: the path {text!r} is not valid UTF-8", code="path.invalid"
        ) from None
    if len(raw) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in raw.split(b"/")):
        raise UsageError(f"{name}: the path {text} is too long", code="path.invalid")
    try:
        return Path(text).expanduser()  # shells leave the ~ of --name=~/folder alone
    except RuntimeError:
        raise UsageError(
            f"{name}: the path {text} begins with a home folder that does not exist",
            code="path.invalid",
        ) from None


def read_config_file(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file of nested settings."""
    try:
        content = load_yaml(read_regular_file(path, MOST_CHARACTERS))
    except OSError as bad:
        raise UsageError(
            f"--config_path={path}: {bad.strerror}", code="config-file.unreadable"
        ) from None
    except RepeatedKey as bad:
        raise UsageError(
            f"--config_path={path}: {bad}, {bad.place}; write it once",
            code="config-file.repeated-key",
        ) from None
    except ValueError as bad:
        raise UsageError(
            f"--config_path={path}: not valid YAML or JSON: {bad}", code="config-file.invalid"
        ) from None
    if not isinstance(content, dict):
        raise UsageError(
            f"--config_path={path}: expected a mapping of settings at the top",
            code="config-file.invalid",
        )
    return content
