"""How much padding of a prompt is computed: prompts come filled up to one length, most of it empty.

Networks that mask padding and count positions without it give the same without, but for rounding.
How much is left is decided by a row's own words, never by the rest of its batch or of the run: what
an episode is must not depend on them.

    CPU          none: rows are run one by one, so each may have its own shape
    CUDA, MPS    half of the room for words or all of it, so that a CUDA graph more is enough, and
                 nearly every batch stays in one piece: tasks' words seldom fill half
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from proctor.errors import UsageError
from proctor.features import LANGUAGE_TOKENS, Array


class PromptGroup(NamedTuple):
    """Rows whose prompts have one length."""

    places: Array
    """Where they stood."""
    rows: dict[str, Array]


def by_length(
    rows: dict[str, Array], heard: str, others: Sequence[str], device: torch.device
) -> list[PromptGroup]:
    """Return the rows by the length that is left of their prompts, the shortest first.

    ``heard`` names the mask [B, most], True where words are; ``others`` what is cut like it.
    """
    lengths = _lengths(rows[heard], one_by_one=device.type == "cpu")
    found, parts = np.unique(lengths), []
    for length in found:
        places = np.flatnonzero(lengths == length)
        # As a rule there is one length, and pictures need not be copied.
        some = {name: v[places] if len(found) > 1 else v for name, v in rows.items()}
        some |= {name: some[name][:, :length] for name in (heard, *others)}
        parts.append(PromptGroup(places, some))
    return parts


def check_known(told: Mapping[str, Array], vocabulary: int | None) -> None:
    """Refuse tokens of what is ``told`` that a network with this vocabulary has no vectors for.

    Raises:
        UsageError: there is one, so the tokenizer is another model's.
    """
    tokens = told.get(LANGUAGE_TOKENS)
    if tokens is not None and vocabulary is not None and tokens.max() >= vocabulary:
        raise UsageError(
            f"words have the token {tokens.max()}, and the policy knows {vocabulary}: the "
            "tokenizer is another model's (--policy.tokenizer names one)"
        )


def in_order(parts: Sequence[PromptGroup], made: Sequence[Tensor]) -> Tensor:
    """Return what was made of the rows of all parts, each where its row stood."""
    if len(made) == 1:
        return made[0]
    places = torch.from_numpy(np.concatenate([part.places for part in parts]))
    return torch.cat(list(made))[places.argsort()]


def _lengths(heard: Array, *, one_by_one: bool) -> Array:
    """Return how many of each row's places are kept: at least one, and all up to its last word."""
    most = heard.shape[1]
    lengths: Array = np.where(heard.any(1), most - heard[:, ::-1].argmax(1), 1)
    if not one_by_one:
        half = min(most, -(-most // 16) * 8)
        lengths = np.where(lengths <= half, half, most)
    return lengths


def prompt_record(device: torch.device) -> str:
    """Return how long prompts are, for a run's record: it decides the last bits."""
    return "without padding" if device.type == "cpu" else "padded to half of the room, or all"
