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
    "delete": Verb("episodes out of a dataset", "proctor.commands.data_edit:delete"),
    "split": Verb(
        "a dataset into several, by shares or episodes", "proctor.commands.data_edit:split"
    ),
    "merge": Verb("several datasets into one", "proctor.commands.data_edit:merge"),
    "rename-feature": Verb(
        "another name for a feature", "proctor.commands.data_edit:rename_feature"
    ),
    "remove-feature": Verb(
        "features out of a dataset", "proctor.commands.data_edit:remove_feature"
    ),
    "set-task": Verb("other words for what episodes show", "proctor.commands.data_edit:set_task"),
    "to-video": Verb(
        "videos of pictures that lie in tables", "proctor.commands.data_encode:to_video"
    ),
    "reencode": Verb(
        "videos with another codec or quality", "proctor.commands.data_encode:reencode"
    ),
    "stats": Verb("statistics, worked out again", "proctor.commands.data_encode:stats"),
    "convert": Verb(
        "version 3.0 of a dataset of version 2.x", "proctor.commands.data_edit:convert"
    ),
    "push": Verb("a dataset to the Hugging Face Hub", "proctor.commands.data_hub:push"),
    "pull": Verb("a dataset from the Hugging Face Hub", "proctor.commands.data_hub:pull"),
    "edit": Verb(
        "the same edits in the words of lerobot-edit-dataset", "proctor.commands.data_lerobot:edit"
    ),
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
