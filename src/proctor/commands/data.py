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
    "info": Verb(
        "version, features, cameras, tasks, sizes, statistics", "proctor.commands.data_info:run"
    ),
    "check": Verb(
        "what is wrong with a dataset, and how to mend it", "proctor.commands.data_check:run"
    ),
    "view": Verb(
        "a page: videos in step with plots; one file; Rerun", "proctor.commands.data_view:run"
    ),
    "cache": Verb("decoded frames that are kept: list, clear", "proctor.commands.data_cache:run"),
    "delete": Verb(
        "leave episodes out; the others keep their frames to the byte",
        "proctor.commands.data_edit:delete",
    ),
    "split": Verb(
        "make several datasets of one, by shares or episodes", "proctor.commands.data_edit:split"
    ),
    "merge": Verb("make one dataset of several", "proctor.commands.data_edit:merge"),
    "rename-feature": Verb(
        "give a feature another name", "proctor.commands.data_edit:rename_feature"
    ),
    "remove-feature": Verb("leave features out", "proctor.commands.data_edit:remove_feature"),
    "set-task": Verb(
        "say in other words what episodes show", "proctor.commands.data_edit:set_task"
    ),
    "to-video": Verb(
        "make videos of pictures that lie in tables", "proctor.commands.data_encode:to_video"
    ),
    "reencode": Verb(
        "encode videos again, with another codec or quality",
        "proctor.commands.data_encode:reencode",
    ),
    "stats": Verb("work the statistics out again", "proctor.commands.data_encode:stats"),
    "convert": Verb(
        "make version 3.0 of a dataset of version 2.x", "proctor.commands.data_edit:convert"
    ),
    "push": Verb("upload a dataset to the Hugging Face Hub", "proctor.commands.data_hub:push"),
    "pull": Verb("download a dataset from the Hugging Face Hub", "proctor.commands.data_hub:pull"),
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
