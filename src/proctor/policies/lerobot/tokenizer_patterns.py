"""Allow-list of the regular expressions of published tokenizers; no others are run.

An untrusted regular expression can take exponential time: ``(a+)+$`` tries 2^n ways on n
characters. So a tokenizer.json may hold only the patterns below.
"""

from __future__ import annotations

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
