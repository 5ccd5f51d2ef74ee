"""Permissions: flags of the command line give them, files never do.

A file may come from anywhere: a config file, a claim, the record of a run, a checkpoint's
train_config.json. A flag comes from the user. What a file sets is used without a flag of the same
name only if it

- runs no code and no program, and permits none,
- opens no address to other machines, connects to no cluster or viewer, and uploads nothing,
- names no key, and no server that would receive a key of the user,
- writes nothing outside of the current folder and of the output folder that a flag names,
- has lost no secret when it was written.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from proctor.errors import UsageError
from proctor.fingerprint import API_KEY_VARIABLE
from proctor.system.loopback import LOOPBACK
from proctor.system.platform.environment import key_variable
from proctor.system.redaction import REDACTED, is_redacted, redact, redact_text

CODE_NAMES = ("policy.type", "env.type", "env.id", "robot.type", "teleop.type")
"""Flags whose value may be MODULE:NAME; the module is then imported."""
PROGRAM_NAMES = ("env.python", "env.renderer_python", "env.command")
"""Flags whose value is a program that is run."""
TRUST = ("trust_remote_code", "env.trust_remote_code")
"""Both spellings of the flag that permits code from the Hub."""
SWITCHES = (
    *TRUST,
    *("trust", "policy.trust", "host.open", "operation.overwrite"),
    *("wandb.enable", "policy.push_to_hub", "dataset.push_to_hub", "push_to_hub"),
)
"""Flags that permit something when they are on."""
KEYS = (
    *("api_key", "policy.api_key", "api_key_file", "policy.api_key_file"),
    *("host.key_file", "robot.key_file", "tls_cert", "tls_key"),
)
_LEARNER_HOST = "policy.actor_learner_config.learner_host"
ADDRESSES = ("host", "host.address", "live_host", "learner", _LEARNER_HOST, "display_ip")
"""Flags that may open an address to other machines, or send camera images to one."""
SERVERS = ("policy.url", "learner", "robot.remote_ip", _LEARNER_HOST)
"""Flags that name a machine to which a key is sent, if there is one."""
REMOVAL = "backup"
"""A flag that permits removal when it is off."""
UPLOADS = {
    "policy.push_to_hub": ("policy.repo_id", "policy.private"),
    "dataset.push_to_hub": ("dataset.repo_id", "dataset.private"),
    "push_to_hub": ("repo_id", "new_repo_id"),
    "wandb.enable": ("wandb.entity", "wandb.mode", "wandb.run_id"),
}
"""Switches of uploads, and the flags that choose where to: these count where the upload is on."""
PLACES = ("output_dir", "record", "dataset.cache_dir", "env.break_once_in", "new_root")
"""Flags that name a folder to write."""
RECORDING_PLACES = (*PLACES, "dataset.root")
"""As ``PLACES``, for commands that record a dataset; others read it."""
NAMES = (
    *(*CODE_NAMES, *PROGRAM_NAMES, *SWITCHES, *KEYS, *ADDRESSES, *SERVERS, *PLACES, "cluster"),
    *(name for names in UPLOADS.values() for name in names),
)
"""All flags that may be permissions."""
_DEVICES = ("robot", "teleop")
"""Sections whose maps may name code: cameras have types too."""
_NONE = ("none", "null")
_OFF = ("", "false", "0", *_NONE)
_NO_UPLOAD = ("offline", "disabled")
"""Modes of W&B."""


def require_permission(
    settings: Mapping[str, Any],
    flags: Mapping[str, Any],
    origin: str,
    places: Collection[str] = PLACES,
) -> None:
    """Refuse settings of a file that only flags may permit, unless ``flags`` name them too.

    Args:
        settings: the settings of the file, nested or flat.
        flags: the flags of this call by dotted name.
        origin: the file, for the message.
        places: the flags that name a folder to write.
    """
    needed = _needed(settings, flags, places)
    if not needed:
        return
    is_code = any(name in (*CODE_NAMES, *PROGRAM_NAMES) or _device(name) for name in needed)
    switches = [name for name in needed if name in SWITCHES]
    without = "".join(f" --{name}=false" for name in switches)
    text = f"{origin} sets what only flags may permit; if you trust it, add{_words(needed)}"
    text += f" (to do without:{without})" if without else ""
    text += f" ({REDACTED}: a secret that was not recorded)" if is_redacted(text) else ""
    raise UsageError(
        text,
        code="code.not-trusted" if is_code else "file.not-permitted",
    )


def permission_flags(
    settings: Mapping[str, Any], places: Collection[str] = PLACES, but: Collection[str] = ()
) -> str:
    """Return the flags, each after a space, that a resumed run with these settings needs again.

    ``but`` are flags that the command has anyway.
    """
    return _words(_needed(settings, dict.fromkeys(but, ""), places))


def permitting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of flat settings that a resumed run needs as flags again."""
    needed = _needed(settings, {}, ())
    names = {*needed, *(TRUST if TRUST[0] in needed else ())}
    return {name: value for name, value in settings.items() if name in names}


def _words(needed: Mapping[str, str]) -> str:
    return "".join(f" --{name}={shlex.quote(value)}" for name, value in needed.items())


def _needed(
    settings: Mapping[str, Any], flags: Mapping[str, Any], places: Collection[str]
) -> dict[str, str]:
    """Return the flags to add, each with its value as shown to the user."""
    flat = list(_flat(settings))
    found = dict(_code(flat, flags))
    on = dict(flat) | dict(flags)
    if str(on.get("wandb.mode")).lower() in _NO_UPLOAD:
        on.pop("wandb.enable", None)
        flat = [(name, value) for name, value in flat if name != "wandb.enable"]
    details = {n for switch, names in UPLOADS.items() if _is_on(on.get(switch)) for n in names}
    has_key = bool(key_variable(API_KEY_VARIABLE)) or any(on.get(name) for name in KEYS)
    roots = [".", *(str(flags[name]) for name in flags.keys() & {"output_dir"})]
    given = {*flags, *(TRUST if flags.keys() & set(TRUST) else ())}
    for name, value in flat:
        text = str(value).strip()
        if isinstance(value, Mapping) or text.lower() in _NONE or name in {*given, *found}:
            continue
        if (
            name in (*PROGRAM_NAMES, *KEYS)
            or (name in SWITCHES and text.lower() not in _OFF)
            or (name == REMOVAL and text.lower() in _OFF)
            or (name in ADDRESSES and not _is_here(text))
            or (name == "cluster" and text not in ("auto", "local"))
            or (name in SERVERS and has_key)
            or (name in details and text.lower() != "true")
            or (name in places and _leads_out(text, roots))
            or is_redacted(value)
        ):
            flag, shown = _as_flag(name, value, on)
            if flag not in flags:
                found[flag] = shown
    return found


def _as_flag(name: str, value: Any, settings: Mapping[str, Any]) -> tuple[str, str]:
    """Return the flag that permits a setting, and its value as shown."""
    section, dot, inner = name.partition(".")
    if name == _LEARNER_HOST:
        port = settings.get(name.replace("learner_host", "learner_port"), 50051)
        return "learner", f"{redact_text(str(value))}:{port}"
    if name.endswith("api_key"):
        return f"{name}_file", "FILE"
    if name in TRUST:
        return TRUST[0], "true"
    if "." in inner and name not in NAMES:  # inside a map, which is given as a whole
        return f"{section}{dot}{inner.partition('.')[0]}", "{...}"
    return name, str(value).lower() if isinstance(value, bool) else str(redact(value))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by dotted name, also those in maps that are written as text.

    A name may come twice, nested and flat: a file that a flag replaced has both.
    """
    for key, value in settings.items():
        name = f"{prefix}{key}"
        yield name, value
        yield from _flat(_flow(value), f"{name}.")


def _code(flat: Collection[tuple[str, Any]], flags: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the flags that name the code which settings import."""
    for name, value in flat:
        section = name.partition(".")[0]
        if isinstance(value, Mapping) or ":" not in str(value):
            continue
        if name in CODE_NAMES and flags.get(name) != value:
            yield name, str(value)
        elif name not in CODE_NAMES and section in _DEVICES and name.endswith(".type"):
            said = [str(text) for flag, text in flags.items() if flag.startswith(f"{section}.")]
            if not any(str(value) in text for text in said):
                yield f"{section}.cameras", f"{{NAME: {{type: {value}, ...}}}}"


def _device(name: str) -> bool:
    return name.partition(".")[0] in _DEVICES and name.endswith(".cameras")


def _flow(value: Any) -> Mapping[str, Any]:
    """Return a map that may be written as text; empty if it is none, which is refused later."""
    if not isinstance(value, str | Mapping):
        return {}
    from proctor.parsing import parse_flow  # imports yaml, which `--help` must not wait for

    try:
        read = parse_flow(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return read if isinstance(read, Mapping) else {}


def _is_on(value: Any) -> bool:
    return value is not None and str(value).strip().lower() not in _OFF


def _is_here(text: str) -> bool:
    """Return whether an address, or the host of HOST:PORT, is of this machine only."""
    host, _, port = text.rpartition(":")
    return text in LOOPBACK or (port.isdecimal() and host.strip("[]") in LOOPBACK)


def _leads_out(text: str, roots: Collection[str]) -> bool:
    """Return whether a folder to write lies outside of all ``roots``; links are followed."""
    try:
        place, *inside = (Path(name).expanduser().resolve() for name in (text, *roots))
    except (OSError, ValueError, RuntimeError):
        return True  # refused later, when the flag is read
    return not any(place.is_relative_to(root) for root in inside)
