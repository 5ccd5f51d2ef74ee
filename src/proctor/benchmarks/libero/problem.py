"""A LIBERO task's objects and goals, read from its BDDL file without importing LIBERO."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any


class Relation(Enum):
    """Predicates of goals."""

    IN = "in"
    ON = "on"
    OPEN = "open"
    CLOSE = "close"
    TURN_ON = "turnon"
    TURN_OFF = "turnoff"


@dataclass(frozen=True)
class Goal:
    """One condition of a task's goal, on ``subject`` alone or on ``subject`` and ``place``."""

    relation: Relation
    subject: str
    place: str | None = None


@dataclass(frozen=True)
class Problem:
    """A task's objects, fixtures, regions and goals, by their names in the simulator."""

    category_of: dict[str, str]
    """Name -> category of objects and fixtures (without the table), in the file's order."""
    owner_of: dict[str, str]
    """Region -> its object, fixture or table; on tables, goal regions only."""
    goals: tuple[Goal, ...]
    open_at_first: frozenset[str]
    """Drawers and doors that are open when an episode starts."""

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of objects, fixtures, then regions: the rows of the privileged state."""
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
        # Files also list regions of objects that their scene does not have.
        if owner in things or region in wanted:
            owner_of[region] = owner
    open_at_first = frozenset(args[0] for name, *args in sections[":init"] if name == "Open")
    return Problem(things, owner_of, goals, open_at_first)


def _is_table(category: str) -> bool:
    """Whether a fixture is the table or floor, which has no body of its own."""
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
