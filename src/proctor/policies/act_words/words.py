"""Words as numbers, without a vocabulary: a word is its hash, and those of its letters in threes.

So words that were never trained on still share pieces with words that were ("pushing", "push"), and
nothing has to be kept beside the weights.
"""

from __future__ import annotations

import hashlib
import re

import numpy as np

from proctor.features import Array

MOST_WORDS, MOST_PIECES = 32, 12
"""Of an instruction, and of a word; what is longer is cut."""
BUCKETS = 4096
"""Pieces that are told apart; number 0 is no piece."""


def word_pieces(instruction: str) -> Array:
    """Return the pieces of every word, [MOST_WORDS, MOST_PIECES], filled up with zeros."""
    rows = np.zeros((MOST_WORDS, MOST_PIECES), np.int64)
    words = re.findall(r"\w+", instruction.casefold())[:MOST_WORDS]
    for row, word in zip(rows, words, strict=False):
        framed = f"<{word}>"
        threes = [framed[i : i + 3] for i in range(len(framed) - 2)]
        numbers = [_number(piece) for piece in [framed, *threes][:MOST_PIECES]]
        row[: len(numbers)] = numbers
    return rows


def _number(piece: str) -> int:
    digest = hashlib.blake2b(piece.encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % (BUCKETS - 1)
