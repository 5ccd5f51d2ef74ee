"""Torch's archives (``torch.save``), read and written without torch and without executing pickle.

An archive is a zip file without compression. ``NAME/data.pkl`` is a pickle in which tensors refer
to storages by persistent ids; ``NAME/data/KEY`` holds the bytes of one storage. The reader accepts
only what torch writes, in one pass: declared sizes are checked against the bytes, storages are
views of them, and the pickle is read by ``pickle_reader``.
"""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any

import numpy as np

from proctor.errors import ProtocolError
from proctor.features import Array
from proctor.protocols.formats.msgpack_arrays import bad_frame, decode_array, raw_bytes
from proctor.protocols.pickle.machine import Budget, storage_type
from proctor.protocols.pickle.reader import load
from proctor.protocols.pickle.writer import ArchiveTensor, dump

_NAME = "archive"
_PICKLE, _STORAGES, _BYTE_ORDER = "data.pkl", "data/", "byteorder"
_MAX_ENTRIES = 65_534
_MAX_STEPS, _MAX_TEXT, _MAX_NODES = 1_000_000, 8 * 2**20, 500_000
"""Limits of the pickle. A transition of five tensors takes about 250 opcodes and 20 objects."""
_END = struct.Struct("<4s4H2IH")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_UNSUPPORTED = "protocol.invalid-archive"


def save_archive(tree: Any) -> bytes:
    """Encode a tree of dictionaries, lists, plain values and arrays, which become tensors.

    An array that occurs several times is written once, and its tensors share the storage.
    """
    storages: dict[int, tuple[str, Array]] = {}
    described = _described(tree, storages)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:

        def add(name: str, data: bytes | memoryview) -> None:
            archive.writestr(zipfile.ZipInfo(f"{_NAME}/{name}"), data)

        add(_PICKLE, dump(described, protocol=2))
        add(_BYTE_ORDER, b"little")
        for key, array in storages.values():
            add(f"{_STORAGES}{key}", raw_bytes(array))
        add("version", b"3\n")
    return out.getvalue()


def _described(value: Any, storages: dict[int, tuple[str, Array]]) -> Any:
    """Return ``value`` with an ArchiveTensor for each array, and collect the storages."""
    match value:
        case np.ndarray():
            if id(value) not in storages:
                storages[id(value)] = (str(len(storages)), value)
            return ArchiveTensor(storages[id(value)][0], value.dtype, value.shape)
        case dict():
            return {key: _described(item, storages) for key, item in value.items()}
        case list() | tuple():
            return [_described(item, storages) for item in value]
    return value


def load_archive(data: bytes) -> Any:
    """Decode an archive as a tree with arrays, which are views of ``data``."""
    try:
        entries = _entries(data)
    except struct.error:
        raise _invalid("the archive is truncated", data) from None
    program, order = entries.get(_PICKLE), bytes(entries.get(_BYTE_ORDER, b"little")[:8])
    if program is None or order != b"little":
        raise _invalid("the archive has no pickle, or is not little-endian", data)

    def storage_of(persistent_id: Any) -> Array:
        dtype = storage_type(persistent_id).dtype
        key, count = (persistent_id[2:3] + persistent_id[4:5]) or (None, None)
        stored = entries.get(f"{_STORAGES}{key}") if isinstance(key, str) else None
        if stored is None or type(count) is not int:
            raise ProtocolError("a tensor's storage is missing", code="protocol.invalid-array")
        return decode_array(stored, dtype, (count,))

    return load(bytes(program), Budget(_MAX_STEPS, _MAX_TEXT, _MAX_NODES), storage_of)


def _entries(data: bytes) -> dict[str, memoryview]:
    """Return the files of a zip archive by name, without the name of the archive's folder."""
    if data[:4] != b"PK\x03\x04":
        raise _invalid("the payload is not torch's archive", data)
    *_, count, size, start, comment = _END.unpack(data[-_END.size :])
    ends = len(data) - _END.size
    if data[ends : ends + 4] != b"PK\x05\x06" or comment or start + size > ends:
        raise _invalid("the archive has no directory at its end", data)
    if count > _MAX_ENTRIES:
        raise ProtocolError(f"an archive has more than {_MAX_ENTRIES} files", code=_UNSUPPORTED)
    found: dict[str, memoryview] = {}
    for _ in range(count):
        sign, *fields = _ENTRY.unpack_from(data, start)
        _, _, flags, method, _, _, _, packed, length, name, extra, note, *_, place = fields
        start += _ENTRY.size + name + extra + note
        stored = method == 0 and packed == length and not flags & 1
        if sign != b"PK\x01\x02" or not stored or start > ends:
            raise _invalid("the archive's directory is invalid, or a file is compressed", data)
        path = data[start - note - extra - name : start - note - extra]
        found[path.decode("utf-8", "replace").partition("/")[2]] = _content(data, place, length)
    return found


def _content(data: bytes, place: int, length: int) -> memoryview:
    sign, *fields = _LOCAL.unpack_from(data, place)
    begins = place + _LOCAL.size + fields[-2] + fields[-1]
    if sign != b"PK\x03\x04" or begins + length > len(data):
        raise _invalid("a file of the archive is truncated", data)
    return memoryview(data)[begins : begins + length]


def _invalid(what: str, data: bytes) -> ProtocolError:
    return bad_frame(what, data, code=_UNSUPPORTED)
