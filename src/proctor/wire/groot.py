"""GR00T's protocol: a request {endpoint, data, api_token} in MessagePack, and its reply.

Endpoints: ping, reset, get_modality_config, get_action (and kill, which is refused here). N1.5
sends the observation as data, by flat names ("video.cam", "state.arm"), and gets the actions; from
N1.6 on data is {observation: {video: {cam: ...}, state: {...}, language: {...}}, options} and the
reply [actions, info]. Video is uint8 [B, T, H, W, C], state float32 [B, T, D], language a list of
lists. Arrays are {"__ndarray_class__": true, "as_npy": a .npy file} or, newer, msgpack_numpy's
{nd, type, kind, shape, data}.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor.errors import WireError
from proctor.features import ACTION, Array
from proctor.wire.packing import (
    OURS,
    array_of,
    bad_frame,
    flat,
    number_of,
    pack,
    raw_bytes,
    shown,
    text_of,
    unpack,
    unpack_map,
)
from proctor.wire.records import About, Ask, Reply, about_of, episode_tree, with_episode

VIDEO, STATE, LANGUAGE = "video/", "state/", "language/"
CAMERAS = ("video/image", "video/wrist_image")
STATE_NAME, PROMPT_NAME = "state/state", "language/annotation.human.task_description"
PING, RESET, CONFIG, ACT, KILL = "ping", "reset", "get_modality_config", "get_action", "kill"
ABOUT = "proctor_about"
"""An endpoint of ours only: others answer it with an error."""
_OLD_NAMES = {"video.": VIDEO, "state.": STATE, "annotation.": f"{LANGUAGE}annotation."}
_MOST_ROWS = 1024
_NPY = b"\x93NUMPY\x01\x00"
_NPY_HEAD = re.compile(
    r"\{'descr': '([^']{1,8})', 'fortran_order': (True|False), "
    r"'shape': \(((?:[0-9]{1,18},? ?){0,9})\), *\}\s*"
)
_MOST_HEAD = 1000
_AXES = {VIDEO: 5, STATE: 3}


@dataclass(frozen=True)
class Request:
    """What a client wants."""

    endpoint: str
    data: Any = None
    api_token: str | None = None


@dataclass(frozen=True)
class Asked:
    """What get_action is asked with: one question a row, in one of two dialects."""

    rows: Sequence[Ask]
    nested: bool
    """Whether the observation was one map inside another: from N1.6 on."""


def encode_request(request: Request) -> bytes:
    """Return a request as a frame."""
    told: dict[str, Any] = {"endpoint": request.endpoint}
    if request.data is not None:
        told["data"] = _tree_of(request.data)
    if request.api_token is not None:
        told["api_token"] = request.api_token
    return pack(told)


def decode_request(frame: bytes) -> Request:
    """Return the request in a frame.

    Raises:
        WireError: it holds none.
    """
    tree = unpack_map(frame)
    try:
        token = tree.get("api_token")
        return Request(
            text_of(tree.get("endpoint", ACT), "endpoint"),
            _read(tree.get("data")),
            None if token is None else text_of(token, "api_token"),
        )
    except (WireError, RecursionError) as error:
        raise bad_frame(str(error), frame) from None


def observation(ask: Ask) -> dict[str, Any]:
    """Return a question as get_action's data, as from N1.6 on; one row of one moment, or more."""
    told: dict[str, Any] = {"video": {}, "state": {}, "language": {}}
    for key, values in ask.observation.items():
        group, slash, name = key.partition("/")
        seen = values if ask.history else values[None]
        if slash:
            told.setdefault(group, {})[name] = seen[None]
        else:  # as ours call it
            told[key] = seen[None]
    group, _, name = PROMPT_NAME.partition("/")
    told[group][name] = [[ask.prompt]]
    episode = episode_tree(ask)
    options = None if episode is None else {OURS: episode}
    return {"observation": told, "options": options}


def asked_of(data: Any) -> Asked:
    """Return what get_action's data ask, in either dialect.

    Raises:
        WireError: nothing that can be answered.
    """
    if not isinstance(data, dict):
        raise WireError(f"get_action's data are {shown(data)}, not a map")
    nested = isinstance(data.get("observation"), dict)
    seen = flat(data["observation"] if nested else data)
    options = data.get("options") if nested else None
    episode = options.get(OURS) if isinstance(options, dict) else None
    named = {_new_name(key): value for key, value in seen.items()}
    arrays = {key: v for key, v in named.items() if isinstance(v, np.ndarray)}
    prompts = [v for key, v in named.items() if key.startswith(LANGUAGE)]
    if episode is not None:  # one of ours: one row, with its whole history
        if any(values.ndim < 2 or len(values) != 1 for values in arrays.values()):
            raise WireError("an episode's observation is of one row")
        rows = {key: values[0] for key, values in arrays.items()}
        return Asked([with_episode(rows, _prompt(prompts, 0), episode)], nested)
    batch = _batch_of(arrays)
    asks = []
    for row in range(batch):
        now = {key: _row(key, values, row)[-1] for key, values in arrays.items()}
        asks.append(Ask(now, _prompt(prompts, row)))
    return Asked(asks, nested)


def encode_actions(chunks: Sequence[Array], *, nested: bool) -> bytes:
    """Return the chunks of all rows as a reply, in the dialect of the question."""
    length = min(map(len, chunks))
    actions = np.stack([chunk[:length] for chunk in chunks])
    if nested:
        return pack([{ACTION: _tree_of(actions)}, {}])
    return pack({f"{ACTION}.{ACTION}": _tree_of(actions[0] if len(chunks) == 1 else actions)})


def decode_actions(frame: bytes) -> Reply:
    """Return the actions [T, A] of the one row that was asked about, all parts side by side.

    Raises:
        WireError: it holds none.
    """
    try:
        tree = _read(unpack(frame))
    except RecursionError as error:
        raise bad_frame(str(error), frame) from None
    if isinstance(tree, list):
        tree = tree[0] if tree else None
    if isinstance(tree, dict) and "error" in tree:
        return Reply(trouble=str(tree["error"])[:8000])
    parts = list(tree.values()) if isinstance(tree, dict) else []
    if not parts or not all(isinstance(part, np.ndarray) for part in parts):
        raise bad_frame("it holds no map of actions", frame)
    try:
        return Reply(np.concatenate([_chunk_of(part) for part in parts], axis=-1))
    except ValueError:
        shapes = ", ".join(str(part.shape) for part in parts)
        raise bad_frame(f"its actions do not lie side by side: {shapes}", frame) from None


def encode_reply(said: Any) -> bytes:
    """Return any other reply as a frame."""
    return pack(said)


def decode_about(frame: bytes) -> About | None:
    """Return what a server of ours says of itself; None where it is somebody else's.

    Raises:
        WireError: it says nothing at all.
    """
    tree = unpack(frame)
    return about_of(tree.get(OURS)) if isinstance(tree, dict) else None


def _chunk_of(part: Array) -> Array:
    """Return a part of the actions as [T, D]: the batch is of one, a part may be one number."""
    if part.ndim == 3 and len(part) == 1:
        part = part[0]
    return part[:, None] if part.ndim == 1 else part


def _new_name(key: str) -> str:
    for old, new in _OLD_NAMES.items():
        if key.startswith(old):
            return new + key.removeprefix(old)
    return key


def _batch_of(arrays: Mapping[str, Array]) -> int:
    """Return how many rows there are: 1 where arrays have no axis for it."""
    sizes = {
        len(values) if values.ndim == _axes(key) else 1
        for key, values in arrays.items()
        if values.ndim
    } or {1}
    if len(sizes) > 1 or not 1 <= max(sizes) <= _MOST_ROWS:
        raise WireError(f"the observation has {sorted(sizes)} rows")
    return sizes.pop()


def _axes(key: str) -> int:
    return next((axes for group, axes in _AXES.items() if key.startswith(group)), 3)


def _row(key: str, values: Array, row: int) -> Array:
    """Return a row's values [T, ...]."""
    axes = _axes(key)
    if values.ndim == axes:
        values = values[row] if row < len(values) else values[:0]
    if values.ndim != axes - 1 or not len(values):
        raise WireError(f"{key!r} has shape {values.shape}: not rows of moments")
    return values


def _prompt(found: Sequence[Any], row: int) -> str:
    """Return a row's instruction: from a list of lists, a list, or a text for all."""
    said = found[0] if found else ""
    while isinstance(said, list):
        said = said[row] if row < len(said) else (said[0] if said else "")
        row = 0
    return text_of(said, "the instruction")


def _tree_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tree_of(item) for key, item in value.items()}
    if not isinstance(value, np.ndarray):
        return value
    return {"__ndarray_class__": True, "as_npy": _npy(value)}


def _npy(values: Array) -> bytes:
    """Return an array as the bytes of a .npy file."""
    shape = f"({', '.join(map(str, values.shape))}{',' * (values.ndim == 1)})"
    told = f"{{'descr': '{values.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    head = told.ljust(-(-(len(told) + 11) // 64) * 64 - 11) + "\n"  # numpy begins the numbers at 64
    return b"".join([_NPY, struct.pack("<H", len(head)), head.encode(), raw_bytes(values)])


def _from_npy(data: Any) -> Array:
    """Return the array in the bytes of a .npy file; it is as long as what came of it."""
    if not isinstance(data, bytes) or data[:6] != _NPY[:6]:
        raise WireError("an array's .npy is none")
    length = "<H" if data[6:7] == b"\x01" else "<I"
    begins = 8 + struct.calcsize(length)
    if len(data) < begins:
        raise WireError("an array's .npy is cut short")
    ends = begins + struct.unpack(length, data[8:begins])[0]
    head = _NPY_HEAD.fullmatch(data[begins : min(ends, begins + _MOST_HEAD)].decode("latin-1"))
    if head is None:
        raise WireError(f"an array's .npy begins with {shown(data[begins : begins + 100])}")
    shape = tuple(int(side) for side in head[3].replace(",", " ").split())
    if head[2] == "False":
        return array_of(data[ends:], head[1], shape)
    return array_of(data[ends:], head[1], shape[::-1]).T


def _read(tree: Any) -> Any:
    """Return a tree with arrays in it, of either kind."""
    if isinstance(tree, list):
        return [_read(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "__ndarray_class__" in tree:
        return _from_npy(tree.get("as_npy"))
    for nd in ("nd", b"nd"):
        if nd in tree:
            return _from_msgpack_numpy(tree, as_bytes=isinstance(nd, bytes))
    return {key: _read(value) for key, value in tree.items()}


def _from_msgpack_numpy(tree: Mapping[Any, Any], *, as_bytes: bool) -> Array:
    def told(name: str) -> Any:
        return tree.get(name.encode() if as_bytes else name)

    if told("nd") is not True:
        data = told("data")
        if isinstance(data, bytes):
            return array_of(data, told("type"), ())
        return number_of(data, told("type"))
    if told("kind") in (b"O", "O", b"V", "V"):
        raise WireError("an array of objects is not read")
    return array_of(told("data"), told("type"), told("shape"))
