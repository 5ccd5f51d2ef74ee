"""Secrets (API keys) from a flag, from a file that a flag names, or from an environment variable.

Every user of the machine can read the command line of a running process, but not files or
variables.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from proctor.errors import UsageError
from proctor.fingerprint import has_mark
from proctor.system.files import read_regular_file
from proctor.system.platform.environment import key_variable

_MOST_BYTES = 4096


def read_secrets(config: Any, section: str = "") -> None:
    """Set every secret of a config from its sources: the flag, ``NAME_file``, its variable.

    The flag that names a file is cleared, so that the config holds the secret once.
    """
    for field in dataclasses.fields(config):
        if has_mark(type(config), field.name, "secret"):
            _read_secret(config, field, section)
        elif dataclasses.is_dataclass(inner := getattr(config, field.name)):
            read_secrets(inner, f"{section}{field.name}.")


def _read_secret(config: Any, field: dataclasses.Field[Any], section: str) -> None:
    flag, in_file = f"--{section}{field.name}", f"{field.name}_file"
    given, file = getattr(config, field.name), getattr(config, in_file, None)
    variable = field.metadata.get("variable", "")
    if given == "":  # of an unset shell variable; a server would accept every client
        raise UsageError(
            f"{flag} is empty; give a key, or leave the flag out", code="secret.invalid"
        )
    found: dict[str, str] = {} if given is None else {flag: given}
    if file is not None:
        found[f"{flag}_file"] = _content(file, f"{flag}_file")
        setattr(config, in_file, None)
    if variable and (key := key_variable(variable)):
        found[f"the variable {variable}"] = key
    if len(set(found.values())) > 1:
        raise UsageError(
            f"{' and '.join(found)} give different keys: keep one of them", code="secret.conflict"
        )
    if found and given is None:
        setattr(config, field.name, next(iter(found.values())))


def _content(path: Path, flag: str) -> str:
    """Return the key in a file. Error messages do not contain it."""
    try:
        text = read_regular_file(path, _MOST_BYTES).decode("ascii").strip()
    except OSError as error:
        raise UsageError(
            f"{flag}={path} cannot be read: {error.strerror}", code="secret.unreadable"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(
            f"{flag}={path} contains characters that keys cannot have", code="secret.invalid"
        ) from None
    if not text or len(text.split()) > 1:
        raise UsageError(
            f"{flag}={path} must contain one key and nothing else", code="secret.invalid"
        )
    return text
