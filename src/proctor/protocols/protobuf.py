"""Protocol buffers, as far as LeRobot's messages need them: integers and bytes by field."""

from __future__ import annotations

from collections.abc import Mapping

from proctor.protocols.msgpack_arrays import bad_frame

_MAX_FIELDS = 32


def encode_fields(fields: Mapping[int, int | bytes]) -> bytes:
    """Encode integers and bytes, by field number, as a message."""
    out = bytearray()
    for number, value in fields.items():
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            out += _varint(number << 3 | 2) + _varint(len(value)) + value
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def decode_fields(frame: bytes) -> dict[int, int | bytes]:
    """Decode a message's integers and bytes by field number; a repeated field keeps the last."""
    found: dict[int, int | bytes] = {}
    place = 0
    for _ in range(_MAX_FIELDS):
        if place >= len(frame):
            return found
        key, place = _read_varint(frame, place)
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value, place = _read_varint(frame, place)
        elif kind in (1, 2, 5):
            size = 8 if kind == 1 else 4
            if kind == 2:
                size, place = _read_varint(frame, place)
            if size > len(frame) - place:
                raise bad_frame("the message is truncated", frame, code="protocol.invalid-protobuf")
            value, place = frame[place : place + size], place + size
        else:
            raise bad_frame(
                "invalid protocol buffers message", frame, code="protocol.invalid-protobuf"
            )
        found[key >> 3] = value
    if place < len(frame):
        raise bad_frame(
            f"the message has more than {_MAX_FIELDS} fields", frame, code="protocol.too-large"
        )
    return found


def _read_varint(frame: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if place >= len(frame):
            raise bad_frame("the message is truncated", frame, code="protocol.invalid-protobuf")
        byte = frame[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise bad_frame("invalid protocol buffers message", frame, code="protocol.invalid-protobuf")
