"""Dialects of GR00T servers, found from the reply to get_modality_config."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proctor.protocols.formats.msgpack_arrays import unpack

LANGUAGE = "language/"
PROMPT_NAME = "language/annotation.human.task_description"
OLD_ERROR = b"ERROR"
"""The whole error reply of the first servers."""
_CONFIGS = ("as_json", "as_dict")
_CONFIG_CLASS, _NEWER_CONFIG = "__ModalityConfig_class__", "__ModalityConfig__"


@dataclass(frozen=True)
class Dialect:
    """How requests to a GR00T server are encoded, as its get_modality_config shows."""

    nested: bool = True
    msgpack_numpy: bool = False
    prompt: str = PROMPT_NAME
    wants: tuple[str, ...] = ()
    """Names of its inputs, if the server lists them."""


def decode_dialect(frame: bytes) -> Dialect:
    """Decode the reply to get_modality_config."""
    reply = None if frame == OLD_ERROR else unpack(frame)
    tree: dict[Any, Any] = reply if isinstance(reply, dict) else {}
    configs = {str(group): _config(entry) for group, entry in tree.items()}
    keys = {group: config.get("modality_keys") for group, config in configs.items()}
    names = {
        group: [key for key in found if isinstance(key, str)] if isinstance(found, list) else []
        for group, found in keys.items()
    }
    looked_at = [*names.get("video", ()), *names.get("state", ())]
    spoken = names.get("language", [])
    seen = [
        f"{group}/{key.removeprefix(f'{group}.')}"
        for group in ("video", "state")
        for key in names.get(group, ())
    ]
    return Dialect(
        nested=not any(key.startswith(("video.", "state.")) for key in looked_at),
        msgpack_numpy=any(isinstance(e, dict) and _NEWER_CONFIG in e for e in tree.values()),
        prompt=f"{LANGUAGE}{spoken[0]}" if spoken else PROMPT_NAME,
        wants=tuple(seen),
    )


def _config(entry: Any) -> Mapping[str, Any]:
    """Return the config of one modality: a map, or a map or JSON text inside a map."""
    if not isinstance(entry, dict):
        return {}
    inner = next((entry[name] for name in _CONFIGS if name in entry), entry)
    if isinstance(inner, str):
        try:
            inner = json.loads(inner)
        except (ValueError, RecursionError):
            return {}
    return inner if isinstance(inner, dict) else {}


def modality_config(moments: Sequence[int], keys: Sequence[str]) -> dict[str, Any]:
    """Return the config of one modality, as clients from N1.6 on read it."""
    config = {"delta_indices": list(moments), "modality_keys": list(keys)}
    return {_CONFIG_CLASS: True, "as_json": config}
