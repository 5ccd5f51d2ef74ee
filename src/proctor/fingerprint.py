"""The fingerprint of an episode's definition: all config fields, except those that are marked.

A new field is therefore included by default. Including one too many only refuses a resume; omitting
one could mix two policies in one success rate.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from proctor.system.redaction import redact

PROTOCOL_FORMAT = 2
"""Format of a protocol. Since format 2 it holds the whole policy (files, config, numerics) and the
environment. A protocol without a format number has format 1, as all such records of a run."""
JUDGE = "judge"
"""Section of the judge (--eval.judge): it defines verdicts, but no episode and no success rate."""
ADDED_LATER = ("packages",)
"""Sections that older protocols of the same format may lack."""
PRESENTATION = {"presentation": True}
"""Field metadata: excluded from the fingerprint. For fields that decide how episodes are run or
shown, or which ones are run, but never an episode itself. Also for a path whose content is
hashed, and for a field that is resolved into another one."""
SECRET = {"secret": True}
"""Field metadata: a key or a password, which no record or page of a run contains."""
API_KEY_VARIABLE = "PROCTOR_API_KEY"


def secret_metadata(variable: str) -> dict[str, Any]:
    """Return field metadata for a secret that an environment variable may hold.

    A field ``NAME_file`` beside it may name a file with the secret (``config/flags/secrets``).
    """
    return SECRET | {"variable": variable}


LOCAL_PATH = {"local_path": True}
"""Field metadata: text that may be the path of a local file or folder, or a Hub id. A field of type
``Path`` needs no mark."""
PATH_KEYS = "path_keys"
"""Metadata key of a field that is a map: which of its keys are as ``LOCAL_PATH``."""
NAME_LIST = {"names": True}
"""Field metadata: comma-separated names, which may also be given as a list."""


class ConfigUse(Enum):
    """The use of a config: evaluation or training."""

    EVALUATION = "evaluation"
    TRAINING = "training"


TRAINING_ONLY = {"only": ConfigUse.TRAINING}
"""Field metadata: a flag only of configs for training."""
EVALUATION_ONLY = {"only": ConfigUse.EVALUATION}
"""Field metadata: a flag only of configs for evaluation."""
UNSAVED = {"saved": False}
"""Field metadata: a checkpoint's config.json does not hold the field."""


def is_flag(metadata: Mapping[str, Any], use: ConfigUse) -> bool:
    """Return whether a field with this metadata is a flag of configs for ``use``."""
    return not metadata.get("hidden") and metadata.get("only", use) is use


_MAX_NAMED, _MAX_VALUE_LENGTH = 6, 80
_HASH = re.compile(r"[0-9a-f]{64}")


def defining_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a config dataclass that define an episode, as JSON values."""
    fields: dict[str, Any] = to_json(config, lambda owner, field: not is_presentation(owner, field))
    return fields


def is_presentation(owner: type, field: str) -> bool:
    """Return whether a field is excluded from the fingerprint."""
    return has_mark(owner, field, "presentation")


def has_mark(owner: type, field: str, mark: str) -> bool:
    """Return whether a field's metadata has ``mark``, in its class or in a base class."""
    definitions = (getattr(base, "__dataclass_fields__", {}).get(field) for base in owner.__mro__)
    return any(known is not None and known.metadata.get(mark) for known in definitions)


def to_json(value: Any, keep: Callable[[type, str], bool] = lambda owner, field: True) -> Any:
    """Return a value as JSON types; of dataclasses, the fields that ``keep`` accepts."""
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
    """Return a protocol as it is after being written, without secrets, and read from a file."""
    written: dict[str, Any] = redact(json.loads(json.dumps(protocol)))
    return written


def without_secrets(config: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's settings, by dotted names or in sections, as they may be written.

    Keys are left out; secrets in URLs, commands and maps are redacted.
    """
    redacted: dict[str, Any] = redact(without_keys(config, settings))
    return redacted


def without_keys(config: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's settings, by dotted names or in sections, without the fields of keys."""
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
    """Return every field that differs, by dotted name, with its old and new value.

    Of protocols with different formats only the fields of both are compared. A section of
    ``ADDED_LATER`` that only one of them has is not compared.
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
    """Return one line with the first few fields that differ, and their short values."""
    changes = [
        f"{field_label(name)} was {short_value(was)}, now {short_value(now)}"
        for name, (was, now) in changed.items()
    ]
    more = len(changes) - _MAX_NAMED
    return "; ".join(changes[:_MAX_NAMED]) + (f"; and {more} more" if more > 0 else "")


_LABELS = tuple(
    (re.compile(pattern), template)
    for pattern, template in (
        (r"benchmark\.type", "the benchmark (--env.type)"),
        (r"benchmark\.config\.(.+)", r"--env.\1"),
        (r"benchmark\.robot\.(.+)", r"--robot.\1"),
        (r"benchmark\.calibration\.(.+)", r"the calibration of \1"),
        (r"benchmark\.units\.(.+)", r"the unit of \1"),
        (r"benchmark\.cameras\.(.+)", r"the image size of camera \1"),
        (r"trials\.(.+)", r"--eval.\1"),
        (r"benchmark\.interpreter\.(.+)", r"the simulator's interpreter: \1"),
        (r"benchmark\.horizon", "the most steps of an episode"),
        (r"benchmark\.horizons\.(.+)", r"the most steps of an episode of \1"),
        (r"benchmark\.(?:files|code)\.(.+)", r"the benchmark's file \1"),
        (r"policy\.type", "the policy type (--policy.type)"),
        (r"policy\.config\.(.+)", r"--policy.\1"),
        (r"policy\.(?:files|code)\.(.+)", r"the policy's file \1"),
        (r"policy\.inputs", "the policy's inputs"),
        (r"policy\.replan_steps", "the actions executed before the next inference"),
        (r"policy\.n_obs_steps", "the number of observation steps"),
        (r"eval\.(.+)", r"--eval.\1"),
        (r"versions\.(.+)", r"the version of \1"),
        (r"packages\.(.+)", r"the files of the package \1"),
        (r"environment\.(.+)", r"the variable \1"),
        (r"seed", "the first seed (--seed)"),
    )
)


def field_label(name: str) -> str:
    """Return a readable label for a field of a protocol, with its name."""
    for pattern, template in _LABELS:
        found = pattern.fullmatch(name)
        if found is not None:
            label = found.expand(template)
            return label if label.startswith("--") else f"{label}: {name}"
    return name


def short_value(value: Any) -> str:
    """Return a value as short text; of a hash, the first digits."""
    if value is None:
        return "not set"
    if isinstance(value, str) and _HASH.fullmatch(value):
        return value[:12]
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 3]}..."


def flatten(
    nested: Mapping[str, Any],
    is_section: Callable[[str, Mapping[str, Any]], bool] = lambda name, value: True,
    prefix: str = "",
) -> dict[str, Any]:
    """Turn ``{"a": {"b": 1}}`` into ``{"a.b": 1}``.

    A mapping for which ``is_section(name, mapping)`` is false stays whole, as a value.
    """
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and is_section(name, value):
            flat |= flatten(value, is_section, f"{name}.")
        else:
            flat[name] = value
    return flat
