"""What a tokenizer.json may ask for: rules that make no long text of a short one, and take no time.

Ten letters could become gigabytes, and thirty could be looked at for years.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from proctor.errors import UsageError, one_line
from proctor.policies.lerobot.patterns import NoPattern, most_work

MATCHED_LETTERS = 2048
"""The longest text that regular expressions are given."""
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_MOST_RULES, _MOST_GROWTH = 2**20, 64
_MOST_WORK = 2**28
"""Looks at a letter, of all regular expressions on the longest text: a second or two."""


def check_rules(rules: Mapping[str, Any], where: str) -> None:
    """Refuse rules that make a long text of a short one, or that may take long.

    Raises:
        UsageError: naming the part.
    """
    for part in _PARTS:
        said = rules.get(part)
        if len(json.dumps(said)) > _MOST_RULES:
            raise UsageError(f"{where}: its {part} has more than {_MOST_RULES} letters")
        growth = _growth(said)
        if growth > _MOST_GROWTH:
            raise UsageError(f"{where}: its {part} makes texts {growth:.3g} times as long")
    _check_patterns(rules, where)


def patterns_in(rules: Mapping[str, Any]) -> list[str]:
    """Return the regular expressions in all that is done to a text."""
    return [pattern for part in _PARTS for pattern in _patterns(rules.get(part))]


def _check_patterns(rules: Mapping[str, Any], where: str) -> None:
    work = 0.0
    for pattern in patterns_in(rules):
        shown = repr(one_line(pattern, 60))
        try:
            work += most_work(pattern, MATCHED_LETTERS)
        except NoPattern as error:
            raise UsageError(
                f"{where}: the regular expression {shown} has what is not read here: "
                f"{one_line(str(error))}"
            ) from None
        if work > _MOST_WORK:
            raise UsageError(
                f"{where}: the regular expression {shown} could take too long, by all the ways in "
                "which it may match: refused"
            )


def _patterns(rule: Any) -> list[str]:
    if isinstance(rule, list):
        return [pattern for one in rule for pattern in _patterns(one)]
    if not isinstance(rule, dict):
        return []
    own = [rule["Regex"]] if isinstance(rule.get("Regex"), str) else []
    return own + [pattern for value in rule.values() for pattern in _patterns(value)]


def _growth(rule: Any) -> float:
    """Return how many times as long a text may be after ``rule``.

    By what it holds and not by its type, which the library does without where it can.
    """
    if isinstance(rule, list):
        return math.prod(_growth(one) for one in rule)
    if not isinstance(rule, dict):
        return 1.0
    growth = math.prod(_growth(value) for value in rule.values())
    if "single" in rule:
        told = str(rule["single"])
        growth *= max(1, told.count("'Sequence'") + told.count("$"))
    if isinstance(rule.get("prepend"), str):
        growth *= len(rule["prepend"]) + 1.0
    if isinstance(rule.get("content"), str):
        growth *= _replaced(rule["content"], rule.get("pattern"))
    return growth


def _replaced(content: str, pattern: Any) -> float:
    # A regular expression may find nothing, everywhere.
    told = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(told, str) and told:
        return max(1.0, len(content) / len(told))
    return len(content) + 1.0
