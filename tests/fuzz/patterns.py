"""Regular expressions of tokenizers: what is taken must end soon, on texts that are made for it."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from proctor.errors import ProctorError
from proctor.policies.lerobot.tokenizer import TOKENIZER, TextTokenizer
from tests.fuzz.hostile import Draw, texts
from tests.fuzz.yard import Yard
from tests.unit.policies.tiny_tokenizer import rules, split

_LETTERS = [
    "a", "b", " ", ".", r"\w", r"\s", r"\S", r"\d", "[a-z]", "[^b]", "[ab ]", r"\p{L}",
    r"[\p{L}\s]", r"\b", "^", "$", "!", "é", "[[:alpha:]]", "[a&&[^b]]",
]  # fmt: skip
_TIMES = [
    "+",
    "*",
    "?",
    "+?",
    "*?",
    "++",
    "{2}",
    "{1,3}",
    "{2,}",
    "{0,40}",
    "{,9}",
    "{3}?",
    "{1,2}+",
]
_AROUND = [
    "({})",
    "(?:{})",
    "(?i:{})",
    "(?={})",
    "(?!{})",
    "(?<={})",
    "(?<!{})",
    "(?>{})",
    "(?<n>{})",
]
_ODD = [
    r"\1", r"\k<n>", r"\g<0>", "(?~a)", "(?x)", "(?i)", "[", "]", "(", ")", "|", "{", "}", "\\",
    "[]", "[:x:]", "[[:x:]", r"\X", r"\R", r"\K", "(?#", "*", "[[:alpha:", "a{99999}", "\\Q",
    r"\x{110000}",
]  # fmt: skip
_TEXTS = ["a", "ab", "a ", "a b ", "1", "aé", "push the puck ", "\n", " "]


_ENDS = ["$", r"\d", "[0-9]", "(?!.)", "[^a]$", "", "(?=z)", r"\p{Lu}"]
_EVIL = [
    "({0}+)+{1}", "({0}*)*{1}", "({0}|{0}{0})+{1}", "({0}|{0})*{1}", "({0}+{0}?)+{1}",
    "({0}?){{25}}{1}",
    "{0}*{0}*{0}*{0}*{1}", "(?:{0}+)++{1}", "(({0}+)?)+{1}", "({0}+)*?{1}", "(?=({0}+)+{1})",
    "({0}{{1,9}}){{9}}{1}",
    "(?i:{0}+)+{1}", "[{0}b]+({0}+b?)*{1}", "(?>({0}+)+{1})", "({0}+|b)*{1}",
]  # fmt: skip


def _larger(smaller: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds(str.__add__, smaller, st.sampled_from(_TIMES)),
        st.builds(lambda a, b: a + b, smaller, smaller),
        st.builds(lambda a, b: f"{a}|{b}", smaller, smaller),
        st.builds(lambda around, a: around.format(a), st.sampled_from(_AROUND), smaller),
    )


_PATTERNS = st.one_of(
    st.recursive(st.sampled_from(_LETTERS), _larger, max_leaves=12),
    st.recursive(st.sampled_from(_LETTERS + _ODD), _larger, max_leaves=12),
    st.builds(
        str.format, st.sampled_from(_EVIL), st.sampled_from(_LETTERS), st.sampled_from(_ENDS)
    ),
    texts,
)


def regular_expressions(draw: Draw, yard: Yard) -> None:
    """A tokenizer with a regular expression, and a text that it may go astray on."""
    pattern, end = draw(_PATTERNS), draw(st.sampled_from(["", "!", "\n", "b", "1"]))
    text = (draw(st.sampled_from(_TEXTS)) * 500)[: draw(st.sampled_from([30, 200, 600]))] + end
    replaced = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "a"}
    changes = draw(st.sampled_from([
        {"pre_tokenizer": split(pattern, "Isolated")}, {"normalizer": replaced},
        {"decoder": replaced}, {"normalizer": {"type": "Sequence", "normalizers": [replaced] * 5}},
    ]))  # fmt: skip
    files = {TOKENIZER: json.dumps(rules(**changes)).encode()}
    with yard.watched(f"{pattern!r} on {text[:20]!r} * {len(text)}"):
        try:
            tokenizer = TextTokenizer(files, "here")
            tokenizer.decode(tokenizer.encode(text)[:100])
        except ProctorError as error:
            yard.check_error(error)
