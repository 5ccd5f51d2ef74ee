"""Wordings of instructions to train on (--dataset.paraphrase_tasks), written for Proctor.

``training_wordings.toml`` has those of Meta-World's instructions. ``language`` examines other
wordings: those of ``paraphrases`` and its own templates. No training wording is among them, so that
a policy is examined on sentences that it was not trained on.
"""

from __future__ import annotations

import hashlib
import tomllib
from functools import cache
from importlib import resources

_TABLE = "training_wordings.toml"
_FRAMES = ("please {}", "now {}", "go ahead and {}", "I want you to {}", "the robot has to {}")
"""Sentences around any instruction."""


@cache
def wording_table() -> dict[str, list[str]]:
    """Return Meta-World's instructions with their wordings."""
    text = resources.files(__package__).joinpath(_TABLE).read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def training_wordings(instruction: str) -> tuple[str, ...]:
    """Return other wordings of an instruction: its row of the table, and sentences around it."""
    original = instruction.strip()
    if not original:
        return ()
    inner = original[:1].lower() + original[1:].rstrip(".")
    return (*wording_table().get(original, ()), *(frame.format(inner) for frame in _FRAMES))


def wordings_digest() -> str:
    """Return a digest of all wordings: with another one, the same draws are other sentences."""
    return hashlib.sha256(repr((wording_table(), _FRAMES)).encode()).hexdigest()[:16]
