"""Fuzzing of tokenizer regular expressions: known ones are fast, others are refused."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from proctor.errors import ProctorError
from proctor.policies.lerobot.tokenizer.rules import KNOWN_PATTERNS
from proctor.policies.lerobot.tokenizer.tokenizer import TOKENIZER, TextTokenizer
from tests.fuzz.hostile import Draw, texts
from tests.fuzz.sandbox import Sandbox
from tests.unit.policies.tiny_tokenizer import rules, split

_KNOWN = st.sampled_from([*KNOWN_PATTERNS])
_HOSTILE = [
    "(a+)+$", "(a|aa)+$", "(.*)*x", r"(\w+\s?)*:", "a?" * 25 + "a" * 25, ".*.*.*!", "(?<=a+)b", "[",
    "(", ")", "\\", "[]a]", r"\1", "(?x)a", "[[:x:](a+)+$]",
]  # fmt: skip
_PATTERNS = st.one_of(
    _KNOWN,
    st.sampled_from(_HOSTILE),
    st.builds(str.__add__, _KNOWN, st.sampled_from(["$", "+", "|(a+)+$", " ", "\n"])),
    st.builds(lambda pattern: f"({pattern})+$", _KNOWN),
    texts,
)
_TEXTS = ["a", "ab", "a ", "a b ", "1", "aé", "push the puck ", "\n", " ", "'s", "\r\n ", "A1"]


def regular_expressions(draw: Draw, sandbox: Sandbox) -> None:
    """A tokenizer with a regular expression, and a long text of repeated letters."""
    pattern, end = draw(_PATTERNS), draw(st.sampled_from(["", "!", "\n", "b", "1"]))
    text = (draw(st.sampled_from(_TEXTS)) * 2000)[: draw(st.sampled_from([30, 600, 2000]))] + end
    replaced = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "a"}
    changes = draw(st.sampled_from([
        {"pre_tokenizer": split(pattern, "Isolated")}, {"normalizer": replaced},
        {"decoder": replaced}, {"normalizer": {"type": "Sequence", "normalizers": [replaced] * 5}},
    ]))  # fmt: skip
    files = {TOKENIZER: json.dumps(rules(**changes)).encode()}
    with sandbox.watched(f"{pattern!r} on {text[:20]!r} * {len(text)}"):
        try:
            tokenizer = TextTokenizer(files, "here")
            assert pattern in KNOWN_PATTERNS, f"{pattern!r} was run"
            tokenizer.decode(tokenizer.encode(text)[:100])
        except ProctorError as error:
            sandbox.check_error(error)
