"""Hypothesis strategies for hostile values, arguments and files."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.sentinel import CANARY

Draw = Any
"""Hypothesis' ``draw``: strategy -> value."""

TEXTS = [
    "", " ", "x", "none", "null", "true", "false", "0", "-1", "nan", "inf", "-inf", "1e309",
    "1e400",
    "[", "{", "[]", "{}", '{"a":1}', "[0,3]", "[[[[", "\n", "a\nb", "\r\x1b[2J", "\x00", "a\x00b",
    "\x7f", "\u202e", "\ud800", "\udcff", "é", "😀", "'", '"', "`", "$(touch x)", "; rm -rf x",
    "[/bold]", "[red]", "[link=x]", "%s%n", "{0}", "{{title}}", "</script>", "<b>", "..", "../..",
    "../../etc/passwd", "/", "/etc/passwd", "/dev/zero", "/proc/self/mem", ".", "~", "~root",
    "~nobody/x",
    "a/b", "a/../b", "C:\\x", "A" * 300, "a/" * 3000, f"{CANARY}:PLUGIN", f"{CANARY}:", ":PLUGIN",
    ":", "..:x", ".a:b", "no_such:X", "json:loads", "fake", "metaworld", "random", "zero", "expert",
    "act", "diffusion", "pretrained", "point", "cpu", "cuda:99999999999", "gpu", "never",
    "ci_width<0",
    "ci_width<1e-400", "task_ci_width<0.1", "9" * 30, "9" * 5000, "-" * 50, "1" + "0" * 12,
    "__class__",
    "__init__", "!!python/object/apply:os.system [x]", "&a [*a]", "0x10", "1_000", "٣", "²", "１",
]  # fmt: skip
NUMBERS = [
    0, 1, 2, 3, -1, 7, 64, 10**6, 10**9, 10**12, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30,
    -(2**63), 0.0, -0.0, 0.5, 1.5, 1e-300, 1e300, -1e300, float("nan"), float("inf"), float("-inf"),
]  # fmt: skip


def _deep(levels: int) -> Any:
    nest: Any = []
    for _ in range(levels):
        nest = [nest]
    return nest


ODD = [None, True, False, [], {}, [[]], [None], {"a": {}}, {"": ""}, [1, 2], ["x", 1], _deep(50)]

texts = st.one_of(st.sampled_from(TEXTS), st.text(max_size=12))
numbers = st.one_of(st.sampled_from(NUMBERS), st.integers(-5, 300))
values = st.one_of(texts, numbers, st.sampled_from(ODD))
"""Any JSON value, kept small."""


def words(value: str) -> str:
    """Return ``value`` as a command-line argument, which the system ends at a NUL.

    Code that a flag names is the user's own and is imported, so flags do not name the canary.
    """
    return value.split("\0")[0].replace(CANARY, "no_such_module")


@st.composite
def mutated(draw: Draw, valid: Any) -> Any:
    """Return a copy of a JSON value with one to three changes."""
    tree = {"": copy.deepcopy(valid)}
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(tree))
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        _change(draw, holder, key)
    return tree[""]


def _places(tree: Any) -> Any:
    """Yield (container, key) of every value in a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(items):
        yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _change(draw: Draw, holder: Any, key: Any) -> None:
    how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "wrap", "add"]))
    old = holder[key]
    if how == "remove" and key != "":
        del holder[key]
    elif how == "wrap":
        holder[key] = draw(st.sampled_from([[old], {"a": old}, [old, old], str(old)]))
    elif how == "add" and isinstance(old, dict):
        old[draw(texts)] = copy.deepcopy(draw(values))
    elif how == "add" and isinstance(old, list):
        old.append(copy.deepcopy(draw(values)))
    else:
        holder[key] = copy.deepcopy(draw(values))


@st.composite
def json_bytes(draw: Draw, valid: Any) -> bytes:
    """Return a manipulated JSON file, made from ``valid``."""
    tree = draw(mutated(valid))
    blob = json.dumps(tree).encode()
    if draw(st.integers(0, 5)):
        return blob
    return draw(spoiled(blob))


BOMBS = [b"[" * 200_000, b'{"a":' * 100_000, b"9" * 10_000, b"\xff\xfe", b"\xef\xbb\xbf{}", b"",
b"{}",
         b"[]", b"null", b'"x"', b"\x80\x04cos\nsystem\n(S'touch x'\ntR.",
         b"PK\x03\x04"]  # fmt: skip


@st.composite
def spoiled(draw: Draw, blob: bytes) -> bytes:
    """Return truncated, changed, extended or replaced bytes."""
    how = draw(st.sampled_from(["cut", "flip", "insert", "bomb"]))
    at = draw(st.integers(0, len(blob)))
    if how == "cut":
        return blob[:at]
    if how == "bomb":
        return draw(st.sampled_from(BOMBS))
    some = draw(st.binary(min_size=1, max_size=9))
    return blob[:at] + some + blob[at + (len(some) if how == "flip" else 0) :]
