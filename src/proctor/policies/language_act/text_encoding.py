"""Text encoding without a vocabulary: hashes of words and of their character trigrams.

Words that were not in the training data share pieces with words that were ("pushing", "push"). A
checkpoint needs no tokenizer file.

There are two encodings. A checkpoint names its own (``text_encoding`` in config.json).

    1   letters and digits of 32 words; a network that averages words cannot tell their order
    2   also punctuation, case, order and words beyond the last: different texts differ
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from proctor.features import Array

MOST_PIECES = 12
"""Maximum pieces of a word; further letters count only in the hash of the whole word."""
BUCKETS = 4096
"""Number of hash buckets; 0 is padding."""
_MOST_WORDS_1, _MOST_WORDS_2 = 32, 64
_TOKEN = re.compile(r"(\s*)(\w+|[^\w\s])")


@dataclass(frozen=True)
class TextEncoding:
    """Maps an instruction to an array of pieces, int64 [most_words, MOST_PIECES]."""

    most_words: int
    read: Callable[[str], Array]


def word_pieces(instruction: str) -> Array:
    """Return the pieces of every word and punctuation mark, padded with zeros.

    The first piece of each is a hash of its position, its case and whether a space precedes it. So
    two different texts have different sets of pieces. Runs of white space count as one space, and
    the words from the 64th on count as one.
    """
    return _filled(_MOST_WORDS_2, [_pieces(i, t) for i, t in enumerate(_tokens(instruction))])


def word_pieces_1(instruction: str) -> Array:
    """Return the pieces of encoding 1; longer texts are truncated."""
    words = re.findall(r"\w+", instruction.casefold())[:_MOST_WORDS_1]
    return _filled(_MOST_WORDS_1, [_of_word(word) for word in words])


TEXT_ENCODINGS = {
    1: TextEncoding(_MOST_WORDS_1, word_pieces_1),
    2: TextEncoding(_MOST_WORDS_2, word_pieces),
}
NEWEST_ENCODING = max(TEXT_ENCODINGS)


def piece_weights(pieces: Array) -> frozenset[tuple[int, Fraction]]:
    """Return the weight of each piece in the mean over words, the network's only input.

    The network cannot distinguish texts with the same weights.
    """
    words = [[int(piece) for piece in row if piece] for row in pieces]
    words = [word for word in words if word]
    weights: dict[int, Fraction] = {}
    for word in words:
        for piece, times in Counter(word).items():
            share = Fraction(times, len(word) * len(words))
            weights[piece] = weights.get(piece, Fraction(0)) + share
    return frozenset(weights.items())


def _tokens(instruction: str) -> Iterator[str]:
    """Yield words and punctuation marks, each with the space before it, if any."""
    tokens = [f" {word}" if gap else word for gap, word in _TOKEN.findall(instruction.strip())]
    yield from tokens[: _MOST_WORDS_2 - 1]
    rest = "".join(tokens[_MOST_WORDS_2 - 1 :])
    if rest:
        yield rest


def _pieces(position: int, token: str) -> list[str]:
    return [f"{position}:{token}", *_of_word(token.strip().casefold())]


def _of_word(word: str) -> list[str]:
    framed = f"<{word}>"
    return [framed, *(framed[i : i + 3] for i in range(len(framed) - 2))]


def _filled(most_words: int, words: Sequence[list[str]]) -> Array:
    rows = np.zeros((most_words, MOST_PIECES), np.int64)
    for row, pieces in zip(rows, words, strict=False):
        numbers = [_number(piece) for piece in pieces[:MOST_PIECES]]
        row[: len(numbers)] = numbers
    return rows


def _number(piece: str) -> int:
    digest = hashlib.blake2b(piece.encode(errors="surrogatepass"), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % (BUCKETS - 1)
