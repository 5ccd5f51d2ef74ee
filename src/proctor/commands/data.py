"""``proctor data VERB ...``: what is done to datasets, a function a verb, imported when called."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from proctor.errors import UsageError, did_you_mean


class Verb(NamedTuple):
    """What a verb does, in one line, and where: ``module:function``.

    The function is given the words after the verb (``["--help"]`` too, which it answers with its
    usage) and returns an exit code.
    """

    summary: str
    function: str


VERBS: dict[str, Verb] = {
    "cache": Verb("decoded frames that are kept: list, clear", "proctor.commands.data_cache:run"),
}

_OVERVIEW = """\
proctor data VERB ...

{verbs}

  proctor data VERB --help  lists the flags of a verb
"""


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    if not words or words[0] in ("--help", "help"):
        lines = [f"  proctor data {name:<14} {verb.summary}" for name, verb in VERBS.items()]
        print(_OVERVIEW.format(verbs="\n".join(lines)), end="")
        return 0
    if words[0] not in VERBS:
        raise UsageError(
            f"unknown verb {words[0]!r}{did_you_mean(words[0], VERBS)} "
            f"(proctor data does: {', '.join(VERBS)})"
        )
    module, _, name = VERBS[words[0]].function.partition(":")
    function: Callable[[list[str]], int] = getattr(import_module(module), name)
    return function(words[1:])
