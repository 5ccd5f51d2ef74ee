"""A bus of emulated servos, and the in-process serial port that leads to it.

``EmulatedBus`` executes the host's packets on its servos. ``EmulatedPort`` has the interface of
pyserial's ``Serial``. Faults are injected with ``EmulatedBus.inject``.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from proctor.robots.emulation.dynamixel_servo import DynamixelServo
from proctor.robots.emulation.instruction_packets import (
    BROADCAST_ID,
    Instruction,
    InstructionDecoder,
    InstructionPacket,
    read_parameters,
    status_packet,
    sync_parameters,
    write_parameters,
)
from proctor.robots.emulation.servo import Servo

_LOG_LENGTH = 20_000


class FaultKind(Enum):
    """What happens to a status packet."""

    DROP = "drop"
    CORRUPT = "corrupt"
    """The last byte of the checksum is wrong."""
    LATE = "late"
    """The packet comes after its timeout: in front of the answer to the next request."""
    ERROR = "error"
    """The packet carries error bits."""
    GARBAGE = "garbage"
    """Noise comes in front of the packet."""


@dataclass
class Fault:
    """A fault of status packets."""

    kind: FaultKind
    motor_id: int | None = None
    """None: of every motor."""
    skip: int = 0
    """Packets that pass before the first fault."""
    count: int | None = 1
    """Faulty packets; None: all from then on."""
    error: int = 0
    """Bits of an ERROR."""
    noise: bytes = b"\xff\x00\xff\xff\x07"
    """Bytes of a GARBAGE; the default begins a packet that never ends."""

    def strikes(self, motor_id: int) -> bool:
        """Count a status packet of ``motor_id``; return whether the fault hits it."""
        if self.motor_id not in (None, motor_id) or self.count == 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.count is not None:
            self.count -= 1
        return True


class LoggedPacket(NamedTuple):
    """A packet on the bus."""

    direction: str
    """"tx" from the host, "rx" from a motor, "lost": a dropped status packet."""
    data: bytes


class EmulatedBus:
    """Servos of one protocol on one line."""

    def __init__(
        self,
        servos: Sequence[Servo],
        *,
        lock: AbstractContextManager[object] | None = None,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """Make a bus.

        Args:
            servos: motors of one protocol.
            lock: held while packets are executed; a physics thread holds it while it steps.
            before: called before each packet; it reports the joints' movement to the servos.
            after: called after each packet; it gives the servos' commands to the joints.
        """
        self.servos = list(servos)
        self.protocol = self.servos[0].protocol
        if any(servo.protocol is not self.protocol for servo in self.servos):
            raise ValueError("the servos of a bus speak one protocol")
        self.log: deque[LoggedPacket] = deque(maxlen=_LOG_LENGTH)
        self.unplugged = False
        self._decoder = InstructionDecoder(self.protocol)
        self._faults: list[Fault] = []
        self._late: list[bytes] = []
        self._lock = lock if lock is not None else nullcontext()
        self._before = before
        self._after = after

    def inject(self, fault: Fault) -> None:
        """Add a fault."""
        self._faults.append(fault)

    def burn(self, motor_id: int) -> None:
        """Let a motor burn: it never answers again."""
        for servo in self.servos:
            servo.burnt |= servo.id == motor_id

    def unplug(self) -> None:
        """Pull the cable: ports raise as pyserial's do, and the motors go on as they were."""
        self.unplugged = True

    def plug_in(self) -> None:
        """Put the cable back; a new port works again."""
        self.unplugged = False

    def receive(self, data: bytes, baudrate: int | None) -> bytes:
        """Execute the host's bytes; return the bytes of the motors.

        ``baudrate`` None means that every motor understands.
        """
        answer = b""
        for packet in self._decoder.feed(data):
            self.log.append(LoggedPacket("tx", packet.raw))
            answer += self._overdue()
            with self._lock:
                if self._before is not None:
                    self._before()
                answer += b"".join(self._execute(packet, self._listening(baudrate)))
                if self._after is not None:
                    self._after()
        return answer

    def _overdue(self) -> bytes:
        late, self._late = b"".join(self._late), []
        return late

    def _listening(self, baudrate: int | None) -> dict[int, Servo]:
        """Return the motors that understand the baud rate, by id; of equal ids the first."""
        return {
            servo.id: servo
            for servo in reversed(self.servos)
            if not servo.burnt and (baudrate is None or servo.baud == baudrate)
        }

    def _execute(self, packet: InstructionPacket, motors: dict[int, Servo]) -> Iterable[bytes]:
        if packet.instruction == Instruction.SYNC_READ:
            return self._sync_read(packet, motors)
        if packet.instruction == Instruction.SYNC_WRITE:
            return self._sync_write(packet, motors)
        if packet.id != BROADCAST_ID:
            addressed = [motors[packet.id]] if packet.id in motors else []
            return [answer for servo in addressed for answer in self._execute_on(servo, packet)]
        answers = [
            answer
            for motor_id in sorted(motors)
            for answer in self._execute_on(motors[motor_id], packet)
        ]
        return answers if packet.instruction == Instruction.PING else ()

    def _execute_on(self, servo: Servo, packet: InstructionPacket) -> Iterable[bytes]:
        motor_id, error, data = servo.id, 0, b""
        is_read = packet.instruction in (Instruction.PING, Instruction.READ)
        if packet.instruction == Instruction.PING:
            data = servo.ping_data if isinstance(servo, DynamixelServo) else b""
        elif packet.instruction == Instruction.READ:
            data = servo.read(*read_parameters(self.protocol, packet.parameters))
        elif packet.instruction == Instruction.WRITE:
            error = servo.write(*write_parameters(self.protocol, packet.parameters))
        elif packet.instruction == Instruction.REG_WRITE:
            error = servo.register_write(*write_parameters(self.protocol, packet.parameters))
        elif packet.instruction == Instruction.ACTION:
            servo.action()
        elif packet.instruction == Instruction.REBOOT:
            servo.power_cycle()
        else:
            return ()
        if packet.id == BROADCAST_ID and packet.instruction != Instruction.PING:
            return ()
        # A motor whose id was written answers with the id it had.
        return self._status(servo, motor_id, error, data) if servo.answers(is_read=is_read) else ()

    def _sync_read(self, packet: InstructionPacket, motors: dict[int, Servo]) -> Iterable[bytes]:
        address, size, ids = sync_parameters(self.protocol, packet.parameters)
        return [
            answer
            for motor_id in ids
            if motor_id in motors
            for answer in self._status(
                motors[motor_id], motor_id, 0, motors[motor_id].read(address, size)
            )
        ]

    def _sync_write(self, packet: InstructionPacket, motors: dict[int, Servo]) -> Iterable[bytes]:
        address, size, rest = sync_parameters(self.protocol, packet.parameters)
        for start in range(0, len(rest) - size, size + 1):
            servo = motors.get(rest[start])
            if servo is not None:
                servo.write(address, rest[start + 1 : start + 1 + size])
        return ()

    def _status(self, servo: Servo, motor_id: int, error: int, data: bytes) -> Iterable[bytes]:
        """Return the status packet as the faults leave it."""
        struck = [fault for fault in self._faults if fault.strikes(motor_id)]
        kinds = {fault.kind for fault in struck}
        for fault in struck:
            error |= fault.error
        packet = status_packet(self.protocol, motor_id, error | servo.status_error(), data)
        if FaultKind.DROP in kinds:
            self.log.append(LoggedPacket("lost", b""))
            return ()
        if FaultKind.CORRUPT in kinds:
            packet = packet[:-1] + bytes((packet[-1] ^ 0x55,))
        if FaultKind.GARBAGE in kinds:
            noise = next(fault.noise for fault in struck if fault.kind is FaultKind.GARBAGE)
            packet = noise + packet
        self.log.append(LoggedPacket("rx", packet))
        if FaultKind.LATE in kinds:
            self._late.append(packet)
            return ()
        return (packet,)


class EmulatedPort:
    """A port with pyserial's interface whose bytes go to an emulated bus in this process.

    ``read`` never waits: all bytes that will come are there as soon as ``write`` returns.
    """

    def __init__(
        self,
        bus: EmulatedBus,
        baudrate: int = 1_000_000,
        *,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.timeout: float | None = 0.05
        self.baudrate = baudrate
        self._bus = bus
        self._on_close = on_close
        self._received = bytearray()
        self._is_open = True
        self._mutex = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the port is open."""
        return self._is_open

    @property
    def in_waiting(self) -> int:
        """Count of received bytes."""
        self._check()
        return len(self._received)

    def read(self, size: int = 1) -> bytes:
        """Return at most ``size`` received bytes."""
        with self._mutex:
            self._check()
            data = bytes(self._received[:size])
            del self._received[:size]
            return data

    def write(self, data: bytes) -> int:
        """Send bytes; the motors answer at once."""
        with self._mutex:
            self._check()
            self._received += self._bus.receive(bytes(data), self.baudrate)
            return len(data)

    def reset_input_buffer(self) -> None:
        """Drop the received bytes."""
        with self._mutex:
            self._check()
            self._received.clear()

    def close(self) -> None:
        """Close the port; a closed one is left alone."""
        if self._is_open:
            self._is_open = False
            if self._on_close is not None:
                self._on_close()

    def _check(self) -> None:
        """Raise what pyserial raises for a closed port and for a pulled cable."""
        if self._is_open and not self._bus.unplugged:
            return
        from serial import PortNotOpenError, SerialException

        if not self._is_open:
            raise PortNotOpenError
        raise SerialException(errno.EIO, "device disconnected")
