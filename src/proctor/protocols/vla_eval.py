"""vla-eval's protocol (0.8): every frame is a MessagePack map {type, payload, seq, timestamp}.

Client and server exchange hello. Then the client sends episode_start, observations and episode_end.
The server answers every observation by an action with the same seq, or by an error. Arrays are maps
with "__ndarray__"; images are maps with "__image__" and raw, PNG or JPEG data.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from proctor.errors import ProtocolError
from proctor.features import Array
from proctor.protocols.formats.images import FORMATS, decode_image, image_size
from proctor.protocols.formats.msgpack_arrays import (
    PROCTOR_KEY,
    array_or_none,
    bad_frame,
    decode_array,
    flatten_keys,
    pack,
    quoting,
    raw_bytes,
    read_tree,
    require_text,
    short_repr,
    short_text,
    unpack_map,
    write_tree,
)
from proctor.protocols.inference_messages import (
    InferenceReply,
    InferenceRequest,
    ServerInfo,
    decode_episode_request,
    encode_episode,
    parse_server_info,
)
from proctor.system.limits import MAX_MESSAGE_BYTES
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
    """The type of a message."""

    HELLO = "hello"
    OBSERVATION = "observation"
    ACTION = "action"
    EPISODE_START = "episode_start"
    EPISODE_END = "episode_end"
    ERROR = "error"


@dataclass(frozen=True)
class Message:
    """One message."""

    kind: MessageType
    payload: Mapping[Any, Any]
    seq: int = 0


def encode(message: Message) -> bytes:
    """Encode a message as a frame."""
    payload = write_tree(dict(message.payload), _encode_array)
    header = {"type": message.kind.value, "payload": payload, "seq": message.seq}
    return pack({**header, "timestamp": time.time()})


def decode(frame: bytes | str, max_bytes: int = MAX_MESSAGE_BYTES) -> Message:
    """Decode the message in a frame; ``max_bytes`` bounds the decoded size of its images."""
    if isinstance(frame, str):
        raise _bad("the frame is a text, not binary", frame, code="protocol.unexpected-message")
    tree = unpack_map(frame)
    with quoting(frame):
        kind, seq = _kind_of(tree.get("type")), tree.get("seq")
        _check_image_sizes(tree.get("payload"), max_bytes)
        payload = read_tree(tree.get("payload"), _decode_array)
    if type(seq) is not int or not 0 <= seq < 2**63:
        raise bad_frame(
            "the message has no sequence number (seq)", frame, code="protocol.missing-field"
        )
    if not isinstance(payload, dict):
        raise bad_frame("the message has no payload", frame, code="protocol.missing-field")
    return Message(kind, payload, seq)


def _kind_of(named: Any) -> MessageType:
    try:
        return MessageType(short_text(named, 50))
    except ValueError:
        raise ProtocolError(
            f"{short_repr(named)} is not a message type", code="protocol.unexpected-message"
        ) from None


def hello_payload(about: ServerInfo | None = None) -> dict[str, Any]:
    """Return the payload of a client's hello, or with ``about`` of a server's hello."""
    versions = {"harness_version": f"proctor {__version__}", "protocol_version": _VERSION}
    if about is None:
        return {**versions, PROCTOR_KEY: True}
    return {**versions, "model_server": about.policy, "capabilities": {}, PROCTOR_KEY: about.tree()}


def decode_hello(message: Message, frame: bytes | str) -> ServerInfo | None:
    """Return a Proctor server's description from its hello; None for other servers.

    ``frame`` is the encoded message, for the error.
    """
    if message.kind is not MessageType.HELLO:
        raise _bad(
            f"the server answered hello with {message.kind.value}",
            frame,
            code="protocol.unexpected-message",
        )
    return parse_server_info(message.payload.get(PROCTOR_KEY))


def is_proctor_client(message: Message) -> bool:
    """Return whether a hello comes from a Proctor client, which executes whole action chunks."""
    return message.payload.get(PROCTOR_KEY) is True


def observation_payload(request: InferenceRequest) -> dict[str, Any]:
    """Return a request as a payload; names with slashes become nested maps."""
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
    """Return the request in an observation message."""
    fields = flatten_keys(message.payload)
    episode = fields.pop(PROCTOR_KEY, None)
    prompt = require_text(fields.pop(_TASK, ""), _TASK)
    arrays = {key: array_or_none(value) for key, value in fields.items()}
    observation = {key: values for key, values in arrays.items() if values is not None}
    return decode_episode_request(observation, prompt, episode)


def actions_payload(chunk: Array) -> dict[str, Any]:
    """Return an action chunk [T, A], or one action [A], as a payload."""
    return {_ACTIONS: chunk}


def decode_reply(message: Message, frame: bytes | str) -> InferenceReply:
    """Return the actions [T, A] in a message, or the server's error.

    ``frame`` is the encoded message, for the error.
    """
    if message.kind is MessageType.ERROR:
        return InferenceReply(error=short_text(message.payload.get("error", message.payload), 8000))
    found = array_or_none(message.payload.get(_ACTIONS))
    if message.kind is not MessageType.ACTION or found is None:
        raise _bad(
            f"the server answered with {message.kind.value} without {_ACTIONS!r}",
            frame,
            code="protocol.missing-actions",
        )
    return InferenceReply(found[None] if found.ndim == 1 else found)


def episode_payload(spec: EpisodeSpec) -> dict[str, Any]:
    """Return the payload of episode_start."""
    return {"task": {"name": spec.task.instruction or spec.task.name, "suite": spec.task.suite}}


def _bad(what: str, frame: bytes | str, *, code: str) -> ProtocolError:
    return bad_frame(
        what,
        frame[:100].encode("utf-8", "replace") if isinstance(frame, str) else frame,
        code=code,
    )


def _encode_array(values: Array) -> dict[str, Any]:
    header = {_ARRAY: True, "data": raw_bytes(values), "dtype": values.dtype.str}
    return {**header, "shape": values.shape}


def _decode_array(tree: Mapping[Any, Any]) -> Array | None:
    if _IMAGE in tree:
        return _read_image(tree)
    if _ARRAY in tree:
        return decode_array(tree.get("data"), tree.get("dtype"), tree.get("shape"))
    return None


def _read_image(tree: Mapping[Any, Any]) -> Array:
    data, form = _compressed(tree)
    if form is None:
        return decode_array(data, tree.get("dtype"), tree.get("shape"))
    return decode_image(data, form)


def _compressed(tree: Mapping[Any, Any]) -> tuple[Any, str | None]:
    """Return an image's data and its compression format; None: raw pixels."""
    data, form = tree.get("data"), tree.get("format")
    if form == "raw":
        return data, None
    if not isinstance(form, str) or form not in FORMATS or not isinstance(data, bytes):
        raise ProtocolError("an image is not raw, png or jpeg", code="protocol.invalid-image")
    return data, form


def _check_image_sizes(tree: Any, max_bytes: int) -> None:
    """Check the decoded size of all images; only their headers are read."""
    total, waiting = 0, [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, dict) and _IMAGE in node:
            total += _decoded_bytes(node)
            if total > max_bytes:
                raise ProtocolError(
                    f"the images decode to more than {max_bytes} bytes", code="protocol.too-large"
                )
        elif isinstance(node, dict):
            waiting.extend(node.values())


def _decoded_bytes(tree: Mapping[Any, Any]) -> int:
    data, form = _compressed(tree)
    if form is None:
        return 0  # raw pixels are already part of the message
    height, width = image_size(data, form)
    if tree.get("shape") not in (None, [height, width, 3]):
        declared = short_repr(tree["shape"])
        raise ProtocolError(
            f"an image of {height}x{width} declares the shape {declared}",
            code="protocol.wrong-shape",
        )
    return height * width * 3
