"""Remove secrets from text: passwords and queries of URLs, keys and tokens in commands and maps.

Settings keep their secrets in memory only. What is written, shown or uploaded is redacted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "***"
_NAME = (
    r"(?:[A-Za-z0-9]+[._-])*(?:tokens?|secrets?|passw(?:or)?d|pwd|api_?-?keys?|access_?-?keys?|"
    r"private_?-?keys?|auth|authorization|credentials?|cookies?|bearer)"
)
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_RULES = (
    (re.compile(r"\b((?:proxy-)?authorization|cookie)(:\s*)[^'\"\r\n]+", re.I), rf"\1\2{REDACTED}"),
    (re.compile(r"([a-z][a-z0-9+.-]*://)[^/\s?#]*@", re.IGNORECASE), rf"\1{REDACTED}@"),
    (re.compile(r"([a-z][a-z0-9+.-]*://[^\s?#'\"]*[?#])[^\s'\",]+", re.I), rf"\1{REDACTED}"),
    (re.compile(r"(?<![\w-])([A-Z_][A-Z0-9_]*=)(?:'[^']*'|\"[^\"]*\"|\S+)"), rf"\1{REDACTED}"),
    (
        re.compile(
            rf"(?<![\w.-])((?:--?)?{_NAME}=|{_NAME}:\s*(?!\d{{1,6}}\b))(?:'[^']*'|\"[^\"]*\"|[^\s'\",}}]+)",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
    (
        re.compile(rf"(?<!\S)(-{{1,2}}{_NAME})([=\s]\s*)(?:'[^']*'|\"[^\"]*\"|\S+)", re.IGNORECASE),
        rf"\1\2{REDACTED}",
    ),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {REDACTED}"),
    (re.compile(r"\b(?:hf_|gh[pousr]_|sk-|AKIA|xox[abp]-)[\w-]{8,}"), REDACTED),
)
"""Headers with keys; user and password of a URL; its query; NAME=VALUE, password=VALUE, a header
and --token VALUE of a command; keys that their prefix shows."""
_PAIR = re.compile(
    rf"(['\"]?{_NAME}['\"]?\s*:\s*)(?!\d{{1,6}}\b)(?:'[^']*'|\"[^\"]*\"|[^\s,}}\]]+)", re.IGNORECASE
)
"""A secret in a map that is written as text."""


def redact(value: Any) -> Any:
    """Return a setting, a map or a list without the secrets that it contains."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {
            key: _hidden(item) if _SECRET_NAME.fullmatch(str(key)) else redact(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    return value


def _hidden(value: Any) -> Any:
    """Redact all text of a secret; numbers stay, as in ``max_tokens``."""
    if isinstance(value, Mapping):
        return {key: _hidden(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hidden(item) for item in value]
    return REDACTED if isinstance(value, str) else value


def redact_text(text: str) -> str:
    """Return a text without the secrets that it contains."""
    if not any(sign in text for sign in "=:-_ "):
        return text
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return _PAIR.sub(rf"\1{REDACTED}", text) if "{" in text else text


def is_redacted(value: Any) -> bool:
    """Return whether a setting lost a secret when it was written."""
    if isinstance(value, Mapping):
        return any(is_redacted(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(is_redacted(item) for item in value)
    return isinstance(value, str) and REDACTED in value
