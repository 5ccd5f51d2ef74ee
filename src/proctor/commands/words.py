"""The words of a command whose flags are those of a config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proctor.errors import UsageError

if TYPE_CHECKING:
    from proctor.config.base import Config


def given_flags(config: type[Config], words: list[str], usage: str) -> dict[str, str] | None:
    """Return the flags among ``words``; None where help was asked for: ``usage``, and all flags.

    Raises:
        UsageError: one of them is no flag.
    """
    positional, given = split_words(config, words)
    if positional:
        raise UsageError(f"unexpected word {positional[0]!r} (flags are written --name=value)")
    if "help" not in given:
        return given
    from proctor.config.help import flags_help

    print(f"{usage}{flags_help(config, given)}", end="")
    return None


def split_words(config: type[Config], words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the words that are no flags, and the flags."""
    from proctor.config.builder import Switches
    from proctor.config.flags import split_argv

    return split_argv(words, Switches(config, words))
