"""Payloads of the actor-learner protocol: transitions, weights and episode summaries as bytes.

They are written so that LeRobot reads them, and read without executing pickle. A decoded array is a
copy, so a queued transition holds no more memory than its own arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor.errors import ProtocolError
from proctor.features import Array
from proctor.protocols.formats.msgpack_arrays import bad_frame, short_repr
from proctor.protocols.formats.torch_archive import load_archive, save_archive
from proctor.protocols.pickle.reader import load
from proctor.protocols.pickle.writer import dump
from proctor.rl.link.links import ActorWeights, InteractionMessage
from proctor.rl.transitions import Transition
from proctor.system.limits import is_finite_as

_INTERVENTION = "is_intervention"
_REWARD, _STEP = "Episodic reward", "Interaction step"
_EPISODE_INTERVENTION, _RATE = "Episode intervention", "Intervention rate"
_OWN = "proctor"
"""Key of Proctor's additions to the weights; LeRobot's actor ignores it."""
_MAX_SHARING = 2
"""Decoded bytes per payload byte: a state is shared with the step before it."""
_ROOM_BYTES = 2**20
_MAX_NUMBERS = 64
_MAX_NAME = 128
_MAX_INTEGER = 2**53
_START, _MAX_START = "proctor start", 20_000


@dataclass(frozen=True)
class TransitionSpec:
    """The arrays that a learner expects in a transition."""

    observation: Mapping[str, tuple[int, ...]]
    """Shape of each key; images are [C, H, W]."""
    action_size: int

    def check(self, transition: Transition) -> None:
        """Check the keys and shapes of a transition."""
        for observation in (transition.observation, transition.next_observation):
            shapes = {key: array.shape for key, array in observation.items()}
            if shapes != dict(self.observation):
                raise ProtocolError(
                    f"an observation has the features {_listed(shapes)}; this learner expects "
                    f"{_listed(self.observation)}",
                    code="protocol.wrong-features",
                )
        if transition.action.shape != (self.action_size,):
            raise ProtocolError(
                f"an action has the shape {list(transition.action.shape)}; this learner expects "
                f"{[self.action_size]}",
                code="protocol.wrong-features",
            )


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{key[:_MAX_NAME]} {list(shape)}" for key, shape in shapes.items()) or "none"


def encode_transitions(transitions: Sequence[Transition], *, for_lerobot: bool) -> bytes:
    """Encode transitions; LeRobot's learner gets images as float32 in 0..1.

    An observation that is also the next one of the step before is written once.
    """
    rows: dict[int, Array] = {}

    def row(array: Array) -> Array:
        """Return an array with a batch axis; the same object for the same array."""
        if id(array) not in rows:
            values = np.asarray(array)
            if for_lerobot and values.dtype == np.uint8:
                values = values.astype(np.float32) / np.float32(255)
            rows[id(array)] = values[None]
        return rows[id(array)]

    def observation(arrays: Mapping[str, Array]) -> dict[str, Array]:
        return {key: row(array) for key, array in arrays.items()}

    return save_archive(
        [
            {
                "state": observation(one.observation),
                "action": np.asarray(one.action, np.float32),
                "reward": float(one.reward),
                "next_state": observation(one.next_observation),
                "done": bool(one.done),
                "truncated": bool(one.truncated),
                "complementary_info": {
                    name: _info_array(name, value) for name, value in one.complementary_info.items()
                },
            }
            for one in transitions
        ]
    )


def _info_array(name: str, value: float) -> Array:
    """Return a number of the complementary information with LeRobot's dtype and shape."""
    if name == _INTERVENTION:
        return np.asarray(bool(value))
    return np.asarray([value], np.float32)


def decode_transitions(payload: bytes) -> list[Transition]:
    """Decode transitions."""
    tree = load_archive(payload)
    rows = tree if isinstance(tree, list) else []
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise bad_frame("the payload holds no transitions", payload, code="protocol.wrong-type")
    room = [_MAX_SHARING * len(payload) + _ROOM_BYTES]
    return [_transition(row, room) for row in rows]


def _transition(row: Mapping[str, Any], room: list[int]) -> Transition:
    action = row.get("action")
    if not isinstance(action, np.ndarray) or action.ndim not in (1, 2):
        raise ProtocolError("a transition has no action", code="protocol.missing-field")
    info = row.get("complementary_info") or {}
    if not isinstance(info, dict) or len(info) > _MAX_NUMBERS:
        raise ProtocolError(
            "a transition has invalid complementary information", code="protocol.wrong-type"
        )
    numbers = {name: _number_or_none(value) for name, value in info.items()}
    return Transition(
        _observation(row.get("state"), room),
        _copied(action.reshape(-1), np.float32, room),
        _number(row.get("reward"), "the reward"),
        _observation(row.get("next_state"), room),
        done=bool(_number(row.get("done"), "done")),
        truncated=bool(_number(row.get("truncated", False), "truncated")),
        complementary_info={name: n for name, n in numbers.items() if n is not None},
    )


def _observation(value: Any, room: list[int]) -> dict[str, Array]:
    """Return an observation's arrays without their batch axis, which must have one row."""
    arrays = value if isinstance(value, dict) else {}
    if not arrays or len(arrays) > _MAX_NUMBERS:
        raise ProtocolError("a transition has no observation", code="protocol.missing-field")
    found = {}
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.ndim < 1 or array.shape[0] != 1:
            raise ProtocolError(
                f"{short_repr(key)} of an observation is not a tensor with one row",
                code="protocol.wrong-type",
            )
        dtype = np.uint8 if array.dtype == np.uint8 else np.float32
        found[key] = _copied(array[0], dtype, room)
    return found


def _copied(array: Array, dtype: Any, room: list[int]) -> Array:
    room[0] -= array.size * np.dtype(dtype).itemsize
    if room[0] < 0:
        raise ProtocolError(
            "the tensors of a payload are much larger than the payload", code="protocol.too-large"
        )
    with np.errstate(over="ignore"):  # the learner drops what became infinite
        return np.array(array, dtype, order="C")


def _number(value: Any, what: str) -> float:
    number = _number_or_none(value)
    if number is None:
        raise ProtocolError(
            f"{what} of a transition is {short_repr(value)}, not a number",
            code="protocol.wrong-type",
        )
    return number


def _number_or_none(value: Any) -> float | None:
    """Return a number or a tensor of one number as a float; None for anything else."""
    if isinstance(value, np.ndarray) and value.size == 1:
        return float(value.reshape(()))
    if isinstance(value, float):
        return value
    return float(value) if isinstance(value, int) and abs(value) <= _MAX_INTEGER else None


def encode_weights(weights: ActorWeights, *, for_lerobot: bool) -> bytes:
    """Encode weights; Proctor's actors also get the version, and whether they are the last."""
    tree: dict[str, Any] = {name: dict(module) for name, module in weights.modules.items()}
    if not for_lerobot and weights.version is not None:
        tree[_OWN] = {"version": weights.version, "is_last": int(weights.is_last)}
    return save_archive(tree)


def decode_weights(payload: bytes) -> ActorWeights:
    """Decode weights. The arrays are views of ``payload``."""
    tree = load_archive(payload)
    own = tree.pop(_OWN, None) if isinstance(tree, dict) else None
    about = own if isinstance(own, dict) else {}
    version, is_last = about.get("version"), about.get("is_last")
    modules = tree if isinstance(tree, dict) else {}
    arrays: Iterable[Any] = (
        value
        for module in modules.values()
        for value in (module.values() if isinstance(module, dict) else [None])
    )
    if not modules or not all(isinstance(array, np.ndarray) for array in arrays):
        raise bad_frame("the payload holds no weights", payload, code="protocol.wrong-type")
    if not all(is_finite_as(array) for module in modules.values() for array in module.values()):
        raise ProtocolError(
            "the learner sent weights that are not finite", code="protocol.not-finite"
        )
    return ActorWeights(
        modules, version if type(version) is int else None, type(is_last) is int and is_last == 1
    )


def encode_interaction(message: InteractionMessage) -> bytes:
    """Encode an episode's summary as a pickle with LeRobot's names."""
    return dump(
        {
            _REWARD: float(message.episodic_reward),
            _STEP: int(message.interaction_step),
            _EPISODE_INTERVENTION: int(message.episode_intervention),
            _RATE: float(message.intervention_rate),
            **{name: float(value) for name, value in message.extra.items()},
        }
    )


def encode_start(start: str) -> bytes:
    """Encode where an episode starts."""
    return dump({_START: start})


def decode_interaction(payload: bytes) -> InteractionMessage | str:
    """Decode an episode's summary, or its start (``encode_start``)."""
    tree = load(payload)
    if isinstance(tree, dict) and isinstance(start := tree.get(_START), str):
        return start[:_MAX_START]
    fields = tree if isinstance(tree, dict) and len(tree) <= _MAX_NUMBERS else {}
    numbers = {
        name: number
        for name, value in fields.items()
        if len(name) <= _MAX_NAME
        and (number := _number_or_none(value)) is not None
        and math.isfinite(number)
    }
    named = [numbers.pop(name, None) for name in (_REWARD, _STEP, _EPISODE_INTERVENTION, _RATE)]
    reward, step, intervention, rate = named
    if reward is None or step is None or intervention is None or rate is None:
        raise bad_frame("the payload holds no interaction", payload, code="protocol.missing-field")
    return InteractionMessage(reward, int(step), bool(intervention), rate, numbers)
