"""Checks of a tokenizer.json: its rules must not blow up a text, nor run unknown patterns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from proctor.errors import UsageError, strip_control_codes

MATCHED_LETTERS = 2048
"""Longest text for a tokenizer with regular expressions; their time may grow by its square."""
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_MOST_RULES, _MOST_GROWTH = 2**20, 64


def check_rules(rules: Mapping[str, Any], where: str) -> None:
    """Refuse rules that make a long text of a short one, and regular expressions we do not know."""
    for part in _PARTS:
        said = rules.get(part)
        if len(json.dumps(said)) > _MOST_RULES:
            raise UsageError(
                f"{where}: its {part} has more than {_MOST_RULES} letters",
                code="tokenizer.refused-rule",
            )
        growth = _growth(said)
        if growth > _MOST_GROWTH:
            raise UsageError(
                f"{where}: its {part} makes texts {growth:.3g} times as long",
                code="tokenizer.refused-rule",
            )
    for pattern in patterns_in(rules):
        if pattern not in KNOWN_PATTERNS:
            raise UsageError(
                f"{where}: the regular expression {strip_control_codes(pattern, 60)!r} is not "
                "one of a known tokenizer and could take for ever: refused",
                code="tokenizer.refused-rule",
            )


def patterns_in(rules: Mapping[str, Any]) -> list[str]:
    """Return the regular expressions of all rules."""
    return [pattern for part in _PARTS for pattern in _patterns(rules.get(part))]


def _patterns(rule: Any) -> list[str]:
    if isinstance(rule, list):
        return [pattern for one in rule for pattern in _patterns(one)]
    if not isinstance(rule, dict):
        return []
    own = [rule["Regex"]] if isinstance(rule.get("Regex"), str) else []
    return own + [pattern for value in rule.values() for pattern in _patterns(value)]


def _growth(rule: Any) -> float:
    """Return the factor by which ``rule`` may lengthen a text.

    It depends on the rule's fields, not on its type: the library accepts rules without a type.
    """
    if isinstance(rule, list):
        return math.prod(_growth(one) for one in rule)
    if not isinstance(rule, dict):
        return 1.0
    growth = math.prod(_growth(value) for value in rule.values())
    if "single" in rule:
        text = str(rule["single"])
        growth *= max(1, text.count("'Sequence'") + text.count("$"))
    if isinstance(rule.get("prepend"), str):
        growth *= len(rule["prepend"]) + 1.0
    if isinstance(rule.get("content"), str):
        growth *= _replaced(rule["content"], rule.get("pattern"))
    return growth


def _replaced(content: str, pattern: Any) -> float:
    # A regular expression may match the empty string, everywhere.
    text = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(text, str) and text:
        return max(1.0, len(content) / len(text))
    return len(content) + 1.0


_SUFFIXES = "'s|'t|'re|'ve|'m|'ll|'d"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PREFIX = r"[^\r\n\p{L}\p{N}]?"
_SYMBOLS, _SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+|\s+(?!\S)|\s+"

KNOWN_PATTERNS: dict[str, str] = {
    r"\s+": "CLIP, white space",
    r" {2,}": "T5 and other SentencePiece models, repeated spaces",
    r"\s{2,}|[\n\r\t]": "DeBERTa and other SentencePiece models, white space",
    rf"<\|startoftext\|>|<\|endoftext\|>|{_SUFFIXES}|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+": (
        "CLIP"
    ),
    rf"{_SUFFIXES}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+": (
        "GPT-2, and byte-level tokenizers such as BART's and Florence-2's"
    ),
    rf"(?i:{_SUFFIXES})|{_PREFIX}\p{{L}}+|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}": "Llama 3",
    rf"(?i:{_SUFFIXES})|{_PREFIX}\p{{L}}+|\p{{N}}|{_SYMBOLS}|{_SPACES}": (
        "Qwen 2 to Qwen3-VL, as GR00T uses it"
    ),
    rf"(?i:{_SUFFIXES})|{_PREFIX}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
    rf"|{_SPACES}": "Qwen 3.5",
    rf"{_PREFIX}{_UPPER}*{_LOWER}+(?i:{_SUFFIXES})?|{_PREFIX}{_UPPER}+{_LOWER}*(?i:{_SUFFIXES})?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}": "GPT-4o",
    r"[▁:;,|\n]|\d": "the small tokenizers of LeRobot's goldens in tests/golden",
}
"""Pattern, and the tokenizers that have it.

Gemma, PaliGemma, SmolVLM2, BERT and FAST have none: their rules are literal strings, or built into
the tokenizers library.
"""
