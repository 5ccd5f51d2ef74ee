"""Commands described by one dataclass: positional arguments, flags, checks and generated help.

A command is a subclass of ``CommandConfig``. Its fields are its flags, and fields with ``argument``
metadata are its positional arguments. Its docstring is the text of its help: the first line is the
summary that lists of commands show. ``run_command`` parses words, builds the dataclass and calls
its ``run``. Commands whose flags depend on plug-ins (``eval``, ``record``, ``train``, ``serve``)
use ``config/base`` and ``config/builder`` instead.

Metadata of a field that is a flag, which ``setting`` declares, all optional but ``help``:

    help            what the flag does, with its unit
    default_help    meaning of the default: "all episodes" for None, "no limit" for 0
    group           heading in the help; else the class variable ``help_group`` of its dataclass
    placeholder     how the help writes its value: DIR, 0,3,5-9
    flag            its name, where that is not the field's name
    alias           another accepted name
    optional_value  True: ``--name`` alone is allowed, and its value is then the text "true"
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from proctor.config.flags.help_lines import (
    FLAGS,
    WIDTH,
    entry,
    flag_usage,
    grouped_lines,
    help_width,
    print_help,
)
from proctor.config.flags.help_search import OwnedFlag, search_help
from proctor.config.flags.parsing import (
    ARGUMENT,
    Flag,
    Sections,
    check_known,
    convert,
    decode,
    flags_of,
    split_argv,
)
from proctor.errors import UsageError
from proctor.parsing import container_of, inner_type
from proctor.settings import check_settings

_NO_SECTIONS: Sections = {}
_DEEPEST_INDENT = 18


@dataclass(frozen=True)
class Argument:
    """A positional argument: its name in the help, and how many words it takes at least."""

    placeholder: str
    least: int = 1


def argument(placeholder: str, text: str, *, least: int = 1) -> dict[str, Any]:
    """Return the metadata of a field that is a positional argument.

    A field of type list takes all remaining words, ``least`` or more. A field of another type takes
    one word; ``least=0`` makes it optional.
    """
    return {ARGUMENT: Argument(placeholder, least), "help": text}


@dataclass(kw_only=True)
class CommandConfig:
    """Base class of commands: subclasses add fields and define ``run``."""

    @classmethod
    def parse(cls: type[CommandT], prog: str, words: Sequence[str]) -> CommandT | None:
        """Build the command from ``words``; print the help and return None for ``--help``.

        ``prog`` is the command as the user types it: "proctor data delete".
        """
        if cls.answer_help(prog, words):
            return None
        flags = flags_of(cls)
        words = with_canonical_names(words, flags)
        positional, given = split_argv(words, {f.name for f in flags if f.is_switch})
        return build_command(cls, prog, positional, given)

    @classmethod
    def answer_help(cls, prog: str, words: Sequence[str]) -> bool:
        """Print the help if ``words`` contain ``--help``, and return whether they do."""
        sought = help_words(words)
        if sought is None:
            return False
        width = help_width()
        text = search_help(prog, cls.all_flags(), sought, width) if sought else ""
        print_help(text or cls.help(prog, width))
        return True

    @classmethod
    def help(cls, prog: str, width: int = WIDTH) -> str:
        """Return the help text: usage, description, arguments and flags."""
        return command_help(cls, prog, width=width)

    @classmethod
    def all_flags(cls) -> list[OwnedFlag]:
        """List the flags that a search finds."""
        return [OwnedFlag(flag, flag.group or FLAGS) for flag in flags_of(cls)]

    def validate(self) -> None:
        """Refuse values that make no sense; a subclass with bounds defines this."""

    def run(self) -> int:
        """Run the command and return its exit code."""
        raise NotImplementedError


CommandT = TypeVar("CommandT", bound=CommandConfig)


def help_words(words: Sequence[str]) -> list[str] | None:
    """Return the words after ``--help``, which are searched for; None: help is not requested."""
    for place, word in enumerate(words):
        if word == "--help" or word.startswith("--help="):
            value = word.partition("=")[2]
            after = [word for word in words[place + 1 :] if not word.startswith("--")]
            return [*value.split(), *after]
    return None


def run_command(cls: type[CommandConfig], prog: str, words: Sequence[str]) -> int:
    """Parse ``words``, run the command and return its exit code; 0 for ``--help``."""
    command = cls.parse(prog, words)
    return 0 if command is None else command.run()


def with_canonical_names(words: Sequence[str], flags: Sequence[Flag]) -> list[str]:
    """Return ``words`` with every flag under its own name: dashes and aliases are accepted."""
    known: dict[str, str] = {}
    for flag in flags:
        known |= {name: flag.name for name in (flag.name, flag.alias) if name is not None}
    spelled = {name.replace("-", "_"): canonical for name, canonical in known.items()}
    found = []
    for word in words:
        name, equals, value = word[2:].partition("=")
        if not word.startswith("--"):
            found.append(word)
            continue
        canonical = spelled.get(name.replace("-", "_"))
        if canonical is None:
            check_known([name], known)
        found.append(f"--{canonical}{equals}{value}")
    return found


def build_command(
    cls: type[CommandT],
    prog: str,
    positional: Sequence[str],
    given: dict[str, str],
    sections: Sections = _NO_SECTIONS,
) -> CommandT:
    """Build a command from its positional words and its flags, and validate it."""
    check_known(given, {flag.name for flag in flags_of(cls, sections=sections)})
    arguments = _arguments(cls, prog, list(positional))
    command = decode(cls, given, sections=sections, arguments=arguments)
    check_settings(command)
    command.validate()
    return command


def _arguments(cls: type[CommandConfig], prog: str, words: list[str]) -> dict[str, Any]:
    """Return the values of the fields that are positional arguments."""
    wanted = " ".join(_argument_usage(field) for field in _argument_fields(cls)) or "no arguments"
    wrong = UsageError(
        f"{prog} takes {wanted}, got {len(words)} (see {prog} --help)", code="argument.count"
    )
    hints, found = typing.get_type_hints(cls), {}
    for field in _argument_fields(cls):
        kind, known = hints[field.name], field.metadata[ARGUMENT]
        least, placeholder = known.least, known.placeholder
        if container_of(kind) is not None:
            taken, words = words, []
            if len(taken) < least:
                raise wrong
            found[field.name] = convert(taken, kind, placeholder)
        elif words:
            found[field.name] = convert(words.pop(0), inner_type(kind), placeholder)
        elif least:
            raise wrong
    if words:
        raise wrong
    return found


def command_help(
    cls: type[CommandConfig],
    prog: str,
    sections: Sections = _NO_SECTIONS,
    width: int = WIDTH,
) -> str:
    """Return a command's help, generated from its docstring and its fields."""
    flags = sorted(
        flags_of(cls, sections=sections), key=lambda flag: (not flag.required, _depth(cls, flag))
    )
    usage = [_argument_usage(field) for field in _argument_fields(cls)]
    usage += [_optional(flag_usage(flag), optional=not flag.required) for flag in flags]
    indent = " " * min(len(prog) + 1, _DEEPEST_INDENT)
    lines = textwrap.wrap(
        " ".join(word.replace(" ", "\0") for word in usage),
        width - len(prog) - 1,
        break_long_words=False,
        break_on_hyphens=False,
    )
    text = f"\n{indent}".join(lines).replace("\0", " ")
    parts = [f"{prog} {text}".rstrip(), _description(cls, width)]
    entries: list[str] = []
    for field in _argument_fields(cls):
        text = f"{field.metadata['help']}{_argument_default(field)}"
        entries += entry(field.metadata[ARGUMENT].placeholder, text, width)
    parts += ["\n".join(["Arguments", *entries])] if entries else []
    parts.append("\n".join(grouped_lines(flags, width)).lstrip("\n"))
    return "\n\n".join(part for part in parts if part) + "\n"


def _description(cls: type[CommandConfig], width: int) -> str:
    """Return the docstring; on a narrow terminal, its paragraphs are wrapped again."""
    paragraphs = (inspect.getdoc(cls) or "").split("\n\n")
    if width >= WIDTH:
        return "\n\n".join(paragraphs)
    return "\n\n".join(textwrap.fill(" ".join(text.split()), width) for text in paragraphs)


def _argument_default(field: dataclasses.Field[Any]) -> str:
    meaning = field.metadata.get("default_help")
    return f" (default: {meaning})" if meaning else ""


def summary_of(cls: type[CommandConfig]) -> str:
    """Return what a command does, in one line: the first of its docstring."""
    return (inspect.getdoc(cls) or "").partition("\n")[0].rstrip(".")


def _argument_fields(cls: type[CommandConfig]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if ARGUMENT in field.metadata]


def _argument_usage(field: dataclasses.Field[Any]) -> str:
    known: Argument = field.metadata[ARGUMENT]
    if isinstance(field.type, str) and field.type.startswith("list["):
        return " ".join([known.placeholder] * known.least + [f"[{known.placeholder} ...]"])
    return _optional(known.placeholder, optional=known.least == 0)


def _optional(usage: str, *, optional: bool) -> str:
    return f"[{usage}]" if optional else usage


def _depth(cls: type[Any], flag: Flag) -> int:
    """Return how far up the class hierarchy a flag is defined: a command's own flags come first."""
    field_name = flag.name.partition(".")[0].replace("-", "_")
    bases = enumerate(cls.__mro__)
    return next((i for i, base in bases if field_name in vars(base).get("__annotations__", ())), 0)
