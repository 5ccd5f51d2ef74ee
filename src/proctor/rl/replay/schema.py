"""The layout of a buffer's rows: which numbers and images a transition has, and where they lie.

All numbers of a transition are one float32 row, so that one gather reads them::

    observation numbers | action | reward | done | truncated | complementary info

Images are rows of their own tables, one per key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod

import numpy as np

from proctor.errors import ProtocolError
from proctor.features import IMAGE, Array
from proctor.rl.transitions import Transition
from proctor.system.limits import decode_json

Shape = tuple[int, ...]
_MAX_NUMBERS = 2**26
"""Of one array of a transition; an image of 4096x4096 pixels has 50 million."""


@dataclass(frozen=True)
class PackedObservation:
    """An observation as the tables store it."""

    numbers: Array  # float32 [S]
    images: dict[str, Array]

    def equals(self, other: PackedObservation) -> bool:
        """Whether both hold the same bits."""
        return self.numbers.tobytes() == other.numbers.tobytes() and all(
            np.array_equal(image, other.images[key]) for key, image in self.images.items()
        )


@dataclass(frozen=True)
class PackedTransition:
    """A transition as the tables store it."""

    row: Array  # float32 [W], begins with the numbers of the observation
    images: dict[str, Array]
    next: PackedObservation


@dataclass(frozen=True)
class TransitionSchema:
    """Keys and shapes of transitions. The first transition of a buffer fixes them."""

    numbers: dict[str, Shape]
    """Observation keys that are not images."""
    images: dict[str, Shape]
    """Image keys with their shapes (channels, height, width)."""
    action: Shape
    info: tuple[str, ...]
    """Keys of the complementary info. Other keys are dropped, missing ones read 0."""
    image_dtype: str = "uint8"
    """uint8, or float32 for images whose values are not camera pixels."""

    @classmethod
    def of(
        cls, transition: Transition, keys: Sequence[str] | None, image_dtype: str
    ) -> TransitionSchema:
        """Return the schema of a transition, with the observation ``keys`` (None: all)."""
        observation = transition.observation
        names = list(observation) if keys is None else list(keys)
        for key in names:
            if key not in observation:
                raise ProtocolError(
                    f"a transition has no {key} (it has {', '.join(observation)})",
                    code="rl.transition-mismatch",
                )
        shapes = {key: tuple(np.shape(observation[key])) for key in names}
        return cls(
            {key: shape for key, shape in shapes.items() if not is_image(key)},
            {key: shape for key, shape in shapes.items() if is_image(key)},
            tuple(np.shape(transition.action)),
            tuple(transition.complementary_info),
            image_dtype,
        )

    @property
    def keys(self) -> list[str]:
        """All observation keys."""
        return [*self.numbers, *self.images]

    @property
    def observation_width(self) -> int:
        """Numbers of an observation."""
        return sum(prod(shape) for shape in self.numbers.values())

    @property
    def width(self) -> int:
        """Numbers of a transition."""
        return self.observation_width + prod(self.action) + 3 + len(self.info)

    @property
    def image_bytes(self) -> int:
        """Bytes of the images of one observation."""
        each = np.dtype(self.image_dtype).itemsize
        return sum(prod(shape) * each for shape in self.images.values())

    def pack(self, transition: Transition) -> PackedTransition:
        """Return the row and images of a transition."""
        now = self._pack_observation(transition.observation)
        after = self._pack_observation(transition.next_observation)
        action = _checked("action", transition.action, self.action)
        info = transition.complementary_info
        flags = [transition.reward, float(transition.done), float(transition.truncated)]
        rest = np.array([*flags, *(info.get(key, 0.0) for key in self.info)], np.float32)
        row = np.concatenate([now.numbers, action.astype(np.float32).ravel(), rest])
        return PackedTransition(row, now.images, after)

    def unpack(self, packed: PackedTransition) -> Transition:
        """Return the transition of a row; images have the stored dtype."""
        start = self.observation_width
        stop = start + prod(self.action)
        action, rest = packed.row[start:stop].reshape(self.action), packed.row[stop:]
        now = PackedObservation(packed.row[:start], packed.images)
        return Transition(
            self._unpack_observation(now),
            action,
            float(rest[0]),
            self._unpack_observation(packed.next),
            bool(rest[1]),
            bool(rest[2]),
            {key: float(rest[3 + i]) for i, key in enumerate(self.info)},
        )

    def to_json(self) -> str:
        """Return the schema as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TransitionSchema:
        """Read ``to_json``'s text.

        Raises:
            ProtocolError, KeyError, TypeError, ValueError: it is no schema of a transition.
        """
        given = decode_json(text)
        if given["image_dtype"] not in ("uint8", "float32"):
            raise ValueError("the images have another type")
        return cls(
            {key: _shape_of(shape) for key, shape in given["numbers"].items()},
            {key: _shape_of(shape) for key, shape in given["images"].items()},
            _shape_of(given["action"]),
            tuple(map(str, given["info"])),
            given["image_dtype"],
        )

    def _pack_observation(self, observation: Mapping[str, Array]) -> PackedObservation:
        numbers = [_taken(observation, key, shape) for key, shape in self.numbers.items()]
        flat = [value.astype(np.float32).ravel() for value in numbers]
        images = {
            key: _stored_image(_taken(observation, key, shape), self.image_dtype)
            for key, shape in self.images.items()
        }
        return PackedObservation(np.concatenate(flat) if flat else np.zeros(0, np.float32), images)

    def _unpack_observation(self, packed: PackedObservation) -> dict[str, Array]:
        found: dict[str, Array] = {}
        start = 0
        for key, shape in self.numbers.items():
            stop = start + prod(shape)
            found[key] = packed.numbers[start:stop].reshape(shape)
            start = stop
        return found | packed.images


def is_image(key: str) -> bool:
    """Whether an observation key is an image: LeRobot's rule for this family."""
    return key.startswith(IMAGE)


def _shape_of(given: Sequence[int]) -> Shape:
    shape = tuple(given)
    if not all(type(side) is int and side >= 0 for side in shape) or prod(shape) > _MAX_NUMBERS:
        raise ValueError(f"no array has the shape {list(shape)[:8]}")
    return shape


def _stored_image(image: Array, dtype: str) -> Array:
    """Return an image in the stored dtype; uint8 stands for values k/255."""
    if image.dtype == np.uint8:
        if dtype == "uint8":
            return image
        return image.astype(np.float32) / np.float32(255)
    if dtype == "float32":
        return image.astype(np.float32)
    scaled: Array = np.rint(image.astype(np.float32) * np.float32(255)).clip(0, 255)
    return scaled.astype(np.uint8)


def _taken(observation: Mapping[str, Array], key: str, shape: Shape) -> Array:
    if key not in observation:
        raise ProtocolError(f"a transition has no {key}", code="rl.transition-mismatch")
    return _checked(key, observation[key], shape)


def _checked(key: str, value: Array, shape: Shape) -> Array:
    found = np.asarray(value)
    if found.shape != shape:
        raise ProtocolError(
            f"{key} of a transition has shape {list(found.shape)}, expected {list(shape)}",
            code="rl.transition-mismatch",
        )
    return found
