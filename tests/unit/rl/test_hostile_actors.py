"""Hostile bytes at the learner's port: one line, nothing executed, bounded memory and time."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from proctor.errors import ProctorError, ProtocolError
from proctor.protocols import actor_learner as protocol
from proctor.protocols.formats.protobuf import encode_chunks, encode_fields
from proctor.protocols.formats.torch_archive import load_archive, save_archive
from proctor.rl.learner.service import LearnerService, ServiceLimits
from proctor.rl.link import payloads
from proctor.rl.link.links import ActorWeights, InteractionMessage, LearnerEndpoint
from proctor.rl.link.payloads import TransitionSpec
from proctor.system.limits import ServerLimits
from tests.refusals import refuses
from tests.unit.rl.builders import transition

SPEC = TransitionSpec({"observation.state": (3,)}, 2)
GOOD = payloads.encode_transitions([transition(1), transition(2)], for_lerobot=False)
WEIGHTS = payloads.encode_weights(
    ActorWeights({"policy": {"w": np.ones((2, 3))}}, 3), for_lerobot=False
)
SUMMARY = payloads.encode_interaction(InteractionMessage(1.0, 2, True, 0.5, {"Success": 1.0}))
METHODS = (protocol.READY, protocol.TRANSITIONS, protocol.INTERACTIONS, protocol.PARAMETERS)
MIB = 2**20
CPU_S = 5.0
OK = grpc.StatusCode.OK


def archive(program: bytes, files: dict[str, bytes] | None = None, packing: int = 0) -> bytes:
    """An archive with any pickle."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", packing) as made:
        for name, data in {"data.pkl": program, **(files or {})}.items():
            made.writestr(f"archive/{name}", data)
    return out.getvalue()


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/proctor-was-executed",)


def tensor(key: str, count: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """The pickle of one tensor with any numbers."""
    head = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n"
    key_bytes = b"X" + struct.pack("<I", len(key)) + key.encode()
    storage = key_bytes + b"X\x03\0\0\0cpuJ" + struct.pack("<i", count) + b"tQK\0"
    shape_bytes, stride_bytes = pickle.dumps(shape, 2)[2:-1], pickle.dumps(stride, 2)[2:-1]
    return head + storage + shape_bytes + stride_bytes + b"\x89)tR."


def rows_of_one_tensor(count: int) -> bytes:
    """Many transitions that share one large tensor."""
    shared = np.zeros((1, 2**16), np.float32)
    row = {
        "state": {"observation.state": shared},
        "action": np.zeros(2, np.float32),
        "reward": 0.0,
        "next_state": {"observation.state": shared},
        "done": False,
        "truncated": False,
        "complementary_info": {},
    }
    return save_archive([row] * count)


HOSTILE = {
    "empty": b"",
    "zeros": bytes(100),
    "no zip": b"PK\x03\x04" + bytes(100),
    "a bomb": archive(pickle.dumps([Bomb()], 2)),
    "a bomb alone": pickle.dumps(Bomb()),
    "eval": archive(pickle.dumps(eval, 2)),
    "no pickle": archive(b""),
    "compressed": archive(pickle.dumps([], 2) * 10, packing=zipfile.ZIP_DEFLATED),
    "missing storage": archive(tensor("0", 4, (4,), (1,))),
    "short storage": archive(tensor("0", 4, (4,), (1,)), {"data/0": bytes(4)}),
    "negative storage": archive(tensor("0", -4, (4,), (1,)), {"data/0": bytes(16)}),
    "outside": archive(tensor("0", 4, (4,), (9,)), {"data/0": bytes(16)}),
    "expanded": archive(tensor("0", 4, (2**30, 2**30), (0, 0)), {"data/0": bytes(16)}),
    "negative stride": archive(tensor("0", 4, (4,), (-1,)), {"data/0": bytes(16)}),
    "many axes": archive(tensor("0", 4, (1,) * 50, (1,) * 50), {"data/0": bytes(16)}),
    "big endian": archive(pickle.dumps([], 2), {"byteorder": b"big"}),
    "much sharing": rows_of_one_tensor(1000),
    "other rows": save_archive([1, 2]),
    "no rows": save_archive([]),
    "no tensors": save_archive([{"state": {"observation.state": 1.0}, "action": 2}]),
    "endless": archive(b"\x80\x02" + b"]" * 1_100_000),
    "endless text": archive(b"\x80\x02" + (b"X\0\0\1\0" + b"a" * 2**16) * 200),
    "deep": archive(b"\x80\x02" + b"]" * 3000 + b"a" * 2999 + b"."),
    "recursive": archive(b"\x80\x02]q\0h\0a."),
    "many marks": archive(b"\x80\x02" + b"(" * 100_000),
    "weights": WEIGHTS,
}


@pytest.mark.parametrize("name", list(HOSTILE))
@pytest.mark.parametrize("read", [payloads.decode_transitions, payloads.decode_interaction])
def test_a_hostile_payload_is_refused_in_one_line(
    name: str, read: Callable[[bytes], object]
) -> None:
    began = time.process_time()
    with pytest.raises(ProtocolError) as caught:
        read(HOSTILE[name])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000
    assert time.process_time() - began < CPU_S


@pytest.mark.parametrize("name", ["a bomb", "zeros", "outside", "other rows", "recursive"])
def test_hostile_weights_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        payloads.decode_weights(HOSTILE[name])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    weights = ActorWeights({"policy": {"w": np.array([0.0, value])}}, 3)
    with refuses(ProtocolError, "protocol.not-finite"):
        payloads.decode_weights(payloads.encode_weights(weights, for_lerobot=False))


def test_a_directory_of_many_files_is_refused_before_it_is_read() -> None:
    claimed = GOOD[:-12] + struct.pack("<H", 65_535) + GOOD[-10:]
    entries = GOOD[:4] + b"PK\x01\x02" + bytes(42)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 65_535, 65_535, 46, 4, 0)
    for payload in (claimed, entries + end):
        with pytest.raises(ProtocolError):
            load_archive(payload)


@pytest.mark.parametrize(
    ("good", "read"),
    [
        (GOOD, payloads.decode_transitions),
        (WEIGHTS, payloads.decode_weights),
        (SUMMARY, payloads.decode_interaction),
    ],
    ids=["transitions", "weights", "interaction"],
)
def test_manipulated_payloads_are_read_or_refused(
    good: bytes, read: Callable[[bytes], object]
) -> None:
    chance = random.Random(0)
    refused: list[str] = []
    for _ in range(400):
        payload = bytearray(good)
        for _ in range(chance.choice((1, 2, 8))):
            place = chance.randrange(len(payload))
            match chance.randrange(3):
                case 0:
                    payload[place] = chance.randrange(256)
                case 1:
                    del payload[place : place + chance.randrange(1, 40)]
                case 2:
                    payload[place:place] = chance.randbytes(chance.randrange(1, 9))
        try:
            read(bytes(payload))
        except ProctorError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert not any("\n" in line for line in refused)


MEMORY = """
import sys
from proctor.errors import ProtocolError
from proctor.rl.link import payloads
payload = sys.stdin.buffer.read()
def peak():
    lines = open("/proc/self/status")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
before = peak()
try:
    payloads.decode_transitions(payload)
except ProtocolError:
    pass
print(peak() - before)
"""


@pytest.mark.parametrize("name", ["much sharing", "endless"])
def test_a_hostile_payload_fills_no_memory(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], input=HOSTILE[name], capture_output=True, check=True
    )
    assert int(done.stdout) < 12 * len(HOSTILE[name]) + 100 * MIB


# The port.


@contextlib.contextmanager
def served(
    key: str | None = None, limits: ServiceLimits | None = None, **server_limits: Any
) -> Iterator[tuple[LearnerEndpoint, int]]:
    endpoint = LearnerEndpoint()
    server = ServerLimits(api_key=key, **{"max_clients": 8, **server_limits})
    service = LearnerService(endpoint, SPEC, server, 0, limits)
    try:
        yield endpoint, service.port
    finally:
        endpoint.close()
        service.close()


@contextlib.contextmanager
def channel_to(port: int) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(
        f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        yield channel


def status(
    channel: grpc.Channel, method: str, frames: Iterator[bytes] | list[bytes], **options: Any
) -> Any:
    """Call a method; return the status's code."""
    call = channel.stream_stream(protocol.call_path(method))(iter(frames), timeout=60, **options)
    try:
        list(call)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_hostile_payloads_end_their_call_only(capfd: pytest.CaptureFixture[str]) -> None:
    with served() as (endpoint, port), channel_to(port) as channel:
        for name in ("a bomb", "zeros", "outside", "other rows", "weights"):
            for method in (protocol.TRANSITIONS, protocol.INTERACTIONS):
                frames = list(encode_chunks(HOSTILE[name]))
                assert status(channel, method, frames) is grpc.StatusCode.INVALID_ARGUMENT
        for frame in (b"\xff" * 9, encode_fields({1: 7, 2: b"x"}), encode_fields({2: b"x"})):
            code = status(channel, protocol.TRANSITIONS, [frame])
            assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert endpoint.take() == []
        good = list(encode_chunks(GOOD))
        assert status(channel, protocol.TRANSITIONS, good) is grpc.StatusCode.OK
        assert len(endpoint.take()) == 2
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 13
    assert all(line.startswith("actor ") for line in said)
    assert not os.path.exists("/tmp/proctor-was-executed")  # noqa: PTH110


def test_unknown_methods_and_metadata_leave_the_port_open() -> None:
    with served() as (_, port), channel_to(port) as channel:
        assert status(channel, "Other", [b""]) is grpc.StatusCode.UNIMPLEMENTED
        for metadata in (
            (("proctor-first", "1"),),
            (("proctor-actor", "a"), ("proctor-first", "x")),
            (("proctor-actor", "a"), ("proctor-first", "9" * 40)),
            (("proctor-actor", "a" * 100),),
        ):
            code = status(
                channel, protocol.TRANSITIONS, list(encode_chunks(GOOD)), metadata=metadata
            )
            assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert status(channel, protocol.READY, [b""]) is grpc.StatusCode.OK


def test_a_page_of_another_site_is_refused() -> None:
    with served() as (_, port), channel_to(port) as channel:
        metadata = (("origin", "https://example.com"),)
        code = status(channel, protocol.READY, [b""], metadata=metadata)
        assert code is grpc.StatusCode.PERMISSION_DENIED


def test_without_the_key_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "proctor.rl.learner.service.ChunkAssembler.add", lambda *args: pytest.fail("it was read")
    )
    monkeypatch.setattr(
        "proctor.rl.learner.service._actor_of", lambda context: pytest.fail("it was read")
    )
    with served(key="right") as (endpoint, port), channel_to(port) as channel:
        endpoint.publish(ActorWeights({"policy": {"w": np.ones(1)}}))
        for metadata in (None, (("authorization", "Api-Key wrong"),), (("authorization", ""),)):
            for method in METHODS:
                code = status(channel, method, list(encode_chunks(GOOD)), metadata=metadata)
                assert code is grpc.StatusCode.UNAUTHENTICATED
        assert endpoint.take() == []


def test_a_payload_above_the_limit_ends_its_call() -> None:
    limits = ServiceLimits(max_payload_bytes=3 * MIB)
    with served(limits=limits) as (_, port), channel_to(port) as channel:
        frames = list(encode_chunks(bytes(9 * MIB)))
        assert status(channel, protocol.TRANSITIONS, frames) is grpc.StatusCode.INVALID_ARGUMENT
        big = [encode_fields({1: 3, 2: bytes(5 * MIB)})]
        assert status(channel, protocol.TRANSITIONS, big) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert status(channel, protocol.INTERACTIONS, frames) is grpc.StatusCode.INVALID_ARGUMENT


def test_unfinished_payloads_of_all_calls_share_a_limit() -> None:
    limits = ServiceLimits(max_receiving_bytes=4 * MIB)
    half = encode_fields({1: 1, 2: bytes(2 * MIB - 100)})
    hold = threading.Event()

    def unfinished() -> Iterator[bytes]:
        yield half
        hold.wait(120)

    with served(limits=limits) as (_, port), channel_to(port) as channel:
        send = channel.stream_unary(protocol.call_path(protocol.TRANSITIONS))
        held = [send.future(unfinished()) for _ in range(2)]
        codes = set()
        deadline = time.monotonic() + 60
        while grpc.StatusCode.UNAVAILABLE not in codes and time.monotonic() < deadline:
            codes.add(status(channel, protocol.TRANSITIONS, [half]))
            # One that arrived while the limit was reached by the others was refused itself.
            held = [send.future(unfinished()) if call.done() else call for call in held]
        assert grpc.StatusCode.UNAVAILABLE in codes
        hold.set()
        for call in held:
            call.result(60)
        assert status(channel, protocol.TRANSITIONS, [half]) is grpc.StatusCode.OK


@pytest.mark.parametrize("method", METHODS)
def test_silent_calls_of_one_connection_leave_room_for_others(method: str) -> None:
    hold = threading.Event()

    def say_nothing() -> Iterator[bytes]:
        hold.wait(120)
        yield from ()

    with served(max_clients=4) as (_, port), channel_to(port) as channel:
        call = channel.stream_stream(protocol.call_path(method))
        calls = [call(say_nothing()) for _ in range(12)]
        time.sleep(0.1)
        with channel_to(port) as other:
            assert status(other, protocol.READY, [b""]) is grpc.StatusCode.OK
        hold.set()
        for one in calls:
            one.cancel()


def test_bytes_that_are_not_grpc_leave_the_port_open() -> None:
    chance = random.Random(0)
    with served() as (_, port), channel_to(port) as channel:
        for start in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
            for _ in range(5):
                with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
                    line.sendall(start + chance.randbytes(2000))
        assert status(channel, protocol.READY, [b""]) is grpc.StatusCode.OK


def keep_silent(hold: threading.Event, *messages: bytes) -> Iterator[bytes]:
    yield from messages
    hold.wait(120)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("method", [protocol.TRANSITIONS, protocol.PARAMETERS])
def test_silent_calls_of_many_connections_give_their_place_to_actors(method: str) -> None:
    hold = threading.Event()
    with served(max_clients=2) as (endpoint, port), contextlib.ExitStack() as channels:
        calls = []
        for _ in range(4):
            call = channels.enter_context(channel_to(port)).stream_stream(
                protocol.call_path(method)
            )
            calls += [call(keep_silent(hold)) for _ in range(3)]
        wait_until(lambda: any(not call.is_active() for call in calls))
        actor = channels.enter_context(channel_to(port))
        assert status(actor, protocol.TRANSITIONS, list(encode_chunks(GOOD))) is OK
        assert len(endpoint.take()) == 2
        hold.set()


def test_a_call_that_pauses_in_a_payload_is_cut() -> None:
    hold = threading.Event()
    part = encode_fields({1: 1, 2: bytes(1000)})
    with served(open_s=0.2) as (_, port), channel_to(port) as channel:
        call = channel.stream_unary(protocol.call_path(protocol.TRANSITIONS))
        unfinished = call.future(keep_silent(hold, part))
        silent = call.future(keep_silent(hold))
        own = call.future(keep_silent(hold), metadata=(("proctor-actor", "a"),))
        assert unfinished.exception(60).code() is grpc.StatusCode.CANCELLED
        assert own.exception(60).code() is grpc.StatusCode.CANCELLED
        assert silent.running(), "LeRobot's actors may be silent until their first episode ends"
        hold.set()


def test_a_payload_that_pauses_gives_its_memory_to_others() -> None:
    hold = threading.Event()
    half = encode_fields({1: 1, 2: bytes(2 * MIB - 100)})
    limits = ServiceLimits(max_receiving_bytes=3 * MIB)
    with served(limits=limits) as (endpoint, port), channel_to(port) as channel:
        call = channel.stream_unary(protocol.call_path(protocol.TRANSITIONS))
        unfinished = call.future(keep_silent(hold, half))
        time.sleep(1.5)
        with channel_to(port) as other:
            end = encode_fields({1: 3, 2: GOOD})
            frames = [encode_fields({1: 1, 2: bytes(2 * MIB - 100)}), encode_fields({1: 1}), end]
            assert status(other, protocol.TRANSITIONS, frames) is OK
        assert unfinished.exception(60).code() is grpc.StatusCode.CANCELLED
        assert len(endpoint.take()) == 2
        hold.set()


DESCRIPTORS = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import grpc, numpy as np
from pathlib import Path
from proctor.protocols.formats.protobuf import encode_chunks
from proctor.rl.learner.service import LearnerService
from proctor.rl.link.links import LearnerEndpoint
from proctor.rl.link.payloads import TransitionSpec
from proctor.rl.replay.journal import Journal
from proctor.system.limits import ServerLimits
endpoint = LearnerEndpoint()
spec = TransitionSpec({"observation.state": (3,)}, 2)
service = LearnerService(endpoint, spec, ServerLimits(api_key="right"), 0)
print(service.port, flush=True)
journal = Journal(Path(sys.argv[1]), segment_bytes=1000)
while line := sys.stdin.readline():
    received = endpoint.take(None, 10.0)
    for one in received:
        journal.append(one)
    journal.sync()
    endpoint.acknowledge(received)
    print(len(journal), len(list(Path("/proc/self/fd").iterdir())), flush=True)
endpoint.close()
service.close()
"""


def test_strangers_leave_descriptors_for_the_journal_and_connections_for_actors(
    tmp_path: Path,
) -> None:
    learner = subprocess.Popen(
        [sys.executable, "-c", DESCRIPTORS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert learner.stdin is not None
    assert learner.stdout is not None
    port = int(learner.stdout.readline())
    with contextlib.ExitStack() as held, channel_to(port) as channel:
        metadata = (("authorization", "Api-Key right"),)

        def send_two() -> int:
            frames = list(encode_chunks(GOOD))
            assert status(channel, protocol.TRANSITIONS, frames, metadata=metadata) is OK
            print("store", file=learner.stdin, flush=True)
            stored, descriptors = map(int, learner.stdout.readline().split())
            assert descriptors < 200
            return stored

        assert send_two() == 2
        for _ in range(400):
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        assert [send_two() for _ in range(3)] == [4, 6, 8]
        learner.stdin.close()
    assert learner.wait(60) == 0
