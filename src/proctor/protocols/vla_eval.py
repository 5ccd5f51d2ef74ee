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
from proctor.protocols.images import FORMATS, decode_image, image_size
from proctor.protocols.inference_messages import (
    InferenceReply,
    InferenceRequest,
    ServerInfo,
    decode_episode_request,
    encode_episode,
    parse_server_info,
)
from proctor.protocols.msgpack_arrays import (
    MAX_MESSAGE_BYTES,
    PROCTOR_KEY,
    array_or_none,
    bad_frame,
    decode_array,
    flatten_keys,
    pack,
    raw_bytes,
    require_text,
    short_repr,
    short_text,
    unpack_map,
)
from proctor.types import EpisodeSpec
from proctor.version import __version__

IMAGES = "images/"
STATES = ("states", "state")
CAMERAS = ("images/agentview", "images/wrist")
HEALTH_PATH, CONFIG_PATH = "/health", "/config"
_VERSION = 1
_TASK, _ACTIONS = "task_description", "actions"
_ARRAY, _IMAGE = "__ndarray__", "__image__"


class MessageType(Enum):
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

    kind: MessageType
    payload: Mapping[Any, Any]
    seq: int = 0


def encode(message: Message) -> bytes:
    """Return a message as a frame."""
    payload = {key: _tree_of(value) for key, value in message.payload.items()}
    told = {"type": message.kind.value, "payload": payload, "seq": message.seq}
    return pack({**told, "timestamp": time.time()})


def decode(frame: bytes | str, max_bytes: int = MAX_MESSAGE_BYTES) -> Message:
    """Return the message in a frame; ``max_bytes``: the most that its pictures may decode to.

    Raises:
        WireError: it holds none.
    """
    if isinstance(frame, str):
        raise _bad(
            "a text came, where frames are binary", frame, code="protocol.unexpected-message"
        )
    tree = unpack_map(frame)
    try:
        kind, seq = _kind_of(tree.get("type")), tree.get("seq")
        _check_pictures(tree.get("payload"), max_bytes)
        payload = _read(tree.get("payload"))
    except ProtocolError as error:
        raise bad_frame(str(error), frame, code=error.code) from None
    if type(seq) is not int or not 0 <= seq < 2**63:
        raise bad_frame("it has no number (seq)", frame, code="protocol.missing-field")
    if not isinstance(payload, dict):
        raise bad_frame("it has no payload", frame, code="protocol.missing-field")
    return Message(kind, payload, seq)


def _kind_of(named: Any) -> MessageType:
    try:
        return MessageType(short_text(named, 50))
    except ValueError:
        raise ProtocolError(
            f"{short_repr(named)} is no type of a message", code="protocol.unexpected-message"
        ) from None


def hello_payload(about: ServerInfo | None = None) -> dict[str, Any]:
    """Return what a client says first, or with ``about`` a server."""
    told = {"harness_version": f"proctor {__version__}", "protocol_version": _VERSION}
    if about is None:
        return {**told, PROCTOR_KEY: True}
    return {**told, "model_server": about.policy, "capabilities": {}, PROCTOR_KEY: about.tree()}


def decode_hello(message: Message, frame: bytes | str) -> ServerInfo | None:
    """Return what a server of ours says of itself; None where it is somebody else's.

    Raises:
        WireError: it is no hello; ``frame`` is what came.
    """
    if message.kind is not MessageType.HELLO:
        raise _bad(
            f"the server answers hello with {message.kind.value}",
            frame,
            code="protocol.unexpected-message",
        )
    return parse_server_info(message.payload.get(PROCTOR_KEY))


def is_proctor_client(message: Message) -> bool:
    """Whether a hello comes from a client of ours, which plays whole chunks."""
    return message.payload.get(PROCTOR_KEY) is True


def observation_payload(request: InferenceRequest) -> dict[str, Any]:
    """Return a question as a payload; names with slashes become maps inside maps."""
    payload: dict[str, Any] = {}
    for key, values in request.observation.items():
        group, slash, name = key.partition("/")
        if slash:
            payload.setdefault(group, {})[name] = values
        else:
            payload[key] = values
    payload[_TASK] = request.prompt
    episode = encode_episode(request)
    return payload if episode is None else {**payload, PROCTOR_KEY: episode}


def decode_request(message: Message) -> InferenceRequest:
    """Return the question in an observation.

    Raises:
        WireError: it holds none.
    """
    told = flatten_keys(message.payload)
    episode = told.pop(PROCTOR_KEY, None)
    prompt = require_text(told.pop(_TASK, ""), _TASK)
    arrays = {key: array_or_none(value) for key, value in told.items()}
    seen = {key: values for key, values in arrays.items() if values is not None}
    return decode_episode_request(seen, prompt, episode)


def actions_payload(chunk: Array) -> dict[str, Any]:
    """Return actions [T, A], or one [A], as a payload."""
    return {_ACTIONS: chunk}


def decode_reply(message: Message, frame: bytes | str) -> InferenceReply:
    """Return the actions [T, A] in a message, or the trouble that it tells of.

    Raises:
        WireError: it holds neither; ``frame`` is what came.
    """
    if message.kind is MessageType.ERROR:
        return InferenceReply(error=short_text(message.payload.get("error", message.payload), 8000))
    found = array_or_none(message.payload.get(_ACTIONS))
    if message.kind is not MessageType.ACTION or found is None:
        raise _bad(
            f"the server answers with {message.kind.value} and no {_ACTIONS!r}",
            frame,
            code="protocol.missing-actions",
        )
    return InferenceReply(found[None] if found.ndim == 1 else found)


def episode_payload(spec: EpisodeSpec) -> dict[str, Any]:
    """Return what is said when an episode begins."""
    return {"task": {"name": spec.task.instruction or spec.task.name, "suite": spec.task.suite}}


def _bad(what: str, frame: bytes | str, *, code: str) -> ProtocolError:
    return bad_frame(
        what,
        frame[:100].encode("utf-8", "replace") if isinstance(frame, str) else frame,
        code=code,
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
        return decode_array(tree.get("data"), tree.get("dtype"), tree.get("shape"))
    return {key: _read(value) for key, value in tree.items()}


def _picture(tree: Mapping[Any, Any]) -> Array:
    data, form = _compressed(tree)
    if form is None:
        return decode_array(data, tree.get("dtype"), tree.get("shape"))
    return decode_image(data, form)


def _compressed(tree: Mapping[Any, Any]) -> tuple[Any, str | None]:
    """Return a picture's data and the format they are compressed in; None: they are pixels."""
    data, form = tree.get("data"), tree.get("format")
    if form == "raw":
        return data, None
    if not isinstance(form, str) or form not in FORMATS or not isinstance(data, bytes):
        raise ProtocolError("a picture is neither raw, png nor jpeg", code="protocol.invalid-image")
    return data, form


def _check_pictures(tree: Any, max_bytes: int) -> None:
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
            if total > max_bytes:
                raise ProtocolError(
                    f"its pictures decode to more than {max_bytes} bytes", code="protocol.too-large"
                )
        elif isinstance(node, dict):
            waiting.extend(node.values())


def _decoded_bytes(tree: Mapping[Any, Any]) -> int:
    data, form = _compressed(tree)
    if form is None:
        return 0  # they are in the message as they are
    height, width = image_size(data, form)
    if tree.get("shape") not in (None, [height, width, 3]):
        told = short_repr(tree["shape"])
        raise ProtocolError(
            f"a picture of {height}x{width} says that it is {told}", code="protocol.wrong-shape"
        )
    return height * width * 3
