"""All kinds of cases, and how many of every hundred each gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz import checkpoints, runs, words
from tests.fuzz.hostile import Draw
from tests.fuzz.yard import Yard


@dataclass(frozen=True)
class Kind:
    """One kind of hostile input: ``attack`` draws a case and has the yard judge it."""

    name: str
    share: int
    attack: Callable[[Draw, Yard], None]


KINDS = [
    Kind("flags of eval", 30, words.eval_flags),
    Kind("flags of networks", 1, words.network_flags),
    Kind("words of other commands", 10, words.other_words),
    Kind("config files", 10, words.config_files),
    Kind("run folders: report", 10, runs.report),
    Kind("run folders: compare", 6, runs.compare),
    Kind("run folders: resume", 5, runs.resume),
    Kind("run folders: against", 3, runs.against),
    Kind("run folders: audit", 4, runs.audit),
    Kind("checkpoint folders", 15, checkpoints.folders),
    Kind("the Hub", 3, checkpoints.hub),
    Kind("requests to view", 10, runs.requests),
    Kind("lists of view", 2, runs.lists),
]
