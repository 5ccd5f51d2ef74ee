"""Arguments of commands with plug-ins (``eval``, ``record``, ``train``, ``teleoperate`` ...)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from proctor.errors import UsageError

if TYPE_CHECKING:
    from proctor.config.base import Config


def parse_flags(config: type[Config], words: list[str], usage: str) -> dict[str, str] | None:
    """Return the flags in ``words``; print the help and return None for ``--help``.

    ``usage`` begins with "proctor COMMAND". Words after ``--help`` are its topic: none for the most
    used flags, ``all``, ``policy act``, ``env libero``, or words to search for.
    """
    positional, given = split_arguments(config, words)
    asked = given.pop("help", None)
    if asked is None:
        if positional:
            raise UsageError(
                f"unexpected word {positional[0]!r} (flags are written --name=value)",
                code="argument.count",
            )
        return given
    from proctor.config.flags.help import help_text
    from proctor.config.flags.help_lines import help_width, print_help

    topic = [*([] if asked == "true" else asked.split()), *positional]
    text = help_text(config, usage.split()[1], topic, given, help_width())
    print_help(text if topic else f"{usage}\n{text}")
    return None


def choose_config(configs: Sequence[type[Config]], words: Sequence[str]) -> type[Config]:
    """Return the config of a command that ``words`` ask for: the first one is the usual one.

    Another is chosen by a section that the usual one lacks: in a flag (``--robot.type``), in the
    config file, or as the topic of the help (``--help robot``, ``--help so101_follower``).
    """
    from proctor import plugins
    from proctor.config.base import plugin_sections

    usual, *others = configs
    named = _named_sections(words) if others else set()
    for other in others:
        for section in plugin_sections(other).keys() - plugin_sections(usual).keys():
            kind = plugin_sections(other)[section].kind
            if section in named or named.intersection(plugins.known_plugins(kind)):
                return other
    return usual


def _named_sections(words: Sequence[str]) -> set[str]:
    """Return the sections in flags and in the config file, and all words that are not flags."""
    from proctor.config.flags.parsing import path_of, read_config_file

    named: set[str] = set()
    for word, after in pairwise([*words, ""]):
        flag, equals, value = word.partition("=")
        named.add(flag.removeprefix("--").partition(".")[0])
        if flag == "--config_path":
            named.update(read_config_file(path_of(value if equals else after, flag)))
    return named


def split_arguments(config: type[Config], words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the positional arguments and the flags."""
    from proctor.config.builder import BooleanFlags
    from proctor.config.flags.parsing import split_argv

    return split_argv(words, BooleanFlags(config, words))
