"""The words of a command whose flags are those of a config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.errors import UsageError

if TYPE_CHECKING:
    from proctor.config.base import Config


def parse_flags(config: type[Config], words: list[str], usage: str) -> dict[str, str] | None:
    """Return the flags among ``words``; None where help was asked for, which is then printed.

    ``usage`` begins with "proctor COMMAND". What else there is to say is up to the words after
    ``--help``: none for the flags to begin with, ``all``, ``policy act``, ``env libero``.

    Raises:
        UsageError: one of them is no flag, or no topic of the help.
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

    topic = [*([] if asked == "true" else asked.split()), *positional]
    text = help_text(config, usage.split()[1], topic, given)
    print(text if topic else f"{usage}\n{text}", end="")
    return None


def split_arguments(config: type[Config], words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the words that are no flags, and the flags."""
    from proctor.config.builder import BooleanFlags
    from proctor.config.flags import split_argv

    return split_argv(words, BooleanFlags(config, words))
