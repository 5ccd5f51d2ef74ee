"""How long a regular expression may take is told by reading it, before it is run."""

from __future__ import annotations

import json
import time

import pytest
from tests.unit.policies.tiny_tokenizer import rules, split

from proctor.errors import UsageError
from proctor.policies.lerobot.patterns import NoPattern, most_work
from proctor.policies.lerobot.tokenizer import TextTokenizer
from proctor.policies.lerobot.tokenizer_rules import MATCHED_LETTERS, check_rules

ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE, BETWEEN = r"[^\r\n\p{L}\p{N}]?", r"\s*[\r\n]+|\s+(?!\S)|\s+"
PUBLISHED = {
    "spaces": r"\s+",
    "several spaces": r"\s{2,}|[\n\r\t]",
    "CLIP": r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]"
    r"|[^\s\p{L}\p{N}]+",
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Llama 3": rf"{ENDINGS}|{BEFORE}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    rf"|{BETWEEN}",
    "GPT-4o": rf"{BEFORE}{UPPER}*{LOWER}+{ENDINGS}?|{BEFORE}{UPPER}+{LOWER}*{ENDINGS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BETWEEN}",
    "BLOOM": " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+",
    "digits in threes": r"\d{1,3}(?=(?:\d{3})*\b)",
    "a name of letters": "[[:alpha:]_]+",
}
TOO_LONG = [
    r"(a+)+$",
    r"(a|aa)+$",
    r"(a|a)*b",
    r"(.*)*x",
    r"(\w+\s?)*:",
    r"([a-z]+)*\d",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"(?:\w+)*+$",
    "a?" * 40 + "a" * 40,
    "(?:a?){40}a{40}",
    ".*.*!",
    ".*.*.*!",
    "(?:a{1000}){1000}",
    "(?:(?:a{1,9}){1,9}){1,9}b",
    "(?<=a+)b",
    "x|" * 2000 + r"(?:(a|b)*c)",
]
NOT_READ = [
    r"(a*)\1b",
    r"(?<x>a+)\k<x>",
    r"\g<0>a",
    "(?(1)a|b)",
    "(?~a)",
    "(?x)a",
    "(?i)a|b",
    "(*FAIL)",
    r"\X",
    "a{1,2}+",
    "a**",
    "a{3}?",
    "a{x",
    "(" * 1000 + ")" * 1000,
    "(",
    ")",
    "[",
    "[]a]",
    "\\",
    "[[:x:](a+)+$]",  # the library sees the end of a set behind the second :
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_tokenizers_are_published_with_is_taken(name: str) -> None:
    check_rules(rules(pre_tokenizer=split(PUBLISHED[name], "Isolated")), "here")


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "decoder"])
@pytest.mark.parametrize("pattern", TOO_LONG)
def test_what_may_take_for_ever_is_refused(pattern: str, part: str) -> None:
    rule = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "x"}
    hostile = rules(**{part: split(pattern, "Isolated") if part == "pre_tokenizer" else rule})
    with pytest.raises(UsageError, match="could take too long") as refused:
        TextTokenizer({"tokenizer.json": json.dumps(hostile).encode()}, "here")
    assert str(refused.value).startswith("here/tokenizer.json: the regular expression '")
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("pattern", NOT_READ)
def test_what_cannot_be_judged_is_refused(pattern: str) -> None:
    with pytest.raises(NoPattern):
        most_work(pattern, 100)
    with pytest.raises(UsageError, match="has what is not read here"):
        check_rules(rules(pre_tokenizer=split(pattern, "Isolated")), "here")


def test_many_patterns_count_together() -> None:
    one = split(r".+\d", "Isolated")
    check_rules(rules(pre_tokenizer={"type": "Sequence", "pretokenizers": [one] * 20}), "here")
    with pytest.raises(UsageError, match="could take too long"):
        check_rules(rules(pre_tokenizer={"type": "Sequence", "pretokenizers": [one] * 60}), "here")


@pytest.mark.parametrize(
    ("pattern", "work"),
    [
        ("ab", 4),  # to begin, to begin a sequence, and two letters
        ("a+", 2 + 1 + 10),
        ("a+b", 2 + 1 + 10 + 11),  # for as many a as there may be, one look at b
        ("a?b?", 2 + 1 + 1),  # nothing behind may fail
        ("a*b*c", 2 + 10 + 11 * 10 + 121),
    ],
)
def test_work_is_counted_as_the_library_goes_back(pattern: str, work: int) -> None:
    assert most_work(pattern, 10) == 10 * work


def test_work_as_counted_takes_seconds_at_most_on_the_longest_text() -> None:
    some = "|".join([r".+\d"] * 3)  # a tenth of what is taken
    files = {"tokenizer.json": json.dumps(rules(pre_tokenizer=split(some, "Removed"))).encode()}
    tokenizer = TextTokenizer(files, "here")
    began = time.process_time()
    tokenizer.encode(("push the puck " * 1000)[:MATCHED_LETTERS])
    assert time.process_time() - began < 2
    with pytest.raises(UsageError, match=r"2049 letters are no instruction \(at most 2048\)"):
        tokenizer.encode("a" * (MATCHED_LETTERS + 1))
