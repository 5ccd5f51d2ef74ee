"""FAST, actions as text (Pertsch et al., 2025): frequencies, rounded, as letters, as tokens.

    actions [T, A] ─▶ cosine transform along time ─▶ x scale, rounded ─▶ letters ─▶ byte pairs
                      frequency by frequency, in each all numbers of an action

A language model's last tokens are lent to the codes: code c is token ``size - 1 - skip - c``. What
is said is "Action: ", the codes, "|", and the token that ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from proctor.features import Array

_LAST_LETTER = 0xD7FF
"""Behind it lie numbers that are no letters."""


class Codes(Protocol):
    """Letters to codes and back: a byte-pair tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Return the codes of letters."""

    def decode(self, codes: list[int]) -> str:
        """Return the letters of codes.

        Raises:
            ValueError: there are none.
        """


@dataclass(frozen=True)
class Fast:
    """Actions to codes and back."""

    codes: Codes
    scale: float
    lowest: int
    """The lowest coefficient that has a letter."""

    def encode(self, actions: Array) -> list[int]:
        """Return the codes of normalised actions [T, A]."""
        return self.codes.encode(self.letters(self.coefficients(actions)))

    def coefficients(self, actions: Array) -> Array:
        """Return frequencies [T, A] as whole numbers."""
        found: Array = np.around(_waves(len(actions)) @ actions.astype(np.float64) * self.scale)
        return found.astype(np.int64)

    def letters(self, coefficients: Array) -> str:
        """Return a letter for each coefficient."""
        places = np.clip(coefficients - self.lowest, 0, _LAST_LETTER)
        return "".join(chr(place) for place in places.ravel())

    def decode(self, codes: list[int], shape: tuple[int, int]) -> Array:
        """Return actions [T, A], float32: what is missing is 0, what is too much is left out.

        Raises:
            ValueError: these are no codes.
        """
        found = [ord(letter) + self.lowest for letter in self.codes.decode(codes)]
        wanted = shape[0] * shape[1]
        found = found[:wanted] + [0] * (wanted - len(found))
        coefficients = np.array(found, np.float64).reshape(shape)
        actions: Array = _waves(shape[0]).T @ (coefficients / self.scale)
        return actions.astype(np.float32)


@lru_cache(8)
def _waves(length: int) -> Array:
    """Return the orthonormal cosine transform (DCT-II) of a length as a matrix."""
    steps = np.arange(length)
    waves = np.cos(math.pi / length * np.outer(steps, steps + 0.5)) * math.sqrt(2 / length)
    waves[0] /= math.sqrt(2)
    return waves


@dataclass(frozen=True)
class Speech:
    """How a language model says actions."""

    fast: Fast
    size: int
    """Tokens of the language model."""
    skip: int
    """Its last tokens, which are not lent."""
    begin: int
    end: int
    """The tokens that stand before, and "|" behind what is said."""
    stop: int
    """What is said last, after "|"."""
    opening: tuple[int, ...]
    """The tokens of "Action: "."""

    def tokens(self, actions: Array) -> list[int]:
        """Return the tokens that say normalised actions [T, A], the one that begins included."""
        return [
            self.begin,
            *self.opening,
            *(self.lent(code) for code in self.fast.encode(actions)),
            self.end,
            self.stop,
        ]

    def lent(self, code: int) -> int:
        """Return the token that is lent to a code; of the token, its code."""
        return self.size - 1 - self.skip - code

    def actions(self, said: list[int], shape: tuple[int, int], *, strict: bool) -> Array:
        """Return the actions [T, A], float32, that were said; zeros where these were none.

        ``strict``: what does not begin with "Action:" is none. LeRobot's evaluation ends there,
        with all its episodes; here an episode whose policy says nothing plays on, and fails.
        """
        if strict and tuple(said[:2]) != self.opening[:2]:
            return np.zeros(shape, np.float32)
        codes = [self.lent(token) for token in self._without_words(said)]
        try:
            return self.fast.decode(codes, shape)
        except ValueError:
            return np.zeros(shape, np.float32)

    def _without_words(self, said: list[int]) -> list[int]:
        """Return the tokens before the end that are not of "Action: "."""
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
