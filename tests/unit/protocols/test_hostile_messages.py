"""Hostile messages are refused soon and with little memory."""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import time
import types
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from proctor.errors import ConnectionLost, ProtocolError
from proctor.policies.remote.address import parse_addresses
from proctor.policies.remote.connection import ConnectionSettings
from proctor.policies.remote.websocket import OpenpiConnection, VlaEvalConnection
from proctor.protocols import groot, lerobot, openpi, vla_eval
from proctor.protocols.formats.msgpack_arrays import pack, short_repr, unpack
from proctor.protocols.formats.protobuf import encode_fields
from proctor.protocols.groot_arrays import read_npy
from proctor.protocols.pickle import reader as pickle_reader
from tests.unit.protocols.serving import npy, odd_openpi, served

MIB = 2**20
CPU_S = 2.0
"""Limit in seconds: forty times what any case takes. A machine that is paused counts it, too."""


def refused(read: Callable[[], Any], code: str | None = None) -> None:
    """Check that a message is refused soon, with one line and, where given, with ``code``."""
    began = time.process_time()
    with pytest.raises(ProtocolError) as caught:
        read()
    assert time.process_time() - began < CPU_S
    assert "\n" not in str(caught.value)
    assert caught.value.code == (code or caught.value.code)


def doubled(levels: int) -> bytes:
    """Return an unfinished pickle of nested tuples that hold the same tuple twice."""
    out = b")q\x000"
    for level in range(levels):
        out += b"h" + bytes([level]) + b"h" + bytes([level]) + b"\x86q" + bytes([level + 1]) + b"0"
    return out + b"h" + bytes([levels])


# What hangs a reader.


def npy_of(head: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head


@pytest.mark.parametrize(
    "head",
    [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1" * 60 + b"x",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1, " * 300 + b"), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1" * 60 + b",), }",
        b"{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        b"{'descr': '" + b"<" * 900,
        b"",
    ],
)
def test_a_header_of_an_array_is_read_in_one_pass(head: bytes) -> None:
    refused(lambda: read_npy(npy_of(head)))


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_headers_as_numpy_writes_them_are_read(shape: tuple[int, ...], order: Any) -> None:
    values = np.asarray(np.arange(np.prod(shape)).reshape(shape), np.float32, order=order)
    assert np.array_equal(read_npy(npy(values)["as_npy"]), values)


@pytest.mark.parametrize(
    "pickled",
    [
        b"}" + doubled(64) + b"Ns.",
        b"}(" + doubled(64) + b"Nu.",
        b"(" + doubled(64) + b"Nd.",
        b"(" + doubled(64) + b"\x91.",
        b"\x8f(" + doubled(64) + b"\x90.",
        b"cnumpy.core.multiarray\nscalar\n" + doubled(64) + b"\x85R.",
        b"cnumpy.core.numeric\n_frombuffer\n(C\x00U\x02f4" + doubled(64) + b"tR.",
        b"cnumpy.core.numeric\n_frombuffer\n(C\x00\x8c\x03<f4" + doubled(64) + b"tR.",
        doubled(64) + b".",
        b")" + b"\x85" * 30_000 + b".",
        b"(" * 30_000 + b".",
        b"N0" * 8 * MIB + b"N.",
        b"]\x94" + b"h\x00a" * 30_000 + b".",
    ],
    ids=[
        "key", "keys", "dict", "frozenset", "set", "dtype", "string", "shape", "value", "deep",
        "marks", "long", "endless",
    ],
)  # fmt: skip
def test_a_pickle_that_would_be_read_for_ever_is_refused_at_once(pickled: bytes) -> None:
    refused(lambda: pickle_reader.load(b"\x80\x04" + pickled))


def test_storages_that_hold_storages_are_refused() -> None:
    inner = b"\x80\x02N."
    for _ in range(12):
        call = b"ctorch.storage\n_load_from_bytes\nq\x00B" + struct.pack("<I", len(inner)) + inner
        inner = b"\x80\x02" + call + b"\x85q\x01R" + b"h\x00h\x01R" * 9 + b"."
    refused(lambda: pickle_reader.load(inner), "protocol.refused-pickle")


def test_keys_of_a_pickle_are_texts() -> None:
    assert pickle_reader.load(pickle.dumps({"a": {"b": 1}})) == {"a": {"b": 1}}
    for key in (1, None, 2.0, b"a", (1,), True):
        refused(
            lambda key=key: pickle_reader.load(pickle.dumps({"a": {key: 1}})),
            "protocol.refused-pickle",
        )


@pytest.mark.parametrize(
    "frame",
    [
        b"\x91" * MIB,
        b"\x81\xa1a" * MIB,
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\x00\x00\xff\xff" + b"\xc0" * 2**16,
        pack(dict.fromkeys(range(5000))),
        b"\x81\x91\x01\x01",
        b"\x81\x80\x01",
        pack("é" * MIB),
    ],
    ids=["deep", "deep maps", "claimed", "many", "numbers", "arrays", "maps", "text"],
)
def test_messagepack_is_bounded_before_it_is_decoded(
    frame: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msgspec.msgpack.decode", lambda frame: pytest.fail("it was decoded"))
    refused(lambda: unpack(frame))


def test_what_a_scan_admits_is_what_is_decoded() -> None:
    tree = {
        "a": [None, True, False, 1, -1, -33, 200, 2**15, 2**31, 2**63, -(2**63), 1.5, b"x" * 300],
        "b" * 300: {"é": "x" * 70_000, "n": {b"k": [[], {}]}},
        "c": list(range(3000)),
    }
    assert unpack(pack(tree)) == tree
    stamp = msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x" * 20))
    assert unpack(stamp) == msgspec.msgpack.Ext(5, b"x" * 20)
    for cut in range(1, 60):
        refused(lambda cut=cut: unpack(pack(tree)[:cut]))
    refused(lambda: unpack(pack(tree) + b"\xc0"), "protocol.invalid-msgpack")


def test_a_message_of_many_fields_or_parts_is_refused() -> None:
    refused(lambda: lerobot.decode_setup(b"\x08\x01" * 8 * MIB), "protocol.too-large")
    parts = lerobot.ObservationAssembler()

    def endless() -> None:
        while True:
            parts.add(b"\x08\x02")

    refused(endless, "protocol.too-large")


def test_what_is_shown_of_a_value_takes_no_time() -> None:
    deep: Any = ()
    for _ in range(64):
        deep = (deep, deep)
    began = time.process_time()
    said = [
        short_repr(value)
        for value in (deep, [deep], 10**20_000, "é" * MIB, b"\0" * MIB, {"a": deep})
    ]
    assert time.process_time() - began < CPU_S
    assert max(map(len, said)) < 100


# What fills memory.


def bits(side: int) -> bytes:
    """Return a black PNG of ``side`` pixels, of a few hundred bytes."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("1", (side, side)).save(file, "PNG", optimize=True)
    return file.getvalue()


def pictures(count: int, side: int) -> bytes:
    shown = {"__image__": True, "data": bits(side), "format": "png"}
    images = {str(place): shown for place in range(count)}
    return pack({"type": "observation", "seq": 1, "payload": {"images": images}})


def test_names_are_counted_before_they_are_made() -> None:
    long, many = "A" * MIB, {str(place): 0 for place in range(3000)}
    for tree in ({long: many}, {"A" * 200: {"B" * 200: 1}}, {"a": many}):
        refused(lambda tree=tree: openpi.decode_request(pack(tree)))
        told = {"type": "observation", "seq": 1, "payload": tree}
        refused(lambda told=told: vla_eval.decode_request(vla_eval.decode(pack(told))))
        request = groot.GrootRequest(groot.ACT, {"observation": tree})
        frame = groot.encode_request(request)
        refused(
            lambda f=frame: groot.decode_query(groot.decode_request(groot.read_envelope(f)).data)
        )


def test_pictures_are_counted_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.Image.open", lambda *args, **options: pytest.fail("it was opened"))
    refused(lambda: vla_eval.decode(pictures(250, 2048)), "protocol.too-large")
    refused(lambda: vla_eval.decode(pictures(1, 600), MIB), "protocol.too-large")


def test_only_what_makes_pixels_reaches_the_decoder() -> None:
    from PIL import Image, PngImagePlugin

    values = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    notes = PngImagePlugin.PngInfo()
    notes.add_text("note", "x" * 1000, zip=True)
    for form, options in (
        ("png", {"pnginfo": notes}),
        ("jpeg", {"comment": b"x" * 100, "exif": b"Exif\0\0" + b"x" * 50, "progressive": True}),
    ):
        file = io.BytesIO()
        Image.fromarray(values).save(file, form.upper(), **options)
        wanted = np.asarray(Image.open(io.BytesIO(file.getvalue())).convert("RGB"))
        told = {"__image__": True, "data": file.getvalue(), "format": form, "shape": [8, 8, 3]}
        frame = pack({"type": "observation", "seq": 1, "payload": {"p": told}})
        assert np.array_equal(vla_eval.decode(frame).payload["p"], wanted)


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("png", b"\x89PNG\r\n\x1a\n"),
        ("png", bits(8)[:40]),
        ("png", bits(8)[:33] + (struct.pack(">I", 0) + b"aaaa" + bytes(4)) * 10_000),
        ("jpeg", b"\xff\xd8"),
        ("jpeg", b"\xff\xd8" + b"\xff" * MIB),
        ("jpeg", b"\xff\xd8" + b"\xff\xfe\x00\x02" * 10_000),
        (
            "jpeg",
            b"\xff\xd8\xff\xc0\x00\x11\x08\x00\x08\x00\x08" + bytes(10) + b"\xff\xda\0\0" * 99,
        ),
        ("jpeg", b"\xff\xd8\xff\xc0\x00\x03\x08\xff\xda\x00\x00"),
    ],
)
def test_pictures_that_are_none_are_refused(form: str, data: bytes) -> None:
    told = {"__image__": True, "data": data, "format": form}
    frame = pack({"type": "observation", "seq": 1, "payload": {"p": told}})
    refused(lambda: vla_eval.decode(frame))


class TimedAction:
    """As LeRobot's server has it."""

    def __init__(self, action: Any) -> None:
        self.action = action
        self.timestep = 0


def test_actions_that_are_joined_are_counted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    helpers = types.ModuleType("lerobot.helpers")
    monkeypatch.setattr(TimedAction, "__module__", "lerobot.helpers")
    monkeypatch.setattr(helpers, "TimedAction", TimedAction, raising=False)
    monkeypatch.setitem(sys.modules, "lerobot", types.ModuleType("lerobot"))
    monkeypatch.setitem(sys.modules, "lerobot.helpers", helpers)
    row = np.zeros(2**19, np.float32)

    def frame(count: int) -> bytes:
        return encode_fields({1: pickle.dumps([TimedAction(row) for _ in range(count)])})

    found = lerobot.decode_actions(frame(2))
    assert found is not None
    assert found.shape == (2, 2**19)
    assert len(frame(400)) < 3 * MIB
    refused(lambda: lerobot.decode_actions(frame(400)), "protocol.too-large")
    small = {"a": npy(np.zeros((2**20, 1), np.uint8)), "b": npy(np.zeros((2**20, 1), np.float64))}
    refused(lambda: groot.decode_actions(pack(small)), "protocol.too-large")


SCRIPT = """
import resource, sys
from proctor.errors import ProtocolError
from proctor.protocols import groot, lerobot, openpi, vla_eval
from proctor.protocols.formats.protobuf import encode_fields
import numpy, PIL.Image, PIL.PngImagePlugin, PIL.JpegImagePlugin
read = {
    "openpi": openpi.decode_request,
    "vla-eval": lambda f: vla_eval.decode_request(vla_eval.decode(f, len(f))),
    "groot": lambda f: groot.decode_query(groot.decode_request(groot.read_envelope(f)).data),
    "lerobot": lambda f: lerobot.ObservationAssembler().add(encode_fields({1: 3, 2: f})),
    "actions": lambda f: lerobot.decode_actions(encode_fields({1: f})),
}[sys.argv[1]]
frame = sys.stdin.buffer.read()
def peak():
    lines = open("/proc/self/status")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
before = peak()
try:
    read(frame)
except ProtocolError as error:
    assert "\\n" not in str(error)
print(peak() - before)
"""


def filled(head: bytes, unit: bytes) -> bytes:
    """Return a message of one MiB, filled with one kind of value."""
    return head + unit * ((MIB - len(head)) // len(unit))


def noise(side: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    values = np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)
    Image.fromarray(values).save(file, "PNG")
    told = {"__image__": True, "data": file.getvalue(), "format": "png"}
    return pack({"type": "observation", "seq": 1, "payload": {"p": told}})


def longest_text() -> str:
    return "a" * (2**18 - 100) + "\U0001f600"


ARRAY = {b"__ndarray__": True, b"data": bytes(MIB - 200), b"dtype": "|u1", b"shape": [MIB - 200]}


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ("openpi", pack({"A" * (MIB // 2): {str(place): 0 for place in range(1000)}})),
        ("openpi", pack({"a" * 120: {"b" * 120: {str(place): 0 for place in range(4000)}}})),
        ("openpi", pack({"p": longest_text(), "x": [{}] * 9000})),
        ("openpi", pack({"p": [{"a": {}} for _ in range(3000)]})),
        ("openpi", filled(b"\xdd\x00\x0f\xff\xfb", b"\xc0")),
        ("openpi", pack({"observation/image": ARRAY})),
        ("vla-eval", pictures(250, 2048)),
        ("vla-eval", pictures(1, 590)),
        ("vla-eval", noise(580)),
        ("groot", pack({"data": {"A" * (MIB // 2): {str(place): 0 for place in range(1000)}}})),
        ("groot", pack({"data": [{}] * 9000})),
        ("lerobot", b"\x80\x04(" + b"}\x94" * 19_000 + b"t."),
        ("lerobot", filled(b"\x80\x04(", b"]")),
        ("lerobot", b"\x80\x04(" + b"}\x8c\x01a}s" * 7000 + b"t."),
        ("lerobot", b"\x80\x04\x8d" + struct.pack("<Q", 2**18) + longest_text().encode()[: 2**18]),
        ("lerobot", pickle.dumps(bytes(MIB - 100))),
        ("actions", pickle.dumps([np.zeros(2, np.float32)] * 5000)),
    ],
)
def test_a_message_takes_at_most_eight_times_its_limit(protocol: str, message: bytes) -> None:
    assert len(message) <= MIB
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, protocol], input=message, capture_output=True, check=True
    )
    assert int(ran.stdout) < 7 * MIB, "the message itself is one more"


# Servers that our clients talk to.


def link(url: str) -> OpenpiConnection:
    return OpenpiConnection(parse_addresses(url, None)[0], ConnectionSettings(answer_s=5))


def test_a_hostile_server_hangs_no_client() -> None:
    bombs: list[bytes | str] = [
        pack({"actions": {"A" * MIB: {str(place): 0 for place in range(3000)}}}),
        b"\x91" * MIB,
        "Traceback\n" + "é" * MIB + "\nValueError: no",
    ]
    for bomb in bombs:
        with odd_openpi(lambda say, frame, bomb=bomb: say(bomb)) as url:
            line = link(url)
            refused(lambda line=line: line.infer(openpi.decode_request(pack({"prompt": "go"}))))
            line.close()


def test_a_server_that_sends_fragments_without_end_is_hung_up_on() -> None:
    import socket

    from websockets.frames import Frame, Opcode

    begun = Frame(Opcode.BINARY, b"", fin=False).serialize(mask=False)
    more = Frame(Opcode.CONT, b"", fin=False).serialize(mask=False)
    with odd_openpi(lambda say, frame: None) as url:
        line = link(url)
        ours, theirs = socket.socketpair()
        line._socket._socket.close()
        line._socket._socket = ours
        theirs.sendall(begun + more * 20_000)
        with pytest.raises(ConnectionLost):
            line._socket.receive(5)
        theirs.close()
        line.close()


def test_a_client_that_sends_fragments_without_end_is_hung_up_on() -> None:
    from websockets.frames import Frame, Opcode

    begun = Frame(Opcode.BINARY, b"", fin=False).serialize(mask=True)
    more = Frame(Opcode.CONT, b"", fin=False).serialize(mask=True)
    with served() as (url, _):
        line = link(url)
        line._socket._socket.settimeout(60)
        line._socket._socket.sendall(begun + more * 20_000)
        with pytest.raises(ConnectionLost):
            line._socket.receive(10)
        line.close()
        link(url).close()


def test_a_hello_as_large_as_a_message_is_refused() -> None:
    with served(protocol=["vla-eval"]) as (url, _):
        address = parse_addresses(url, None)[0]
        VlaEvalConnection(address, ConnectionSettings()).close()
        whole = vla_eval.hello_payload()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "proctor.protocols.vla_eval.hello_payload",
                lambda about=None: whole if about is None else {"x": bytes(2**19)},
            )
            refused(lambda: VlaEvalConnection(address, ConnectionSettings()))


def test_a_compressed_note_in_a_picture_is_not_read() -> None:
    note = b"note\0\0" + zlib.compress(bytes(MIB // 2))
    chunk = struct.pack(">I", len(note)) + b"zTXt" + note
    chunk += struct.pack(">I", zlib.crc32(b"zTXt" + note))
    plain = bits(8)
    told = {"__image__": True, "data": plain[:33] + chunk * 300 + plain[33:], "format": "png"}
    frame = pack({"type": "observation", "seq": 1, "payload": {"p": told}})
    assert vla_eval.decode(frame).payload["p"].shape == (8, 8, 3)
