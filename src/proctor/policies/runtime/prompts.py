"""Cut the padding of prompts, so that the network does not compute on it.

The tokenizer pads every prompt to the same length. A network that masks padding gives the same
result without it, up to rounding. The length that is kept depends on the row's own prompt alone,
never on the rest of its batch, so an episode does not depend on the load.

    CPU          no padding: rows run one by one, so each may have its own shape
    CUDA, MPS    half of the maximum length, or all of it: one more CUDA graph per batch size.
                 Most instructions fit into half, so most batches stay whole
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
    """Rows whose prompts are cut to the same length."""

    places: Array
    """Indices of the rows in the batch."""
    rows: dict[str, Array]


def group_by_prompt_length(
    rows: dict[str, Array], heard: str, others: Sequence[str], device: torch.device
) -> list[PromptGroup]:
    """Group rows by the length of their prompts, the shortest first.

    ``heard`` is the key of the padding mask [B, max length], True at tokens; ``others`` are the
    keys of the arrays that are cut like it.
    """
    lengths = _lengths(rows[heard], one_by_one=device.type == "cpu")
    found, parts = np.unique(lengths), []
    for length in found:
        places = np.flatnonzero(lengths == length)
        # Usually there is one length; images are then not copied.
        some = {name: v[places] if len(found) > 1 else v for name, v in rows.items()}
        some |= {name: some[name][:, :length] for name in (heard, *others)}
        parts.append(PromptGroup(places, some))
    return parts


def check_token_ids(told: Mapping[str, Array], vocabulary: int | None) -> None:
    """Refuse token ids outside the network's vocabulary."""
    tokens = told.get(LANGUAGE_TOKENS)
    if tokens is not None and vocabulary is not None and tokens.max() >= vocabulary:
        raise UsageError(
            f"the prompt has token id {tokens.max()}, but the policy's vocabulary has {vocabulary} "
            "tokens: the tokenizer is another model's (name the right one with --policy.tokenizer)",
            code="policy.unknown-token",
        )


def restore_order(parts: Sequence[PromptGroup], made: Sequence[Tensor]) -> Tensor:
    """Concatenate the outputs of all groups, and put the rows back into the batch's order."""
    if len(made) == 1:
        return made[0]
    places = torch.from_numpy(np.concatenate([part.places for part in parts]))
    return torch.cat(list(made))[places.argsort()]


def _lengths(heard: Array, *, one_by_one: bool) -> Array:
    """Return the kept length of each row: up to its last token, at least 1."""
    most = heard.shape[1]
    lengths: Array = np.where(heard.any(1), most - heard[:, ::-1].argmax(1), 1)
    if not one_by_one:
        half = min(most, -(-most // 16) * 8)
        lengths = np.where(lengths <= half, half, most)
    return lengths


def prompt_padding_rule(device: torch.device) -> str:
    """Return how prompts are padded, for the run's record: it affects the last bits."""
    return "without padding" if device.type == "cpu" else "padded to half of the room, or all"
