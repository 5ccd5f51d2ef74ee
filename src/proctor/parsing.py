"""Parses the values of flags (``[a, b]``, ``{a: 1}``, JSON, ``a,b``) and YAML config files.

Input may come from untrusted files: parsing runs no code, and bounds nesting depth and size.
"""

from __future__ import annotations

import itertools
import json
import re
import types
import typing
from enum import Enum
from functools import cache
from typing import Any

DEEPEST, MOST_CHARACTERS, MOST_VALUES = 32, 2**20, 1_000_000


class RepeatedKey(ValueError):
    """A key that YAML or JSON text gives twice; a parser would keep one and lose the other."""

    def __init__(self, key: str, lines: tuple[int, int]) -> None:
        self.key = key
        """The dotted name: "eval.n_episodes"."""
        first, second = lines
        on = f"lines {first} and {second}" if first != second else f"line {first}"
        self.place = f"on {on}"
        super().__init__(f"{key!r} is given twice")


_UNION = (typing.Union, types.UnionType)
_PLAIN = (
    ("bool", re.compile(r"true|false", re.IGNORECASE)),
    ("null", re.compile(r"null|none|~", re.IGNORECASE)),
    ("str", re.compile(r"[-+]?0[0-9].*")),
    ("int", re.compile(r"[-+]?[0-9]+")),
    ("float", re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|nan)")),
)
"""Types of unquoted words in ``[...]`` or ``{...}``; all other words are text, "on" too."""


def inner_type(kind: Any) -> Any:
    """Return a type without ``| None``."""
    if typing.get_origin(kind) in _UNION:
        return next(t for t in typing.get_args(kind) if t is not type(None))
    return kind


def container_of(kind: Any) -> Any:
    """Return ``list``, ``tuple`` or ``dict`` for a type that holds several values, else None."""
    origin = typing.get_origin(inner_type(kind))
    return origin if origin in (list, tuple, dict) else None


def enum_in(kind: Any) -> type[Enum] | None:
    """Return the enum that a type is, or whose members it contains; else None."""
    kinds = [inner_type(kind), *(inner_type(arg) for arg in typing.get_args(inner_type(kind)))]
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Enum)), None)


def parse_text(kind: Any, text: str) -> Any:
    """Parse the lists and maps in ``text`` for a field of type ``kind``.

    Other text stays text: msgspec converts it to numbers and booleans, and a field of type str
    keeps it.

    Raises:
        ValueError: the brackets are neither YAML nor JSON; the text is one line.
    """
    if inner_type(kind) is not str and text.lower() in ("none", "null"):
        return None
    container = container_of(kind)
    if container is None:
        return parse_flow(text) if _may_be_map(kind) and text.lstrip().startswith("{") else text
    if container is not dict and not is_flow_list(text):
        return [part.strip() for part in text.split(",") if part.strip()]
    return parse_flow(text)


def _may_be_map(kind: Any) -> bool:
    """Return whether a union has a dict besides its first type, as ``float | dict[str, float]``."""
    return any(typing.get_origin(option) is dict for option in typing.get_args(kind))


def is_flow_list(text: str) -> bool:
    """Return whether ``text`` is a list in brackets, not ``a,b``."""
    return text.lstrip().startswith("[")


def parse_flow(text: str) -> Any:
    """Return the list or map in ``text``: JSON, or YAML such as ``[a, b]`` and ``{a: b}``.

    Raises:
        ValueError: it is neither, or nested too deep; the text is one line.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it is longer than {MOST_CHARACTERS} characters")
    if not text.lstrip().startswith(("[", "{")):
        raise ValueError("expected brackets")
    try:
        value = json.loads(text, object_pairs_hook=_unrepeated)
    except (ValueError, RecursionError):  # ValueError: also a number with thousands of digits
        return load_yaml(text, flow=True)
    if _is_deeper(value, DEEPEST):
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    return value


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; with a repeated key it is read as YAML, which names that key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, list | dict):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in items)


def load_yaml(text: str | bytes, *, flow: bool = False) -> Any:
    """Read YAML or JSON. ``flow``: a flag's value, whose scalars are read as in JSON.

    Raises:
        RepeatedKey: a key is given twice, perhaps as ``a.b`` and inside ``a``.
        ValueError: it is invalid, or nested too deep; the text is one line.
    """
    import yaml

    loader = _loaders()[flow]
    try:
        return yaml.load(text, loader)  # noqa: S506  it is a SafeLoader
    except RepeatedKey:
        raise
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as bad:
        # PyYAML's own errors, and those that invalid dates, tags and merges cause in it
        problem = getattr(bad, "problem", None) if flow else None  # no position
        raise ValueError(" ".join(str(problem or bad).split())) from None


def _refuse_growth(document: Any) -> None:
    """Refuse aliases that contain themselves, or that multiply or nest the values of a document.

    Raises:
        ValueError: they do.
    """
    found: dict[int, tuple[int, int] | None] = {}  # None: its values are being counted

    def measure(node: Any) -> tuple[int, int]:
        """Return the number of values in a node and its depth."""
        if node.id == "scalar":
            return 1, 0
        if id(node) in found:
            known = found[id(node)]
            if known is None:
                raise ValueError("an alias contains itself")
            return known
        found[id(node)] = None
        is_map = node.id == "mapping"
        parts = [measure(part) for part in (itertools.chain(*node.value) if is_map else node.value)]
        size, depth = 1 + sum(n for n, _ in parts), 1 + max((d for _, d in parts), default=0)
        if size > MOST_VALUES or depth > DEEPEST:
            raise ValueError(f"aliases make more than {MOST_VALUES:,} values or {DEEPEST} levels")
        found[id(node)] = size, depth
        return size, depth

    if document is not None:
        measure(document)


def _refuse_repeats(node: Any, prefix: str, lines: dict[str, int], visited: set[int]) -> None:
    """Refuse a key that stands twice below a YAML node, by its dotted name."""
    if node is None or node.id == "scalar" or id(node) in visited:
        return
    visited.add(id(node))
    if node.id == "sequence":
        for place, item in enumerate(node.value):
            _refuse_repeats(item, f"{prefix}{place}.", lines, visited)
        return
    for key, value in node.value:
        if key.id != "scalar":
            continue  # a list or map as a key, which no setting has
        name, line = f"{prefix}{key.value}", key.start_mark.line + 1
        if name in lines:
            raise RepeatedKey(name, (lines[name], line))
        lines[name] = line
        _refuse_repeats(value, f"{name}.", lines, visited)


@cache
def _loaders() -> tuple[Any, Any]:
    """Return the loaders of files and of flags; yaml is imported on first use."""
    import yaml

    class Shallow(yaml.SafeLoader):
        """Limits the nesting depth, which could overflow the stack, and refuses repeated keys."""

        depth = 0

        def get_single_node(self) -> Any:
            node = super().get_single_node()
            _refuse_growth(node)
            _refuse_repeats(node, "", {}, set())
            return node

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.depth += 1
            if self.depth > DEEPEST:
                raise yaml.YAMLError(f"nested deeper than {DEEPEST} levels")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    class Flow(Shallow):
        """Reads the value of a flag: no aliases, which can multiply, no tags, dates or octals."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            if isinstance(event, yaml.AliasEvent) or event.tag not in (None, "!"):
                raise yaml.YAMLError("words that begin with * or ! belong in quotes")
            return super().compose_node(parent, index)

        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            if kind is not yaml.ScalarNode or not implicit[0]:
                return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
            named = (name for name, pattern in _PLAIN if pattern.fullmatch(value))
            return f"tag:yaml.org,2002:{next(named, 'str')}"

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            for key, value in node.value:
                if value.value == "" and value.start_mark.index == value.end_mark.index:
                    name = key.value if isinstance(key, yaml.ScalarNode) else "a key"
                    raise yaml.YAMLError(f"{name!r} has no value; a space follows the colon")
            return super().construct_mapping(node, deep)

    return Shallow, Flow
