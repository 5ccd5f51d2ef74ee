"""What a LIBERO task asks for, read from its BDDL file without importing LIBERO."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any


class Relation(Enum):
    """What a goal can ask for."""

    IN = "in"
    ON = "on"
    OPEN = "open"
    CLOSE = "close"
    TURN_ON = "turnon"
    TURN_OFF = "turnoff"


@dataclass(frozen=True)
class Goal:
    """One condition of a task's goal: ``subject`` alone, or in a relation to ``place``."""

    relation: Relation
    subject: str
    place: str | None = None


@dataclass(frozen=True)
class Problem:
    """The things of a task and its goal; a thing is known by its name in the simulator."""

    category_of: dict[str, str]
    """Objects and fixtures (the table excepted), in the file's order."""
    owner_of: dict[str, str]
    """Region -> the thing or table it belongs to: all regions of things, goals on tables."""
    goals: tuple[Goal, ...]
    open_at_first: frozenset[str]
    """The drawers and doors that stand open when an episode begins."""

    @property
    def part_names(self) -> tuple[str, ...]:
        """Everything with a place: objects, fixtures, then regions. Their order is a contract."""
        return (*self.category_of, *self.owner_of)


def read_problem(path: Path) -> Problem:
    """Read a task's BDDL file."""
    sections = {entry[0]: entry[1:] for entry in _parsed(path.read_text(encoding="utf-8"))[1:]}
    fixtures = {n: kind for n, kind in _typed(sections[":fixtures"]).items() if not _is_table(kind)}
    things = {**_typed(sections[":objects"]), **fixtures}
    goals = tuple(_goal(entry) for entry in sections[":goal"][0][1:])
    wanted = {goal.place for goal in goals}
    owner_of = {}
    for name, *properties in sections.get(":regions", []):
        owner = next(value for key, value in properties if key == ":target")
        region = f"{owner}_{name}"
        # Files also list regions of things that their scene does not have.
        if owner in things or region in wanted:
            owner_of[region] = owner
    open_at_first = frozenset(args[0] for name, *args in sections[":init"] if name == "Open")
    return Problem(things, owner_of, goals, open_at_first)


def _is_table(category: str) -> bool:
    """Say whether a fixture is what everything stands on (it has no body of its own)."""
    return category == "floor" or category.endswith("table")


def _goal(entry: list[str]) -> Goal:
    return Goal(Relation(entry[0].lower()), *entry[1:])


def _typed(tokens: list[str]) -> dict[str, str]:
    """Return name -> category of ``a_1 a_2 - a b_1 - b``."""
    categories: dict[str, str] = {}
    names: list[str] = []
    words = iter(tokens)
    for word in words:
        if word == "-":
            category = next(words)
            categories.update(dict.fromkeys(names, category))
            names = []
        else:
            names.append(word)
    return categories


def _parsed(text: str) -> Any:
    """Return the nested lists of a Lisp expression."""
    levels: list[list[Any]] = [[]]
    for mark in re.findall(r"[()]|[^\s()]+", text):
        if mark == "(":
            levels.append([])
        elif mark == ")":
            inner = levels.pop()
            levels[-1].append(inner)
        else:
            levels[-1].append(mark)
    return levels[0][0]
