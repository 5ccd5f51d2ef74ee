"""How long a regular expression may take, told by reading it: those of tokenizers are anybody's.

The library that runs them goes back and tries again where a match fails. ``(a+)+$`` tries 2^n ways
on n letters, and ``.*.*.*!`` n^3. Here a pattern becomes a tree, of which the most work from one
letter on is computed:

    work   looks at letters, until it has matched or failed in all ways
    ways   in which it may match, each of which what follows may make it try

What cannot be computed so, as a repeated group that matches in several ways, has no bound; what is
not known here (references to groups, calls, conditions) is not read.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TypeAlias

_MOST_DEPTH, _MOST_TIMES = 30, 100_000
_GROUP = re.compile(r"\((?:\?(?P<kind>:|[im]+:|=|!|<=|<!|>)|(?!\?|\*))")
_ESCAPE = re.compile(
    r"\\(?:[pP]\{\^?\w{1,40}\}|x\{[0-9a-fA-F]{1,8}\}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}"
    r"|[sSdDwWhHtnrfvaebBAzZG]|0|[^\w\s])",
    re.ASCII,
)
_NAMED = re.compile(
    r"\[:\^?(?:alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|xdigit|word):\]"
)
_TIMES = re.compile(r"(?:(?P<sign>[?*+])|\{(?P<low>\d{0,6})(?P<comma>,?)(?P<high>\d{0,6})\})")
_AROUND, _BEHIND, _AT_ONCE = ("=", "!"), ("<=", "<!"), ">"


class NoPattern(ValueError):
    """A regular expression that is not read here, and why."""


@dataclass(frozen=True)
class _Letter:
    """One letter of a set, or a place between two."""


@dataclass(frozen=True)
class _Either:
    """One of several sequences; one alone is a group."""

    choices: tuple[tuple[_Node, ...], ...]
    kind: str = ":"


@dataclass(frozen=True)
class _Repeat:
    """A thing ``low`` to ``high`` times; None: as often as there are letters."""

    node: _Node
    low: int
    high: int | None


_Node: TypeAlias = _Letter | _Either | _Repeat


def most_work(pattern: str, letters: int) -> float:
    """Return how many looks at a letter ``pattern`` may take on a text of ``letters``, at most.

    Raises:
        NoPattern: it is not one that can be judged.
    """
    reader = _Reader(pattern)
    tree = reader.either(0)
    if reader.at < len(pattern):
        raise NoPattern(f"a ) too many at letter {reader.at}")
    return letters * _cost(_Either(tree), float(letters), last=True)[0]


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0

    def either(self, depth: int) -> tuple[tuple[_Node, ...], ...]:
        """Read sequences up to the end of their group."""
        if depth > _MOST_DEPTH:
            raise NoPattern(f"groups in more than {_MOST_DEPTH} groups")
        choices: list[list[_Node]] = [[]]
        while self.at < len(self.pattern) and self.pattern[self.at] != ")":
            if self.pattern[self.at] == "|":
                self.at += 1
                choices.append([])
            else:
                choices[-1].append(self._repeated(self._one(depth)))
        return tuple(map(tuple, choices))

    def _one(self, depth: int) -> _Node:
        letter = self.pattern[self.at]
        if letter == "(":
            return self._group(depth)
        if letter == "[":
            self._set()
        elif letter == "\\":
            self._escape()
        elif letter in "?*+{":
            raise NoPattern(f"{letter} at letter {self.at} repeats nothing")
        else:
            self.at += 1
        return _Letter()

    def _group(self, depth: int) -> _Node:
        found = _GROUP.match(self.pattern, self.at)
        if found is None:
            raise NoPattern(f"a group of its own kind at letter {self.at}")
        self.at = found.end()
        choices = self.either(depth + 1)
        if self.at >= len(self.pattern):
            raise NoPattern("a ( too many")
        self.at += 1
        kind = found["kind"] or ":"
        return _Either(choices, kind if kind in (*_AROUND, *_BEHIND, _AT_ONCE) else ":")

    def _escape(self) -> None:
        found = _ESCAPE.match(self.pattern, self.at)
        if found is None:
            raise NoPattern(f"{self.pattern[self.at : self.at + 3]} at letter {self.at}")
        self.at = found.end()

    def _set(self) -> None:
        """Pass over a set of letters, with those that are in it."""
        depth, start = 0, self.at
        while self.at < len(self.pattern):
            letter = self.pattern[self.at]
            if letter == "\\":
                self._escape()
                continue
            if depth and self.pattern.startswith("[:", self.at):
                self._named()
                continue
            self.at += 1
            if letter == "[":
                depth += 1
                self.at += self.pattern.startswith("^", self.at)
                if self.pattern.startswith("]", self.at):  # the library's own rules for it are odd
                    raise NoPattern(f"a ] that begins a set at letter {self.at}")
            depth -= letter == "]"
            if not depth:
                return
        raise NoPattern(f"a set without an end at letter {start}")

    def _named(self) -> None:
        """Pass over a set by its name: of another name, the library sees letters and an end."""
        found = _NAMED.match(self.pattern, self.at)
        if found is None:
            raise NoPattern(f"[: at letter {self.at}")
        self.at = found.end()

    def _repeated(self, node: _Node) -> _Node:
        found = _TIMES.match(self.pattern, self.at)
        if found is None:
            return node
        self.at = found.end()
        if found["sign"]:
            low, high = {"?": (0, 1), "*": (0, None), "+": (1, None)}[found["sign"]]
            # Asked again for as few as can be, or for no other than the most: no more ways.
            self.at += self.pattern[self.at : self.at + 1] in ("?", "+")
        else:
            low, high = _interval(found)
            self.at += self.pattern.startswith("?", self.at) and low != high
        if _TIMES.match(self.pattern, self.at):
            raise NoPattern(f"repeated twice at letter {self.at}")
        return _Repeat(node, low, high)


def _interval(found: re.Match[str]) -> tuple[int, int | None]:
    low, high = int(found["low"] or 0), int(found["high"]) if found["high"] else None
    if not found["low"] and not found["high"]:
        raise NoPattern("{ without numbers")
    if not found["comma"]:
        high = low
    if max(low, high or 0) > _MOST_TIMES or (high is not None and high < low):
        raise NoPattern(f"{found[0]} times")
    return low, high


def _cost(node: _Node, letters: float, *, last: bool) -> tuple[float, float]:
    """Return the most work of ``node`` and its ways; ``last``: nothing behind it may fail."""
    if isinstance(node, _Letter):
        return 1.0, 1.0
    if isinstance(node, _Repeat):
        return _repeat_cost(node, letters)
    # What was looked around for, or matched at once, is not tried in another way.
    apart = node.kind != ":"
    costs = [_sequence_cost(choice, letters, last=last or apart) for choice in node.choices]
    work, ways = 1 + sum(w for w, _ in costs), sum(n for _, n in costs)
    if node.kind in _BEHIND:  # may begin at any letter before
        work *= letters
    return work, 1.0 if apart else ways


def _repeat_cost(node: _Repeat, letters: float) -> tuple[float, float]:
    work, ways = _cost(node.node, letters, last=False)
    if ways == 1:
        most = letters if node.high is None else float(node.high)
        return max(most, node.low) * work, max(1.0, most - node.low + 1)
    if node.high is None:
        return math.inf, math.inf
    if node.high * math.log(ways) > 600:
        return math.inf, math.inf
    tried = sum(ways**n for n in range(node.low, node.high + 1)) if node.high < 600 else math.inf
    return work * (1 + node.high) * tried, tried


def _sequence_cost(nodes: tuple[_Node, ...], letters: float, *, last: bool) -> tuple[float, float]:
    """Return the cost of one after another: each is tried for all the ways of those before it.

    What may be left out, with nothing behind it that may fail, makes nobody try again.
    """
    nodes = tuple(part for node in nodes for part in _parts(node))
    needed = len(nodes)
    while last and needed and _may_be_left_out(nodes[needed - 1]):
        needed -= 1
    work, ways = 1.0, 1.0
    for place, node in enumerate(nodes):
        own, more = _cost(node, letters, last=last and place == len(nodes) - 1)
        if place < needed:
            work, ways = work + ways * own, ways * more
        else:
            work += own
    return work, ways


def _parts(node: _Node) -> tuple[_Node, ...]:
    """Return what has to be there apart from what may be, of a thing that is repeated."""
    if not isinstance(node, _Repeat) or not node.low or node.low == node.high:
        return (node,)
    rest = None if node.high is None else node.high - node.low
    return _Repeat(node.node, node.low, node.low), _Repeat(node.node, 0, rest)


def _may_be_left_out(node: _Node) -> bool:
    return isinstance(node, _Repeat) and node.low == 0
