"""Tokenizers may hold the regular expressions of published tokenizers, and no others."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.policies.tiny_tokenizer import rules, split

from proctor.errors import UsageError, strip_control_codes
from proctor.policies.lerobot.tokenizer.rules import (
    KNOWN_PATTERNS,
    MATCHED_LETTERS,
    check_rules,
    patterns_in,
)
from proctor.policies.lerobot.tokenizer.tokenizer import TextTokenizer

PUBLISHED = {
    "CLIP": r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]"
    r"|[^\s\p{L}\p{N}]+",
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Llama 3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "Qwen 2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "T5": r" {2,}",
}
HOSTILE = ["(a+)+$", ".*.*.*!", "[", "", r"\s+$", "x" * 5000, "a\nb\x1b[31m", r"(?i:'s)|\s+"]
TEXTS = ["push the puck ", " ", "a", "\n", "1", "'s", "!?", "é", "a1 \n"]


def files(**changes: Any) -> dict[str, bytes]:
    return {"tokenizer.json": json.dumps(rules(**changes)).encode()}


def replacing(pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": "x"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_pattern_is_known(name: str) -> None:
    assert PUBLISHED[name] in KNOWN_PATTERNS


@pytest.mark.parametrize("pattern", KNOWN_PATTERNS, ids=[*KNOWN_PATTERNS.values()])
def test_a_known_pattern_takes_at_most_a_second_on_the_longest_text(pattern: str) -> None:
    tokenizer = TextTokenizer(files(pre_tokenizer=split(pattern, "Isolated")), "here")
    for text in TEXTS:
        began = time.process_time()
        tokenizer.encode((text * MATCHED_LETTERS)[:MATCHED_LETTERS])
        assert time.process_time() - began < 1
    with refuses(UsageError, "policy.prompt-too-long"):
        tokenizer.encode("a" * (MATCHED_LETTERS + 1))


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "decoder"])
@pytest.mark.parametrize("pattern", HOSTILE)
def test_an_unknown_pattern_is_refused_in_one_line(pattern: str, part: str) -> None:
    rule = split(pattern, "Isolated") if part == "pre_tokenizer" else replacing(pattern)
    with refuses(UsageError, "tokenizer.refused-rule") as refused:
        TextTokenizer(files(**{part: rule}), "here")
    told = str(refused.value)
    assert told.startswith("here/tokenizer.json: ")
    assert repr(strip_control_codes(pattern, 60)) in told
    assert len(told) < 250
    assert told.isprintable()


def test_an_unknown_pattern_among_known_ones_is_refused() -> None:
    known = [split(pattern, "Isolated") for pattern in KNOWN_PATTERNS]
    check_rules(rules(pre_tokenizer={"type": "Sequence", "pretokenizers": known}), "here")
    mixed = {"type": "Sequence", "pretokenizers": [*known, split("a*", "Isolated")]}
    with refuses(UsageError, "tokenizer.refused-rule"):
        check_rules(rules(pre_tokenizer=mixed), "here")


def test_a_tokenizer_without_patterns_has_none_to_refuse() -> None:
    assert patterns_in(rules()) == []
