"""Read safetensors files into private memory.

With a memory-mapped file, a later write would change the policy and a truncation would crash the
process. Tensors read here share no memory with their file.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import torch

from proctor.errors import UsageError
from proctor.policies.lerobot.checkpoint.location import cannot_read
from proctor.policies.lerobot.processors.step import Tensors
from proctor.system.files import MAX_JSON_BYTES, file_stamp, read_regular_file

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_METADATA = "__metadata__"
_MOST_DIMENSIONS = 64  # torch's own limit
_ALIGNMENT = 64
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
_Count = Annotated[int, msgspec.Meta(ge=0)]


class FileHash:
    """The SHA-256 of a file, computed by a thread from the bytes that were read.

    The thread hashes while the next bytes are read and while the network is built. Without SHA
    instructions of the CPU, hashing takes three seconds per GB.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1)

    def add(self, piece: bytes | memoryview) -> None:
        """Hash further bytes of the file, which must not change until ``result``."""
        self._thread.submit(self._digest.update, piece)

    def result(self) -> str:
        """Wait for the thread; return the hash in hex digits."""
        self._thread.shutdown()
        return self._digest.hexdigest()


@dataclass(frozen=True)
class TensorFile:
    """The tensors of a file, and the hash of its bytes."""

    tensors: Tensors
    hash: FileHash


@dataclass(frozen=True)
class _Entry:
    """A tensor, as the header describes it."""

    dtype: str
    shape: tuple[_Count, ...]
    data_offsets: tuple[_Count, _Count]


class FileStates:
    """Detects files of a folder that change while the checkpoint is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            names = [path.name for path in folder.iterdir()]
        except OSError as error:
            raise cannot_read(folder, error) from None
        self._found = {name: file_stamp(folder / name) for name in names}

    def check(self, names: Iterable[str]) -> None:
        """Check that the named files have not changed since the start."""
        for name in names:
            file = self._folder / name
            if file_stamp(file) != self._found.get(name):
                raise UsageError(_changed(file), code="checkpoint.changed")


def hash_file(path: Path) -> FileHash:
    """Return the hash of a small file."""
    found = FileHash()
    try:
        found.add(read_regular_file(path))
    except OSError as error:
        raise cannot_read(path, error) from None
    return found


def read_tensors(path: Path) -> Tensors:
    """Return all tensors of a safetensors file, on the CPU, in private memory."""
    return _read_file(path, lambda piece: None)


def read_tensor_file(path: Path) -> TensorFile:
    """Return all tensors of a safetensors file and the hash of the bytes that were read."""
    found = FileHash()
    return TensorFile(_read_file(path, found.add), found)


def _read_file(path: Path, on_read: Callable[[bytes | memoryview], None]) -> Tensors:
    if not path.is_file():
        raise UsageError(_why_missing(path), code="checkpoint.missing-file")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise cannot_read(path, error) from None
    try:
        before, stamp = os.fstat(fd), file_stamp(fd)
        if not stat.S_ISREG(before.st_mode):
            raise UsageError(f"{path} is not a plain file", code="checkpoint.unreadable")
        try:
            tensors = _read(fd, before.st_size, path, on_read)
        except (ValueError, RecursionError, OSError) as error:
            if file_stamp(fd) != stamp:
                raise UsageError(_changed(path), code="checkpoint.changed") from None
            raise UsageError(f"{path} is damaged: {error}", code="checkpoint.damaged") from None
        if file_stamp(fd) != stamp:
            raise UsageError(_changed(path), code="checkpoint.changed")
        return tensors
    finally:
        os.close(fd)


def _read(fd: int, size: int, path: Path, on_read: Callable[[bytes | memoryview], None]) -> Tensors:
    start = bytearray(min(size, 9))
    _fill(fd, memoryview(start))
    # Safetensors begin with the length of a JSON header, whose bytes may look like anything.
    if start[8:] != b"{" and (start[:2] == b"PK" or start[:1] == b"\x80"):
        raise UsageError(
            f"{path} is a pickle, which can run code: refused (use safetensors)",
            code="checkpoint.pickle",
        )
    length = int.from_bytes(start[:8], "little")
    if size < 9 or not 1 <= length <= min(size - 8, MAX_JSON_BYTES):
        raise ValueError(f"{size} bytes, no readable header")
    header = bytearray(length)
    header[:1] = start[8:]
    _fill(fd, memoryview(header)[1:])
    entries = _entries(bytes(header))
    _check_size(entries, 8 + length, size)
    on_read(bytes(start[:8]) + bytes(header))
    tensors: Tensors = {}
    for key, entry in entries.items():
        raw = _allocated(entry.data_offsets[1] - entry.data_offsets[0], size, path)
        piece = memoryview(raw.numpy())  # type: ignore[arg-type]
        _fill(fd, piece)
        on_read(piece)
        tensors[key] = raw.view(_DTYPES[entry.dtype]).reshape(entry.shape)
    return tensors


def _entries(header: bytes) -> dict[str, _Entry]:
    """Return the tensors that a header describes, in the order of their bytes.

    Raises:
        ValueError: it is not JSON, or not such a header.
    """
    found = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
    found.pop(_METADATA, None)
    entries = {key: msgspec.json.decode(raw, type=_Entry) for key, raw in found.items()}
    return dict(sorted(entries.items(), key=lambda item: item[1].data_offsets))


def _check_size(entries: Mapping[str, _Entry], begin: int, size: int) -> None:
    """Check that the tensors' bytes follow each other and fill the file.

    Raises:
        ValueError: they do not, or a tensor is not as large as its shape says.
    """
    at = 0
    for key, entry in entries.items():
        first, end = entry.data_offsets
        if entry.dtype not in _DTYPES:
            raise ValueError(f"{key} is of type {entry.dtype[:20]!r}, which is not read here")
        if len(entry.shape) > _MOST_DIMENSIONS:
            raise ValueError(f"{key} has {len(entry.shape)} dimensions")
        needed = math.prod(entry.shape) * _DTYPES[entry.dtype].itemsize
        if first != at or end - first != needed:
            raise ValueError(f"{key} is said to be bytes {first} to {end}, expected {needed} bytes")
        at = end
    if begin + at > size:
        cut = next(key for key, e in entries.items() if begin + e.data_offsets[1] > size)
        raise ValueError(f"expected {begin + at} bytes, found {size}; cut off in {cut}")
    if begin + at < size:
        raise ValueError(f"expected {begin + at} bytes, found {size}")


def _allocated(nbytes: int, size: int, path: Path) -> torch.Tensor:
    try:
        # By numpy, which asks for huge pages: reading takes a third less time. Aligned as torch's.
        raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT
        return torch.from_numpy(raw[start : start + nbytes])
    except (RuntimeError, MemoryError):
        raise UsageError(
            f"no memory for {path} ({size / 2**30:.1f} GiB)", code="checkpoint.out-of-memory"
        ) from None


def _fill(fd: int, buffer: memoryview) -> None:
    """Read as many bytes as ``buffer`` takes.

    Raises:
        OSError: the file ends before, or cannot be read.
    """
    done = 0
    while done < len(buffer):
        n = _read_into(fd, buffer[done:])
        if n == 0:
            raise OSError(errno.EIO, "it ends too early")
        done += n


def _read_into(fd: int, buffer: memoryview) -> int:
    return os.readv(fd, [buffer])


def _changed(path: Path) -> str:
    return f"{path} changed while it was read: try again once nothing writes to it"


def _why_missing(path: Path) -> str:
    pickles = sorted(p.name for p in path.parent.glob("*") if p.suffix in PICKLES)
    if pickles:
        return (
            f"{path.parent} has {pickles[0]} but no {path.name}: pickles can run code, so only "
            "safetensors are read"
        )
    if (path.parent / "adapter_config.json").is_file():
        return (
            f"{path.parent} is a PEFT adapter, not a whole policy (it needs use_peft in "
            "config.json)"
        )
    if (path.parent / "pytorch_model_fsdp_0").is_dir():
        return f"{path.parent} is sharded; convert it with lerobot-convert-dcp"
    return f"{path.parent} has no {path.name}"
