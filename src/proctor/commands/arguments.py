"""Arguments of commands with plug-ins (``eval``, ``record``, ``train``, ``serve``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.errors import UsageError

if TYPE_CHECKING:
    from proctor.config.base import Config


def parse_flags(config: type[Config], words: list[str], usage: str) -> dict[str, str] | None:
    """Return the flags in ``words``; print the help and return None for ``--help``.

    ``usage`` begins with "proctor COMMAND". Words after ``--help`` are its topic: none for the most
    used flags, ``all``, ``policy act``, ``env libero``, or words to search for.

    Raises:
        UsageError: a word is not a flag, or not a topic of the help.
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
    from proctor.config.help import help_text
    from proctor.config.help_lines import help_width, print_help

    topic = [*([] if asked == "true" else asked.split()), *positional]
    text = help_text(config, usage.split()[1], topic, given, help_width())
    print_help(text if topic else f"{usage}\n{text}")
    return None


def split_arguments(config: type[Config], words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the positional arguments and the flags."""
    from proctor.config.builder import BooleanFlags
    from proctor.config.flags import split_argv

    return split_argv(words, BooleanFlags(config, words))
