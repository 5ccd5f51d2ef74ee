"""Records of a journal: one transition as bytes, without repeating images."""

from __future__ import annotations

import struct
import zlib
from math import prod

import numpy as np

from proctor.features import Array
from proctor.rl.link.links import ReceivedTransition
from proctor.rl.replay.schema import PackedObservation, PackedTransition, TransitionSchema

_HEAD = struct.Struct("<BqH")  # whether the observation's images follow, number, length of the name
_LENGTH = struct.Struct("<I")
_NO_NUMBER = -1
_MAX_KEPT_ACTORS, _MAX_KEPT_BYTES = 64, 2**30
"""Limits of the images that are kept for the next record: of actors, and of bytes when reading."""
_LEVEL = 1
"""The fastest zlib level: rendered images shrink several times, camera images a little."""


class RecordCodec:
    """Encodes or decodes the records of one segment, in order."""

    def __init__(self, schema: TransitionSchema) -> None:
        self._schema = schema
        self._last: dict[str, dict[str, Array]] = {}
        """The next images of each actor's last record."""

    def encode(self, actor: str, number: int | None, packed: PackedTransition) -> bytes:
        """Return the record of a transition."""
        images = self._schema.images
        last = self._last.get(actor)
        is_same = last is not None and all(
            np.array_equal(packed.images[key], last[key]) for key in images
        )
        self._last.pop(actor, None)
        self._last[actor] = packed.next.images
        if len(self._last) > _MAX_KEPT_ACTORS:
            del self._last[next(iter(self._last))]
        name = actor.encode()
        stored = [] if is_same else [packed.images[key] for key in images]
        stored += [packed.next.images[key] for key in images]
        parts = [
            _HEAD.pack(not is_same, _NO_NUMBER if number is None else number, len(name)),
            name,
            packed.row.tobytes(),
            packed.next.numbers.tobytes(),
            *(_compressed(image) for image in stored),
        ]
        return b"".join(parts)

    def decode(self, content: bytes) -> ReceivedTransition:
        """Return the transition of a record.

        Raises:
            ValueError: the record does not fit the schema, or takes too much memory.
        """
        try:
            return self._decode(content)
        except (struct.error, KeyError, zlib.error) as error:
            raise ValueError(str(error)) from error

    def _decode(self, content: bytes) -> ReceivedTransition:
        schema = self._schema
        has_images, number, name_bytes = _HEAD.unpack_from(content)
        at = _HEAD.size + name_bytes
        actor = content[_HEAD.size : at].decode()
        row = np.frombuffer(content, np.float32, schema.width, at)
        at += row.nbytes
        next_numbers = np.frombuffer(content, np.float32, schema.observation_width, at)
        at += next_numbers.nbytes
        if has_images:
            now, at = self._images(content, at)
        else:
            now = self._last[actor]
        after, at = self._images(content, at)
        self._last[actor] = after
        if len(self._last) * schema.image_bytes > _MAX_KEPT_BYTES:
            raise ValueError("the images of too many actors")
        packed = PackedTransition(row, now, PackedObservation(next_numbers, after))
        known = None if number == _NO_NUMBER else number
        return ReceivedTransition(actor, known, schema.unpack(packed))

    def _images(self, content: bytes, at: int) -> tuple[dict[str, Array], int]:
        found: dict[str, Array] = {}
        for key, shape in self._schema.images.items():
            (length,) = _LENGTH.unpack_from(content, at)
            start, at = at + _LENGTH.size, at + _LENGTH.size + length
            dtype = np.dtype(self._schema.image_dtype)
            stored, size = content[start:at], prod(shape) * dtype.itemsize
            pixels = stored if length == size else _decompressed(stored, size)
            found[key] = np.frombuffer(pixels, dtype).reshape(shape)
        return found, at


def _decompressed(stored: bytes, size: int) -> bytes:
    """Return ``size`` decompressed bytes; never allocate more."""
    stream = zlib.decompressobj()
    plain = stream.decompress(stored, max(1, size))
    if len(plain) != size or not stream.eof:
        raise ValueError("an image has another size than the schema's")
    return plain


def _compressed(image: Array) -> bytes:
    """Return an image's length and bytes, compressed if that makes them fewer."""
    plain = image.tobytes()
    small = zlib.compress(plain, _LEVEL)
    stored = small if len(small) < len(plain) else plain
    return _LENGTH.pack(len(stored)) + stored
