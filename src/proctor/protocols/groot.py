"""GR00T's protocol: a MessagePack request {endpoint, data, api_token}, and its reply.

Endpoints: ping, reset, get_modality_config, get_action, and kill, which the server refuses. N1.5
sends the observation as data with flat names ("video.cam", "state.arm") and gets the actions. From
N1.6 on, data is {observation: {video: {cam: ...}, state: {...}, language: {...}}, options} and the
reply is [actions, info]. Video is uint8 [B, T, H, W, C], state float32 [B, T, D], language a list
of lists; N1.5 has no batch axis. Arrays have one of two encodings (``groot_arrays``). A server's
get_modality_config shows which it understands; a reply uses the encoding of its request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from proctor.errors import ProtocolError, strip_control_codes
from proctor.features import ACTION, Array
from proctor.protocols.formats.msgpack_arrays import (
    PROCTOR_KEY,
    bad_frame,
    flatten_keys,
    pack,
    quoting,
    require_text,
    short_repr,
    short_text,
    unpack,
)
from proctor.protocols.formats.msgpack_scan import Scan, ScanLimits, ValueKind
from proctor.protocols.groot_arrays import decode_arrays, encode_arrays, uses_msgpack_numpy
from proctor.protocols.groot_dialect import LANGUAGE, OLD_ERROR, Dialect
from proctor.protocols.inference_messages import (
    InferenceReply,
    InferenceRequest,
    Protocol,
    ServerInfo,
    check_action_count,
    decode_episode_request,
    encode_episode,
    parse_server_info,
)
from proctor.protocols.preauth import PRE_AUTH

VIDEO, STATE = "video/", "state/"
CAMERAS = ("video/image", "video/wrist_image")
STATE_NAME = "state/state"
PING, RESET, CONFIG, ACT, KILL = "ping", "reset", "get_modality_config", "get_action", "kill"
ABOUT = "proctor_about"
"""An endpoint of Proctor servers; other servers answer it with an error."""
_OLD_NAMES = {"video.": VIDEO, "state.": STATE, "annotation.": f"{LANGUAGE}annotation."}
_BEFORE = PRE_AUTH[Protocol.GROOT]
_ENVELOPE = ScanLimits(_BEFORE.max_values, _BEFORE.max_depth)
_MAX_ENTRIES, _MAX_TEXT = 16, 1024
"""Limits: entries of a request, and bytes of a name, of the endpoint and of the token."""
_MOST_ROWS = 1024
_MAX_STATE = 2**18
"""Limit: numbers of one part of the state; parts are converted when they are joined."""
_AXES = {VIDEO: 5, STATE: 3}


@dataclass(frozen=True)
class GrootRequest:
    """A decoded request."""

    endpoint: str
    data: Any = None
    api_token: str | None = None
    msgpack_numpy: bool = False
    """Whether arrays are encoded as msgpack_numpy does, instead of as .npy data."""


@dataclass(frozen=True)
class GrootQuery:
    """The data of get_action: one inference request per batch row, in one of two dialects."""

    rows: Sequence[InferenceRequest]
    nested: bool
    """Whether the observation is a nested map, as from N1.6 on."""


def encode_request(request: GrootRequest) -> bytes:
    """Encode a request as a frame."""
    fields: dict[str, Any] = {"endpoint": request.endpoint}
    if request.data is not None:
        fields["data"] = encode_arrays(request.data, msgpack_numpy=request.msgpack_numpy)
    if request.api_token is not None:
        fields["api_token"] = request.api_token
    return pack(fields)


@dataclass(frozen=True)
class Envelope:
    """A request with undecoded data: everything that is read before the token is checked."""

    endpoint: str
    api_token: str | None
    data: memoryview | None


def read_envelope(frame: bytes) -> Envelope:
    """Read a request by one linear scan, and leave its data undecoded."""
    found: dict[str, str | None] = {}
    data: memoryview | None = None
    scan = Scan(memoryview(frame), _ENVELOPE)
    try:  # nothing but the scan runs before the token is checked
        kind, entries = scan.head()
        if kind is not ValueKind.MAP or entries > _MAX_ENTRIES:
            raise ProtocolError(
                f"the request is not a map of at most {_MAX_ENTRIES} entries",
                code="protocol.wrong-type",
            )
        for _ in range(entries):
            key = scan.text("a name in the request", _MAX_TEXT) or ""
            if key in found:
                raise ProtocolError(f"the request has {key!r} twice", code="protocol.duplicate-key")
            begins = scan.place
            if key in ("endpoint", "api_token"):
                found[key] = scan.text(key, _MAX_TEXT)
                continue
            found[key] = None
            scan.skip()
            if key == "data":
                data = memoryview(frame)[begins : scan.place]
        scan.end()
    except ProtocolError as error:
        raise bad_frame(str(error), frame, code=error.code) from None
    if "endpoint" in found and found["endpoint"] is None:
        raise bad_frame("endpoint is nil, not a text", frame, code="protocol.wrong-type")
    return Envelope(found.get("endpoint") or ACT, found.get("api_token"), data)


def decode_request(envelope: Envelope) -> GrootRequest:
    """Decode the data of a request. The caller must have checked the token."""
    tree = None if envelope.data is None else unpack(envelope.data)
    with quoting(envelope.data or b""):
        data = decode_arrays(tree)
    return GrootRequest(envelope.endpoint, data, envelope.api_token, uses_msgpack_numpy(tree))


def observation_data(request: InferenceRequest, dialect: Dialect) -> dict[str, Any]:
    """Return a request as get_action's data: one row, and one time step or the whole history."""
    if request.episode is None and not dialect.nested:
        return _flat_observation(request, dialect)
    data: dict[str, Any] = {"video": {}, "state": {}, "language": {}}
    for key, values in request.observation.items():
        group, slash, name = key.partition("/")
        rows = values if request.history else _as_sent(values)[None]
        if slash:
            data.setdefault(group, {})[name] = rows[None]
        else:  # Proctor's own names have no group
            data[key] = rows[None]
    group, _, name = dialect.prompt.partition("/")
    data[group][name] = [[request.prompt]]
    episode = encode_episode(request)
    options = None if episode is None else {PROCTOR_KEY: episode}
    return {"observation": data, "options": options}


def _flat_observation(request: InferenceRequest, dialect: Dialect) -> dict[str, Any]:
    """Return a request for N1.5: one time step, without a batch axis."""
    observation = {
        key.replace("/", ".", 1): _as_sent(v)[None] for key, v in request.observation.items()
    }
    return {**observation, dialect.prompt.removeprefix(LANGUAGE): [request.prompt]}


def _as_sent(values: Array) -> Array:
    """Return an array in a dtype of the protocol: images stay uint8, all else is float32."""
    return values if values.dtype == np.uint8 else values.astype(np.float32)


def decode_query(data: Any) -> GrootQuery:
    """Decode get_action's data, in either dialect."""
    if not isinstance(data, dict):
        raise ProtocolError(
            f"get_action's data is {short_repr(data)}, not a map", code="protocol.wrong-type"
        )
    nested = isinstance(data.get("observation"), dict)
    seen = flatten_keys(data["observation"] if nested else data)
    options = data.get("options") if nested else None
    episode = options.get(PROCTOR_KEY) if isinstance(options, dict) else None
    named = {_new_name(key): value for key, value in seen.items()}
    arrays = {key: v for key, v in named.items() if isinstance(v, np.ndarray)}
    prompts = [v for key, v in named.items() if key.startswith(LANGUAGE)]
    if episode is not None:  # a Proctor client sends one row with its whole history
        if any(values.ndim < 2 or len(values) != 1 for values in arrays.values()):
            raise ProtocolError(
                "an observation with an episode must have exactly one row",
                code="protocol.batch-mismatch",
            )
        rows = {key: values[0] for key, values in arrays.items()}
        return GrootQuery([decode_episode_request(rows, _prompt(prompts, 0), episode)], nested)
    if any(key.startswith(STATE) and v.size > _MAX_STATE for key, v in arrays.items()):
        raise ProtocolError(
            f"a part of the state has more than {_MAX_STATE} numbers", code="protocol.too-large"
        )
    batch = _batch_of(arrays)
    asks = []
    for row in range(batch):
        seen = {key: _row(key, values, row) for key, values in arrays.items()}
        asks.append(InferenceRequest(seen, _prompt(prompts, row), history=True))
    return GrootQuery(asks, nested)


def crop_history(request: InferenceRequest, moments: int) -> InferenceRequest:
    """Return a request with the last ``moments`` time steps, as the policy's n_obs_steps.

    A client that sends fewer steps is answered by its last step, without history.
    """
    if all(len(values) >= moments for values in request.observation.values()):
        seen = {key: values[-moments:] for key, values in request.observation.items()}
        return replace(request, observation=seen)
    seen = {key: values[-1] for key, values in request.observation.items()}
    return replace(request, observation=seen, history=False)


def encode_actions(chunks: Sequence[Array], *, nested: bool, msgpack_numpy: bool) -> bytes:
    """Encode the action chunks of all rows as a reply, in the dialect of the request."""
    length = min(map(len, chunks))
    actions = np.stack([chunk[:length] for chunk in chunks])
    if nested:
        return pack([{ACTION: encode_arrays(actions, msgpack_numpy=msgpack_numpy)}, {}])
    actions = actions[0] if len(chunks) == 1 else actions
    return pack({f"{ACTION}.{ACTION}": encode_arrays(actions, msgpack_numpy=msgpack_numpy)})


def decode_actions(frame: bytes) -> InferenceReply:
    """Decode the actions [T, A] of a one-row request, with all action groups concatenated."""
    if frame == OLD_ERROR:
        return InferenceReply(error="the server failed; see its log")
    tree = unpack(frame)
    with quoting(frame):
        tree = decode_arrays(tree)
    if isinstance(tree, list):
        tree = tree[0] if tree else None
    if isinstance(tree, dict) and "error" in tree:
        return InferenceReply(error=short_text(tree["error"], 8000))
    parts = list(tree.values()) if isinstance(tree, dict) else []
    if not parts or not all(isinstance(part, np.ndarray) for part in parts):
        raise bad_frame("the reply is not a map of actions", frame, code="protocol.missing-actions")
    check_action_count(sum(part.size for part in parts))
    try:
        side_by_side = np.concatenate([_chunk_of(part) for part in parts], axis=-1)
        return InferenceReply(side_by_side, parts=tuple(map(str, tree)))
    except ValueError:
        shapes = ", ".join(str(part.shape) for part in parts)
        raise bad_frame(
            f"the action groups cannot be concatenated: {shapes}",
            frame,
            code="protocol.wrong-shape",
        ) from None


def encode_reply(reply: Any) -> bytes:
    """Encode any other reply as a frame."""
    return pack(reply)


def decode_server_info(frame: bytes) -> ServerInfo | None:
    """Decode the reply to ``ABOUT``: a Proctor server's description, None for other servers."""
    tree = None if frame == OLD_ERROR else unpack(frame)
    if not isinstance(tree, dict):
        return None
    error = short_text(tree.get("error", ""), 200)
    if error.startswith("Unauthorized"):
        raise ProtocolError(
            f"the server says: {strip_control_codes(error)} (--policy.api_key)",
            code="protocol.unauthorized",
        )
    return parse_server_info(tree.get(PROCTOR_KEY))


def _chunk_of(part: Array) -> Array:
    """Return an action group as [T, D], from [1, T, D], [T, D] or [T]."""
    if part.ndim == 3 and len(part) == 1:
        part = part[0]
    return part[:, None] if part.ndim == 1 else part


def _new_name(key: str) -> str:
    for old, new in _OLD_NAMES.items():
        if key.startswith(old):
            return new + key.removeprefix(old)
    return key


def _batch_of(arrays: Mapping[str, Array]) -> int:
    """Return the batch size: 1 for arrays without a batch axis."""
    sizes = {
        len(values) if values.ndim == _axes(key) else 1
        for key, values in arrays.items()
        if values.ndim
    } or {1}
    if len(sizes) > 1 or not 1 <= max(sizes) <= _MOST_ROWS:
        raise ProtocolError(
            f"the arrays of the observation have different batch sizes: {sorted(sizes)}",
            code="protocol.batch-mismatch",
        )
    return sizes.pop()


def _axes(key: str) -> int:
    return next((axes for group, axes in _AXES.items() if key.startswith(group)), 3)


def _row(key: str, values: Array, row: int) -> Array:
    """Return the values [T, ...] of one batch row."""
    axes = _axes(key)
    if values.ndim == axes:
        values = values[row] if row < len(values) else values[:0]
    if values.ndim != axes - 1 or not len(values):
        raise ProtocolError(
            f"{key!r} has shape {values.shape}, which is not [batch, time, ...]",
            code="protocol.wrong-shape",
        )
    return values


def _prompt(found: Sequence[Any], row: int) -> str:
    """Return a row's instruction, from a list of lists, a list, or one text for all rows."""
    prompt = found[0] if found else ""
    while isinstance(prompt, list):
        prompt = prompt[row] if row < len(prompt) else (prompt[0] if prompt else "")
        row = 0
    return require_text(prompt, "the instruction")
