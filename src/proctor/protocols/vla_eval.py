"""vla-eval's protocol (0.8): every frame is a map {type, payload, seq, timestamp} in MessagePack.

A client says hello and is answered so; then episode_start, observations that are each answered by
an action with the same seq (or an error), and episode_end. Arrays are maps with "__ndarray__",
pictures maps with "__image__", as bytes, PNG or JPEG.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from proctor.errors import ProtocolError
from proctor.features import Array
from proctor.protocols.inference_messages import (
    InferenceReply,
    InferenceRequest,
    ServerInfo,
    episode_tree,
    server_info_from,
    with_episode,
)
from proctor.protocols.msgpack_arrays import (
    MOST_BYTES,
    OURS,
    array_of,
    bad_frame,
    flat,
    numbers_in,
    pack,
    quoted,
    raw_bytes,
    shown,
    text_of,
    unpack_map,
)
from proctor.protocols.pictures import FORMATS, decode_picture, picture_size
from proctor.types import EpisodeSpec
from proctor.version import __version__

IMAGES = "images/"
STATES = ("states", "state")
CAMERAS = ("images/agentview", "images/wrist")
HEALTH_PATH, CONFIG_PATH = "/health", "/config"
_VERSION = 1
_TASK, _ACTIONS = "task_description", "actions"
_ARRAY, _IMAGE = "__ndarray__", "__image__"


class Kind(Enum):
    """What a frame is."""

    HELLO = "hello"
    OBSERVATION = "observation"
    ACTION = "action"
    EPISODE_START = "episode_start"
    EPISODE_END = "episode_end"
    ERROR = "error"


@dataclass(frozen=True)
class Message:
    """One frame."""

    kind: Kind
    payload: Mapping[Any, Any]
    seq: int = 0


def encode(message: Message) -> bytes:
    """Return a message as a frame."""
    payload = {key: _tree_of(value) for key, value in message.payload.items()}
    told = {"type": message.kind.value, "payload": payload, "seq": message.seq}
    return pack({**told, "timestamp": time.time()})


def decode(frame: bytes | str, most_bytes: int = MOST_BYTES) -> Message:
    """Return the message in a frame; ``most_bytes``: the most that its pictures may decode to.

    Raises:
        WireError: it holds none.
    """
    if isinstance(frame, str):
        raise _bad("a text came, where frames are binary", frame)
    tree = unpack_map(frame)
    try:
        kind, seq = _kind_of(tree.get("type")), tree.get("seq")
        _check_pictures(tree.get("payload"), most_bytes)
        payload = _read(tree.get("payload"))
    except ProtocolError as error:
        raise bad_frame(str(error), frame) from None
    if type(seq) is not int or not 0 <= seq < 2**63:
        raise bad_frame("it has no number (seq)", frame)
    if not isinstance(payload, dict):
        raise bad_frame("it has no payload", frame)
    return Message(kind, payload, seq)


def _kind_of(named: Any) -> Kind:
    try:
        return Kind(quoted(named, 50))
    except ValueError:
        raise ProtocolError(f"{shown(named)} is no type of a message") from None


def hello(about: ServerInfo | None = None) -> dict[str, Any]:
    """Return what a client says first, or with ``about`` a server."""
    told = {"harness_version": f"proctor {__version__}", "protocol_version": _VERSION}
    if about is None:
        return {**told, OURS: True}
    return {**told, "model_server": about.policy, "capabilities": {}, OURS: about.tree()}


def decode_hello(message: Message, frame: bytes | str) -> ServerInfo | None:
    """Return what a server of ours says of itself; None where it is somebody else's.

    Raises:
        WireError: it is no hello; ``frame`` is what came.
    """
    if message.kind is not Kind.HELLO:
        raise _bad(f"the server answers hello with {message.kind.value}", frame)
    return server_info_from(message.payload.get(OURS))


def is_ours(message: Message) -> bool:
    """Whether a hello comes from a client of ours, which plays whole chunks."""
    return message.payload.get(OURS) is True


def observation(ask: InferenceRequest) -> dict[str, Any]:
    """Return a question as a payload; names with slashes become maps inside maps."""
    payload: dict[str, Any] = {}
    for key, values in ask.observation.items():
        group, slash, name = key.partition("/")
        if slash:
            payload.setdefault(group, {})[name] = values
        else:
            payload[key] = values
    payload[_TASK] = ask.prompt
    episode = episode_tree(ask)
    return payload if episode is None else {**payload, OURS: episode}


def decode_request(message: Message) -> InferenceRequest:
    """Return the question in an observation.

    Raises:
        WireError: it holds none.
    """
    told = flat(message.payload)
    episode = told.pop(OURS, None)
    prompt = text_of(told.pop(_TASK, ""), _TASK)
    arrays = {key: numbers_in(value) for key, value in told.items()}
    seen = {key: values for key, values in arrays.items() if values is not None}
    return with_episode(seen, prompt, episode)


def actions(chunk: Array) -> dict[str, Any]:
    """Return actions [T, A], or one [A], as a payload."""
    return {_ACTIONS: chunk}


def decode_reply(message: Message, frame: bytes | str) -> InferenceReply:
    """Return the actions [T, A] in a message, or the trouble that it tells of.

    Raises:
        WireError: it holds neither; ``frame`` is what came.
    """
    if message.kind is Kind.ERROR:
        return InferenceReply(trouble=quoted(message.payload.get("error", message.payload), 8000))
    found = numbers_in(message.payload.get(_ACTIONS))
    if message.kind is not Kind.ACTION or found is None:
        raise _bad(f"the server answers with {message.kind.value} and no {_ACTIONS!r}", frame)
    return InferenceReply(found[None] if found.ndim == 1 else found)


def episode(spec: EpisodeSpec) -> dict[str, Any]:
    """Return what is said when an episode begins."""
    return {"task": {"name": spec.task.instruction or spec.task.name, "suite": spec.task.suite}}


def _bad(what: str, frame: bytes | str) -> ProtocolError:
    return bad_frame(
        what, frame[:100].encode("utf-8", "replace") if isinstance(frame, str) else frame
    )


def _tree_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tree_of(item) for key, item in value.items()}
    if not isinstance(value, np.ndarray):
        return value
    told = {_ARRAY: True, "data": raw_bytes(value), "dtype": value.dtype.str}
    return {**told, "shape": value.shape}


def _read(tree: Any) -> Any:
    """Return a tree with arrays in it."""
    if isinstance(tree, list):
        return [_read(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if _IMAGE in tree:
        return _picture(tree)
    if _ARRAY in tree:
        return array_of(tree.get("data"), tree.get("dtype"), tree.get("shape"))
    return {key: _read(value) for key, value in tree.items()}


def _picture(tree: Mapping[Any, Any]) -> Array:
    data, form = _compressed(tree)
    if form is None:
        return array_of(data, tree.get("dtype"), tree.get("shape"))
    return decode_picture(data, form)


def _compressed(tree: Mapping[Any, Any]) -> tuple[Any, str | None]:
    """Return a picture's data and the format they are compressed in; None: they are pixels."""
    data, form = tree.get("data"), tree.get("format")
    if form == "raw":
        return data, None
    if not isinstance(form, str) or form not in FORMATS or not isinstance(data, bytes):
        raise ProtocolError("a picture is neither raw, png nor jpeg")
    return data, form


def _check_pictures(tree: Any, most_bytes: int) -> None:
    """Refuse pictures that decode to more than a message may hold; only headers are read.

    Raises:
        WireError: they do, or one is larger than it says.
    """
    total, waiting = 0, [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, dict) and _IMAGE in node:
            total += _decoded_bytes(node)
            if total > most_bytes:
                raise ProtocolError(f"its pictures decode to more than {most_bytes} bytes")
        elif isinstance(node, dict):
            waiting.extend(node.values())


def _decoded_bytes(tree: Mapping[Any, Any]) -> int:
    data, form = _compressed(tree)
    if form is None:
        return 0  # they are in the message as they are
    height, width = picture_size(data, form)
    if tree.get("shape") not in (None, [height, width, 3]):
        told = shown(tree["shape"])
        raise ProtocolError(f"a picture of {height}x{width} says that it is {told}")
    return height * width * 3
