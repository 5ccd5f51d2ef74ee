"""What of a config defines an episode: every field, but for those that are marked.

The fingerprint is taken over all of it. A field that nobody thought of is then in it, and costs a
resume that is refused; left out, it would cost two policies mixed in one rate.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

PROTOCOL_FORMAT = 2
"""Of a protocol: since 2 it names the whole policy (files, config, numerics) and environment. One
without a number is of format 1, as all records of a run are that have none."""
ADDED_LATER = ("packages",)
"""Sections of a protocol that records of the same format may lack, since they are older."""
PRESENTATION = {"presentation": True}
"""Field metadata: how episodes are run or shown, or which of them are run; never what one is. Also
for a path, where what lies there is hashed, and for what is resolved into another field."""
SECRET = {"secret": True}
"""Field metadata: a key or a password. It is in no record of a run, nor on its page."""
API_KEY_VARIABLE = "PROCTOR_API_KEY"


def secret_metadata(variable: str) -> dict[str, Any]:
    """Return field metadata: a secret that an environment variable may hold.

    A field ``NAME_file`` beside it names a file that may hold it (``config/secrets``).
    """
    return SECRET | {"variable": variable}


NAME_LIST = {"names": True}
"""Field metadata: a text of names, ``a,b``, which may also be given as a list."""


class ConfigUse(Enum):
    """What a config is for."""

    EVALUATION = "evaluation"
    TRAINING = "training"


def flag_only_for(use: ConfigUse) -> dict[str, Any]:
    """Return field metadata: a flag where the config is for ``use``, and elsewhere none."""
    return {"only": use}


def is_flag(metadata: Mapping[str, Any], use: ConfigUse) -> bool:
    """Whether a field with this metadata is a flag of configs for ``use``."""
    return not metadata.get("hidden") and metadata.get("only", use) is use


_MOST_NAMED, _LONGEST_VALUE = 6, 80
_HASH = re.compile(r"[0-9a-f]{64}")


def defining_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a config dataclass that define an episode, as JSON values."""
    told: dict[str, Any] = to_json(config, lambda owner, field: not is_presentation(owner, field))
    return told


def is_presentation(owner: type, field: str) -> bool:
    """Whether a field is marked so."""
    return has_mark(owner, field, "presentation")


def has_mark(owner: type, field: str, mark: str) -> bool:
    """Whether a field has ``mark``: where it was first defined, or where a class did so again."""
    definitions = (getattr(base, "__dataclass_fields__", {}).get(field) for base in owner.__mro__)
    return any(known is not None and known.metadata.get(mark) for known in definitions)


def to_json(value: Any, keep: Callable[[type, str], bool] = lambda owner, field: True) -> Any:
    """Return a value as JSON has it; of dataclasses the fields that ``keep`` says."""
    if dataclasses.is_dataclass(value):
        owner = value if isinstance(value, type) else type(value)
        names = [field.name for field in dataclasses.fields(owner) if keep(owner, field.name)]
        return {name: to_json(getattr(value, name), keep) for name in names}
    if isinstance(value, dict):
        return {key: to_json(item, keep) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item, keep) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def json_round_trip(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return a protocol as a file would give it back."""
    written: dict[str, Any] = json.loads(json.dumps(protocol))
    return written


def without_secrets(config: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a config, by dotted names or in sections, less what is secret in them."""
    return _without(settings, set(_secrets(config)), "")


def _secrets(config: Any, section: str = "") -> Iterator[str]:
    for field in dataclasses.fields(config):
        if has_mark(type(config), field.name, "secret"):
            yield f"{section}{field.name}"
        elif dataclasses.is_dataclass(value := getattr(config, field.name)):
            yield from _secrets(value, f"{section}{field.name}.")


def _without(settings: Mapping[str, Any], secret: set[str], section: str) -> dict[str, Any]:
    return {
        key: _without(value, secret, f"{section}{key}.") if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if f"{section}{key}" not in secret
    }


def changed_fields(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return every field that differs, by its dotted name, as it was and as it is.

    Of protocols of two formats, the fields that both have: what one does not say is not different.
    Nor is a section of ``ADDED_LATER`` that one of them does not have.
    """
    was, is_now = (flatten(_without_unshared(*both)) for both in ((before, after), (after, before)))
    names = was.keys() | is_now.keys()
    if before.get("format") != after.get("format"):
        names = was.keys() & is_now.keys()
    return {
        key: (was.get(key), is_now.get(key))
        for key in sorted(names)
        if was.get(key) != is_now.get(key)
    }


def unshared_sections(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the sections of ``ADDED_LATER`` that only one of two protocols has."""
    return [name for name in ADDED_LATER if bool(before.get(name)) != bool(after.get(name))]


def _without_unshared(protocol: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    missing = unshared_sections(protocol, other)
    return {name: value for name, value in protocol.items() if name not in missing}


def describe_changes(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Say in one line which fields differ, with short values; the first few of many."""
    said = [
        f"{field_label(name)} was {short_value(was)}, now {short_value(now)}"
        for name, (was, now) in changed.items()
    ]
    more = len(said) - _MOST_NAMED
    return "; ".join(said[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


_LABELS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"benchmark\.type", "the benchmark (--env.type)"),
        (r"benchmark\.config\.(.+)", r"--env.\1"),
        (r"benchmark\.horizon", "the most steps of an episode"),
        (r"benchmark\.horizons\.(.+)", r"the most steps of an episode of \1"),
        (r"benchmark\.(?:files|code)\.(.+)", r"the benchmark's file \1"),
        (r"policy\.type", "the kind of policy (--policy.type)"),
        (r"policy\.config\.(.+)", r"--policy.\1"),
        (r"policy\.(?:files|code)\.(.+)", r"the policy's file \1"),
        (r"policy\.inputs", "what the policy looks at"),
        (r"policy\.replan_steps", "the actions played before the policy looks again"),
        (r"policy\.n_obs_steps", "the observations that the policy looks at"),
        (r"eval\.(.+)", r"--eval.\1"),
        (r"versions\.(.+)", r"the version of \1"),
        (r"packages\.(.+)", r"the files of the package \1"),
        (r"environment\.(.+)", r"the variable \1"),
        (r"seed", "the first seed (--seed)"),
    )
)


def field_label(name: str) -> str:
    """Return what a field of a protocol is in words, with its name for who looks it up."""
    for pattern, words in _LABELS:
        found = pattern.fullmatch(name)
        if found is not None:
            said = found.expand(words)
            return said if said.startswith("--") else f"{said}: {name}"
    return name


def short_value(value: Any) -> str:
    """Return a value as a line can hold it; of a hash, what tells it from others."""
    if value is None:
        return "not said"
    if isinstance(value, str) and _HASH.fullmatch(value):
        return value[:12]
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def flatten(
    nested: Mapping[str, Any],
    is_section: Callable[[str, Mapping[str, Any]], bool] = lambda name, value: True,
    prefix: str = "",
) -> dict[str, Any]:
    """Turn ``{"a": {"b": 1}}`` into ``{"a.b": 1}``.

    A map for which ``is_section(name, map)`` is false is a value itself, and stays whole.
    """
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and is_section(name, value):
            flat |= flatten(value, is_section, f"{name}.")
        else:
            flat[name] = value
    return flat
