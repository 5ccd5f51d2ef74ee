"""Set the GPU code for other devices to zeros in a shared library, so that it compresses well.

The linker's section ``.nv_fatbin`` is a row of containers, each with the same code for several
devices: cubins, which are binary, and PTX, which the driver compiles. NVIDIA does not document the
format, so every size is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

CONTAINER, ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQ")
"""Magic number, version, size of the header, size; kind, version, header and size of an entry."""
CONTAINER_MAGIC = 0xBA55ED50
ENTRY_SM = 28
"""Where an entry has the compute capability of its code, as a 32-bit number."""
PTX, CUBIN = 1, 2


class FatbinError(Exception):
    """The library is not what was expected, as one line."""


class FatbinEntry(NamedTuple):
    """The code for one device."""

    kind: int
    sm: int
    payload: slice


def find_section(image: bytes | bytearray, name: bytes) -> slice:
    """Return where a section of a 64-bit ELF file lies.

    Raises:
        FatbinError: there is none.
    """
    (table,) = struct.unpack_from("<Q", image, 40)
    entry_size, count, names = struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<IIQQQQ", image, table + i * entry_size) for i in range(count)]
    texts = headers[names][4]
    for text, _, _, _, begin, size in headers:
        if image[texts + text : texts + text + len(name) + 1] == name + b"\0":
            return slice(begin, begin + size)
    raise FatbinError(f"warp's library has no section {name.decode()}")


def fatbin_containers(section: bytes | bytearray) -> Iterator[list[FatbinEntry]]:
    """Yield the entries of each container of a section ``.nv_fatbin``.

    Raises:
        FatbinError: sizes do not add up, so the format is another one.
    """
    at = 0
    while at < len(section):
        if at + CONTAINER.size > len(section):
            raise FatbinError(".nv_fatbin: its last container is cut off")
        magic, _, header, size = CONTAINER.unpack_from(section, at)
        entry, end, entries = at + header, at + header + size, []
        if magic != CONTAINER_MAGIC or header < CONTAINER.size or end > len(section):
            raise FatbinError(f".nv_fatbin: no container at byte {at}")
        while entry + ENTRY_SM + 4 <= end:
            kind, _, header, size = ENTRY.unpack_from(section, entry)
            (sm,) = struct.unpack_from("<I", section, entry + ENTRY_SM)
            if header < ENTRY_SM + 4 or kind not in (PTX, CUBIN):
                raise FatbinError(f".nv_fatbin: unknown entry at byte {entry}")
            entries.append(FatbinEntry(kind, sm, slice(entry + header, entry + header + size)))
            entry += header + size
        if entry != end:
            raise FatbinError(f".nv_fatbin: entries end at byte {entry}, their container at {end}")
        yield entries
        at = end


def needed_entries(entries: Sequence[FatbinEntry], arch: int) -> list[FatbinEntry]:
    """Return the entries that a device of ``arch`` loads: cubins, or else PTX.

    A cubin also runs on later devices with the same major number.
    """
    cubins = [e.sm for e in entries if e.kind == CUBIN and e.sm // 10 == arch // 10]
    for kind, candidates in ((CUBIN, cubins), (PTX, [e.sm for e in entries if e.kind == PTX])):
        sm = max((sm for sm in candidates if sm <= arch), default=None)
        if sm is not None:
            return [entry for entry in entries if (entry.kind, entry.sm) == (kind, sm)]
    raise FatbinError(f"--cuda_arch={arch}: warp has no code for it")


def prune_fatbin(section: bytearray, arch: int) -> int:
    """Set the code for other devices to zeros, in place; return the bytes that are left.

    Headers stay, so the loader still finds each entry.
    """
    left = 0
    for entries in fatbin_containers(section):
        needed = needed_entries(entries, arch)
        for entry in entries:
            size = entry.payload.stop - entry.payload.start
            if entry in needed:
                left += size
            else:
                section[entry.payload] = bytes(size)
    return left


def prune_library(path: Path, arch: int) -> None:
    """Prune the GPU code of warp's library."""
    image = bytearray(path.read_bytes())
    where = find_section(image, b".nv_fatbin")
    section = image[where]
    prune_fatbin(section, arch)
    image[where] = section
    path.write_bytes(image)
