"""Late, lost, corrupt and foreign replies never reach the caller as a reading."""

from __future__ import annotations

import itertools
import termios

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.errors import BusError, DeviceNotConnected
from proctor.robots.buses.dynamixel_packets import DynamixelCodec, crc16, stuff, unstuff
from proctor.robots.buses.feetech_packets import FeetechCodec
from proctor.robots.buses.packets import PacketCodec
from proctor.robots.buses.serial_line import SerialLine
from proctor.robots.emulation.emulated_bus import Fault, FaultKind
from tests.unit.robots.bus_bench import make_bench

PROTOCOLS = ("feetech", "dynamixel")
CODECS = (FeetechCodec(), DynamixelCodec())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("motor_id", [1, 3, None])
def test_a_late_reply_is_never_taken_for_a_new_one(protocol: str, motor_id: int | None) -> None:
    bench = make_bench(protocol)
    bench.bus.connect()
    bench.emulated.inject(Fault(FaultKind.LATE, motor_id, skip=4, count=3))
    for ticks in range(1000, 1200, 10):
        bench.move(ticks)
        try:
            seen = bench.positions(retries=2)
        except BusError:
            continue
        assert set(seen.values()) == {ticks}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=25)
@given(
    faults=st.lists(
        st.tuples(
            st.sampled_from([FaultKind.LATE, FaultKind.DROP, FaultKind.CORRUPT, FaultKind.GARBAGE]),
            st.sampled_from([1, 2, 3, None]),
            st.integers(0, 40),
            st.integers(1, 5),
        ),
        max_size=6,
    )
)
def test_whatever_the_faults_a_reading_is_new_or_an_error(
    protocol: str, faults: list[tuple[FaultKind, int | None, int, int]]
) -> None:
    bench = make_bench(protocol)
    bench.bus.connect()
    for kind, motor_id, skip, count in faults:
        bench.emulated.inject(Fault(kind, motor_id, skip=skip, count=count))
    for ticks in range(500, 3500, 250):
        bench.move(ticks)
        try:
            assert set(bench.positions(retries=1).values()) == {ticks}
            assert bench.bus.read("Present_Position", "elbow", normalize=False) == ticks
        except BusError:
            continue
    bench.move(77)
    assert set(bench.positions(retries=40).values()) == {77}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_lost_reply_is_counted_for_its_motor_and_retried(protocol: str) -> None:
    bench = make_bench(protocol)
    bench.bus.connect()
    bench.emulated.inject(Fault(FaultKind.DROP, 2))
    bench.positions(retries=1)
    assert bench.bus.line.statistics.lost == {2: 1}
    assert bench.bus.retries == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_noise_before_a_reply_is_skipped(protocol: str) -> None:
    bench = make_bench(protocol)
    bench.bus.connect()
    bench.emulated.inject(Fault(FaultKind.GARBAGE, 2, noise=b"\xff\xff\x02\x00\xff\xff\xfd"))
    bench.move(123)
    assert set(bench.positions(retries=1).values()) == {123}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_write_is_sent_to_a_motor_that_cannot_answer(protocol: str) -> None:
    bench = make_bench(protocol)
    bench.bus.connect()
    bench.bus.enable_torque()
    bench.emulated.inject(Fault(FaultKind.DROP, 2, count=None))
    for _ in range(2):
        with pytest.raises(BusError) as error:
            bench.bus.write("Torque_Enable", "elbow", 0)
        assert error.value.code == "robot.no-reply"
    assert bench.torque() == [True, False, True]


def test_an_unplugged_port_is_named_gone() -> None:
    bench = make_bench("feetech")
    bench.bus.connect()
    bench.emulated.unplug()
    with pytest.raises(DeviceNotConnected) as error:
        bench.positions()
    assert error.value.code == "robot.port-lost"
    assert bench.bus.port in str(error.value)


def test_a_terminal_that_hangs_up_while_it_is_flushed_is_named_gone() -> None:
    bench = make_bench("feetech")
    bench.bus.connect()

    def flush() -> None:
        raise termios.error(5, "Input/output error")  # what pyserial raises

    bench.bus.line.port.reset_input_buffer = flush  # type: ignore[method-assign]
    with pytest.raises(DeviceNotConnected) as error:
        bench.positions()
    assert error.value.code == "robot.port-lost"


class TimedPort:
    """A port that answers pings after ``latency_s`` on its own clock; None: never."""

    def __init__(self) -> None:
        self.baudrate, self.is_open, self.in_waiting = 1_000_000, True, 0
        self.timeout: float | None = None
        self.latency_s: float | None = None
        self.time_s = 0.0
        self._asked = b""

    def read(self, size: int = 1) -> bytes:
        assert self.timeout is not None
        if self.latency_s is None or self.latency_s > self.timeout:
            self.time_s += self.timeout
            return b""
        self.time_s += self.latency_s
        return _status(FeetechCodec(), self._asked[2], b"")

    def write(self, data: bytes) -> int:
        self._asked = data
        return len(data)

    def reset_input_buffer(self) -> None:
        self._asked = b""

    def close(self) -> None:
        self.is_open = False


def _timeouts(port: TimedPort, line: SerialLine, count: int) -> list[float]:
    timeouts = []
    for motor_id in itertools.islice(itertools.cycle(range(1, 250)), count):
        line.exchange(line.codec.ping(motor_id))
        assert port.timeout is not None
        timeouts.append(port.timeout)
    return timeouts


def test_the_timeout_grows_while_nothing_answers_and_stays_bounded() -> None:
    port = TimedPort()
    timeouts = _timeouts(
        port, SerialLine(port, FeetechCodec(), lambda: port.time_s, name="port"), 10
    )
    assert timeouts == sorted(timeouts)
    assert timeouts[0] < timeouts[-1] <= 0.12


def test_the_timeout_follows_the_measured_latency() -> None:
    port = TimedPort()
    line = SerialLine(port, FeetechCodec(), lambda: port.time_s, name="port")
    port.latency_s = 0.016  # the latency timer of an FTDI adapter
    slow = _timeouts(port, line, 100)[-1]
    port.latency_s = 0.001
    quick = _timeouts(port, line, 300)[-1]
    assert quick < 0.016 < slow <= 0.12


@pytest.mark.parametrize("codec", CODECS, ids=PROTOCOLS)
@given(
    noise=st.lists(st.sampled_from([0x00, 0x05, 0x08, 0xFD, 0xFF]), max_size=12).map(bytes),
    data=st.binary(min_size=4, max_size=4),
)
def test_a_reply_is_found_behind_noise(codec: PacketCodec, noise: bytes, data: bytes) -> None:
    """Noise may begin a packet of the asked motor, which then swallows a part of the reply."""
    request = codec.read(5, 10, 4)
    reply = _status(codec, 5, data)
    received = noise + reply
    found = codec.scan(received, request)
    rest = codec.scan(found.rest + reply, request)
    assert (5, 0, data) in found.replies + rest.replies


@pytest.mark.parametrize("codec", CODECS, ids=PROTOCOLS)
@given(data=st.binary(min_size=4, max_size=4), damage=st.integers(1, 255), place=st.integers(0, 30))
def test_a_damaged_reply_is_not_accepted(
    codec: PacketCodec, data: bytes, damage: int, place: int
) -> None:
    request = codec.read(5, 10, 4)
    packet = bytearray(_status(codec, 5, data))
    place %= len(packet)
    packet[place] ^= damage
    assert codec.match(bytes(packet), request) is None
    assert not [r for r in codec.scan(bytes(packet), request).replies if r.id == 5]


@given(st.lists(st.sampled_from([b"\xff", b"\xfd", b"\x00", b"\xff\xff\xfd"])))
def test_stuffing_is_undone_and_hides_every_header(parts: list[bytes]) -> None:
    body = b"".join(parts)
    assert unstuff(stuff(body)) == body
    assert b"\xff\xff\xfd\x00" not in stuff(body)


def _status(codec: PacketCodec, motor_id: int, data: bytes) -> bytes:
    if isinstance(codec, FeetechCodec):
        body = bytes((motor_id, len(data) + 2, 0)) + data
        return b"\xff\xff" + body + bytes((~sum(body) & 0xFF,))
    content = stuff(b"\x55\x00" + data)
    head = b"\xff\xff\xfd\x00" + bytes((motor_id, len(content) + 2, 0)) + content
    return head + crc16(head).to_bytes(2, "little")
