"""LeRobot's asynchronous inference (0.6): gRPC calls whose payloads are pickles.

service transport.AsyncInference: Ready(Empty) -> Empty, SendPolicyInstructions(PolicySetup) ->
Empty, SendObservations(stream Observation) -> Empty, GetActions(Empty) -> Actions. Messages are
Observation{1: state, 2: data}, Actions{1: data}, PolicySetup{1: data}. A payload is sent in parts
of 2 MiB, the last marked END. A robot's observation has a number for each motor, images by camera
and the task; ``lerobot_features`` of the setup maps them to features.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from proctor.errors import ProtocolError
from proctor.features import IMAGES, Array
from proctor.protocols.formats.msgpack_arrays import (
    PROCTOR_KEY,
    array_or_none,
    bad_frame,
    require_text,
    short_repr,
)
from proctor.protocols.formats.protobuf import (
    ChunkAssembler,
    decode_fields,
    encode_chunks,
    encode_fields,
)
from proctor.protocols.inference_messages import (
    InferenceRequest,
    check_action_count,
    decode_episode_request,
    encode_episode,
)
from proctor.protocols.pickle.names import Record
from proctor.protocols.pickle.reader import load
from proctor.protocols.pickle.writer import Tensor, dump
from proctor.system.limits import MAX_MESSAGE_BYTES

SERVICE = "transport.AsyncInference"
READY, SETUP, OBSERVE, ACT = "Ready", "SendPolicyInstructions", "SendObservations", "GetActions"
ABOUT_HEADER = "proctor-about-bin"
"""Metadata key in a Proctor server's reply to Ready; LeRobot's clients ignore it."""
_TASK = "task"
_AXES = ("height", "width", "channels")


@dataclass(frozen=True)
class PolicySetup:
    """The policy that a client requests, and the client's features."""

    policy_type: str
    path: str
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    actions_per_chunk: int = 50
    device: str = "cpu"


@dataclass(frozen=True)
class TimedObservation:
    """A robot's observation with its time step and time."""

    timestep: int
    timestamp: float
    raw: Mapping[str, Any]


def encode_setup(setup: PolicySetup) -> bytes:
    """Encode a setup as a PolicySetup message."""
    fields = {
        "policy_type": setup.policy_type,
        "pretrained_name_or_path": setup.path,
        "lerobot_features": {key: dict(entry) for key, entry in setup.features.items()},
        "actions_per_chunk": setup.actions_per_chunk,
        "device": setup.device,
        "rename_map": {},
    }
    return encode_fields({1: dump(Record("RemotePolicyConfig", fields))})


def decode_setup(frame: bytes) -> PolicySetup:
    """Decode a PolicySetup message."""
    fields = _record(_data(frame, 1), "RemotePolicyConfig")
    features, most = fields.get("lerobot_features"), fields.get("actions_per_chunk")
    if not isinstance(features, dict) or type(most) is not int or most < 1:
        raise bad_frame(
            "the setup has no features, or no valid actions_per_chunk",
            frame,
            code="protocol.invalid-setup",
        )
    return PolicySetup(
        require_text(fields.get("policy_type"), "policy_type"),
        require_text(fields.get("pretrained_name_or_path"), "pretrained_name_or_path"),
        {key: entry for key, entry in features.items() if isinstance(entry, dict)},
        most,
        require_text(fields.get("device", "cpu"), "device"),
    )


def lerobot_features(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, dict[str, Any]]:
    """Return a client's features in LeRobot's format, from their shapes."""
    features: dict[str, dict[str, Any]] = {}
    for key, shape in shapes.items():
        if len(shape) == 3:
            features[key] = {"dtype": "image", "shape": tuple(shape), "names": list(_AXES)}
        else:
            names = [f"{key}.{place}" for place in range(shape[0])]
            features[key] = {"dtype": "float32", "shape": tuple(shape), "names": names}
    return features


def raw_observation(request: InferenceRequest) -> dict[str, Any]:
    """Return a request as a robot's observation: numbers by motor name, images by camera."""
    episode = encode_episode(request)
    if episode is not None:
        return {**request.observation, _TASK: request.prompt, PROCTOR_KEY: episode}
    raw: dict[str, Any] = {_TASK: request.prompt}
    for key, values in request.observation.items():
        if values.ndim == 3:
            raw[key.removeprefix(IMAGES)] = values
        else:
            raw |= {f"{key}.{place}": float(number) for place, number in enumerate(values)}
    return raw


def decode_request(observed: TimedObservation, setup: PolicySetup) -> InferenceRequest:
    """Return the request in a robot's observation."""
    raw = dict(observed.raw)
    prompt, episode = require_text(raw.pop(_TASK, ""), _TASK), raw.pop(PROCTOR_KEY, None)
    if episode is not None:
        seen = {key: value for key, value in raw.items() if isinstance(value, np.ndarray)}
        return decode_episode_request(seen, prompt, episode)
    return InferenceRequest(
        {key: _feature(key, raw, entry) for key, entry in setup.features.items()}, prompt
    )


def _feature(key: str, raw: Mapping[str, Any], entry: Mapping[str, Any]) -> Array:
    if key.startswith(IMAGES):
        image = raw.get(key.removeprefix(IMAGES))
        if not isinstance(image, np.ndarray):
            raise ProtocolError(
                f"the observation has no image for {key!r}", code="protocol.missing-input"
            )
        return image
    names = entry.get("names")
    listed = names if isinstance(names, list) else []
    found = [array_or_none(raw.get(name)) for name in listed if isinstance(name, str)]
    numbers = [value for value in found if value is not None and value.size == 1]
    if not numbers or len(numbers) < len(listed):
        raise ProtocolError(
            f"the observation has no numbers {short_repr(names)} for {key!r}",
            code="protocol.missing-input",
        )
    return np.asarray([float(value.reshape(())) for value in numbers])


def encode_observation(request: InferenceRequest, timestep: int) -> Iterator[bytes]:
    """Yield a request as the messages of an Observation stream."""
    fields = {
        "timestamp": time.time(),
        "timestep": timestep,
        "observation": raw_observation(request),
        "must_go": True,
    }
    yield from encode_chunks(dump(Record("TimedObservation", fields)))


class ObservationAssembler:
    """Assembles an observation from its chunks, up to a size."""

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._chunks = ChunkAssembler(max_bytes)

    def add(self, frame: bytes) -> TimedObservation | None:
        """Add a chunk; return the observation if the chunk completes it, else None."""
        payload = self._chunks.add(frame)
        return None if payload is None else _observed(payload)


def _observed(data: bytes) -> TimedObservation:
    fields = _record(data, "TimedObservation")
    step, at, raw = (fields.get(name) for name in ("timestep", "timestamp", "observation"))
    if type(step) is not int or not isinstance(at, float | int) or not isinstance(raw, dict):
        raise bad_frame(
            "the observation has no timestep, timestamp or data",
            data,
            code="protocol.missing-field",
        )
    return TimedObservation(step, float(at), raw)


def encode_actions(actions: Array, observed: TimedObservation, fps: float) -> bytes:
    """Encode a chunk [T, A] as Actions, with times that start at the observation's time."""
    timed = [
        Record(
            "TimedAction",
            {
                "timestamp": observed.timestamp + place / fps,
                "timestep": observed.timestep + place,
                "action": Tensor(action),
            },
        )
        for place, action in enumerate(actions)
    ]
    return encode_fields({1: dump(timed)})


def encode_own_actions(actions: Array) -> bytes:
    """Encode a chunk as Actions for a Proctor client: one array."""
    return encode_fields({1: dump(np.asarray(actions, np.float32))})


def decode_actions(frame: bytes, step: int | None = None) -> Array | None:
    """Decode Actions as an array [T, A]; None if empty, which is how LeRobot reports errors."""
    data = decode_fields(frame).get(1, b"")
    if not isinstance(data, bytes):
        raise bad_frame("the message holds no action data", frame, code="protocol.missing-actions")
    if not data:
        return None
    loaded = load(data)
    if isinstance(loaded, np.ndarray):
        check_action_count(loaded.size)
        return loaded
    rows = loaded if isinstance(loaded, list) else []
    actions = [r.fields.get("action") for r in rows if isinstance(r, Record)]
    sizes = {a.shape if isinstance(a, np.ndarray) and a.ndim == 1 else None for a in actions}
    if not actions or len(actions) < len(rows) or len(sizes) != 1 or None in sizes:
        raise bad_frame("the message holds no actions", data, code="protocol.missing-actions")
    first = rows[0].fields.get("timestep")
    if step is not None and first != step:
        raise ProtocolError(
            f"the server answered observation {short_repr(first)} instead of {step}; check that no "
            "other robot or run uses the server",
            code="protocol.stale-reply",
        )
    arrays = [action for action in actions if isinstance(action, np.ndarray)]
    check_action_count(
        sum(action.size for action in arrays)
    )  # a pickle may refer to one array many times
    return np.stack(arrays)


def _record(data: bytes, kind: str) -> Mapping[str, Any]:
    loaded = load(data)
    if not isinstance(loaded, Record) or loaded.kind != kind:
        raise bad_frame(f"the pickle holds no {kind}", data, code="protocol.wrong-type")
    return loaded.fields


def _data(frame: bytes, number: int) -> bytes:
    data = decode_fields(frame).get(number)
    if not isinstance(data, bytes):
        raise bad_frame("the message has no data", frame, code="protocol.missing-field")
    return data
