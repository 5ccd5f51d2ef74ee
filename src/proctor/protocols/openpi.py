"""openpi's protocol over WebSockets: MessagePack maps, with arrays as maps with bytes keys.

When a client connects, the server sends its metadata. Then requests and replies alternate:
{observation/image: uint8 [H, W, 3], observation/state: float [D], prompt: text} and
{actions: float [T, A], server_timing: {...}}. A text frame instead is the server's traceback.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from proctor.features import Array
from proctor.protocols.formats.msgpack_arrays import (
    PROCTOR_KEY,
    array_or_none,
    bad_frame,
    decode_array,
    decode_scalar,
    flatten_keys,
    pack,
    quoting,
    raw_bytes,
    read_tree,
    require_text,
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

CAMERAS = ("observation/image", "observation/wrist_image")
STATE = "observation/state"
PROMPT = "prompt"
HEALTH_PATH = "/healthz"
_ACTIONS, _TIMING = "actions", "server_timing"
_ARRAY, _NUMBER = b"__ndarray__", b"__npgeneric__"


def encode_request(request: InferenceRequest) -> bytes:
    """Encode a request as a frame."""
    tree: dict[str, Any] = write_tree(dict(request.observation), _encode_array)
    tree[PROMPT] = request.prompt
    episode = encode_episode(request)
    return pack(tree if episode is None else {**tree, PROCTOR_KEY: episode})


def decode_request(frame: bytes) -> InferenceRequest:
    """Decode the request in a frame."""
    fields = flatten_keys(_map_of(frame))
    prompt = fields.pop(PROMPT, "")
    episode = fields.pop(PROCTOR_KEY, None)
    arrays = {key: array_or_none(value) for key, value in fields.items()}
    observation = {key: values for key, values in arrays.items() if values is not None}
    return decode_episode_request(observation, require_text(prompt, PROMPT), episode)


def encode_reply(actions: Array, timing: Mapping[str, float]) -> bytes:
    """Encode actions as a frame; ``timing`` is in milliseconds."""
    return pack({_ACTIONS: _encode_array(actions), _TIMING: dict(timing)})


def decode_reply(frame: bytes | str) -> InferenceReply:
    """Decode the actions in a frame; a text frame is the server's traceback."""
    if isinstance(frame, str):
        return InferenceReply(error=frame)
    actions = _map_of(frame).get(_ACTIONS)
    if not isinstance(actions, np.ndarray):
        raise bad_frame(
            f"the reply has no array {_ACTIONS!r}", frame, code="protocol.missing-actions"
        )
    return InferenceReply(actions)


def encode_metadata(about: ServerInfo) -> bytes:
    """Encode the metadata that the server sends first."""
    metadata = {"policy": about.policy, "action_horizon": about.n_action_steps}
    return pack({**metadata, PROCTOR_KEY: about.tree()})


def decode_metadata(frame: bytes | str) -> ServerInfo | None:
    """Decode the first frame; return a Proctor server's description, None for other servers."""
    if isinstance(frame, str):
        raise bad_frame(
            "the server's first frame is a text, not a map",
            frame[:100].encode("utf-8", "replace"),
            code="protocol.unexpected-message",
        )
    return parse_server_info(_map_of(frame).get(PROCTOR_KEY))


def _map_of(frame: bytes) -> dict[Any, Any]:
    tree = unpack_map(frame)
    with quoting(frame):
        found = read_tree(tree, _decode_array)
    if not isinstance(found, dict):
        raise bad_frame("the message is an array, not a map", frame, code="protocol.wrong-type")
    return found


def _encode_array(values: Array) -> dict[bytes, Any]:
    return {
        _ARRAY: True,
        b"data": raw_bytes(values),
        b"dtype": values.dtype.str,
        b"shape": values.shape,
    }


def _decode_array(tree: Mapping[Any, Any]) -> Array | None:
    if _ARRAY in tree:
        return decode_array(tree.get(b"data"), tree.get(b"dtype"), tree.get(b"shape"))
    if _NUMBER in tree:
        return decode_scalar(tree.get(b"data"), tree.get(b"dtype"))
    return None
