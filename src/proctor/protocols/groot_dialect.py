"""How a server of GR00T's is asked: its get_modality_config tells its version and its names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proctor.protocols.msgpack_arrays import unpack

LANGUAGE = "language/"
PROMPT_NAME = "language/annotation.human.task_description"
OLD_ERROR = b"ERROR"
"""All that the first servers said of one."""
_CONFIGS = ("as_json", "as_dict")
_CONFIG_CLASS, _NEWER_CONFIG = "__ModalityConfig_class__", "__ModalityConfig__"


@dataclass(frozen=True)
class Dialect:
    """How somebody else's server is asked, as its get_modality_config tells."""

    nested: bool = True
    msgpack_numpy: bool = False
    prompt: str = PROMPT_NAME
    wants: tuple[str, ...] = ()
    """What it looks at, where it says so."""


def decode_dialect(frame: bytes) -> Dialect:
    """Return how a server wants to be asked, by its answer to get_modality_config.

    Raises:
        WireError: it answers with no MessagePack.
    """
    told = None if frame == OLD_ERROR else unpack(frame)
    tree: dict[Any, Any] = told if isinstance(told, dict) else {}
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
    """Return one modality's config: a map, in a map, or as text in one."""
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
    """Return one modality's config as clients from N1.6 on read it."""
    told = {"delta_indices": list(moments), "modality_keys": list(keys)}
    return {_CONFIG_CLASS: True, "as_json": told}
