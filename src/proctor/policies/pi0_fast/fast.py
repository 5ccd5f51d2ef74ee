"""FAST action tokenization (Pertsch et al., 2025): DCT, quantisation, and byte-pair encoding.

    actions [T, A] ─▶ DCT along time ─▶ x scale, rounded ─▶ characters ─▶ byte pairs
                      ordered by frequency, then by action dimension

Codes take the last tokens of the language model's vocabulary: code c is token ``size - 1 - skip -
c``. A whole sequence is BOS, "Action: ", the codes, "|", EOS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from proctor.features import Array

_LAST_CHARACTER = 0xD7FF
"""The last code point before the surrogates, which are not characters."""


class BytePairCodec(Protocol):
    """Byte-pair tokenizer: characters to codes and back."""

    def encode(self, text: str) -> list[int]:
        """Return the codes of a text."""

    def decode(self, codes: list[int]) -> str:
        """Return the text of codes.

        Raises:
            ValueError: the codes are invalid.
        """


@dataclass(frozen=True)
class FastCodec:
    """FAST: actions to codes and back."""

    codes: BytePairCodec
    scale: float
    lowest: int
    """The lowest coefficient; it maps to character 0."""

    def encode(self, actions: Array) -> list[int]:
        """Return the codes of normalised actions [T, A]."""
        return self.codes.encode(self.to_characters(self.coefficients(actions)))

    def coefficients(self, actions: Array) -> Array:
        """Return quantised DCT coefficients [T, A]."""
        found: Array = np.around(
            _dct_matrix(len(actions)) @ actions.astype(np.float64) * self.scale
        )
        return found.astype(np.int64)

    def to_characters(self, coefficients: Array) -> str:
        """Return a character for each coefficient."""
        points = np.clip(coefficients - self.lowest, 0, _LAST_CHARACTER)
        return "".join(chr(point) for point in points.ravel())

    def decode(self, codes: list[int], shape: tuple[int, int]) -> Array:
        """Return actions [T, A], float32; coefficients are zero-padded or truncated to fit.

        Raises:
            ValueError: the codes are invalid.
        """
        found = [ord(character) + self.lowest for character in self.codes.decode(codes)]
        wanted = shape[0] * shape[1]
        found = found[:wanted] + [0] * (wanted - len(found))
        coefficients = np.array(found, np.float64).reshape(shape)
        actions: Array = _dct_matrix(shape[0]).T @ (coefficients / self.scale)
        return actions.astype(np.float32)


@lru_cache(8)
def _dct_matrix(length: int) -> Array:
    """Return the orthonormal DCT-II of sequences of ``length`` as a matrix."""
    steps = np.arange(length)
    matrix = np.cos(math.pi / length * np.outer(steps, steps + 0.5)) * math.sqrt(2 / length)
    matrix[0] /= math.sqrt(2)
    return matrix


@dataclass(frozen=True)
class ActionTokenizer:
    """Maps actions to tokens of the language model's vocabulary, and back."""

    fast: FastCodec
    size: int
    """Size of the language model's vocabulary."""
    skip: int
    """Number of tokens at the end of the vocabulary that are not used for codes."""
    begin: int
    end: int
    """The BOS token, and the token "|" that ends the codes."""
    stop: int
    """The EOS token, after "|"."""
    opening: tuple[int, ...]
    """The tokens of "Action: "."""

    def tokens(self, actions: Array) -> list[int]:
        """Return the tokens of normalised actions [T, A], from BOS to EOS."""
        return [
            self.begin,
            *self.opening,
            *(self.swap_code_and_token(code) for code in self.fast.encode(actions)),
            self.end,
            self.stop,
        ]

    def swap_code_and_token(self, code: int) -> int:
        """Return the token of a code, or the code of a token; the mapping is its own inverse."""
        return self.size - 1 - self.skip - code

    def actions(self, said: list[int], shape: tuple[int, int], *, strict: bool) -> Array:
        """Return the actions [T, A], float32, of generated tokens; zeros if these are invalid.

        ``strict``: tokens that do not begin with "Action:" are invalid. LeRobot's evaluation then
        aborts; here the episode continues with zero actions.
        """
        if strict and tuple(said[:2]) != self.opening[:2]:
            return np.zeros(shape, np.float32)
        codes = [self.swap_code_and_token(token) for token in self._code_tokens(said)]
        try:
            return self.fast.decode(codes, shape)
        except ValueError:
            return np.zeros(shape, np.float32)

    def _code_tokens(self, said: list[int]) -> list[int]:
        """Return the tokens before "|", without those of "Action: "."""
        if self.end in said:
            said = said[: said.index(self.end)]
        left: list[int] = []
        n, place = len(self.opening), 0
        while place < len(said):
            if n and tuple(said[place : place + n]) == self.opening:
                place += n
            else:
                left.append(said[place])
                place += 1
        return left
