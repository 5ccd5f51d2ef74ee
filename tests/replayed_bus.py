"""A serial port that replays recorded traffic of a motor bus.

The recording is a list of "tx HEX" (host to motors), "rx HEX" (motors to host) and "lost" (a reply
that never came). A sent packet that is next in the recording gets the recorded replies. Any other
packet is kept in ``asides``, in words such as "read 0,5 of 3", and is answered from a memory of
registers, which recorded writes change too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proctor.robots.buses.dynamixel_packets import crc16, unstuff
from proctor.robots.buses.ports import PortOpener, SerialPort


class ReplayedPort:
    """A port on which recorded motors answer; a read never waits."""

    def __init__(self, protocol: str, identities: Mapping[int, bytes]) -> None:
        """Prepare a port.

        Args:
            protocol: "feetech" or "dynamixel".
            identities: motor id -> its first registers; other motors answer only as recorded.
        """
        self.timeout: float | None = 1.0
        self.baudrate = 1_000_000
        self.is_open = True
        self.asides: list[str] = []
        self.errors: dict[int, int] = {}
        """Motor id -> error byte of replies outside the recording."""
        self._feetech = protocol == "feetech"
        self._memory = {
            one: bytearray(start.ljust(256, b"\0")) for one, start in identities.items()
        }
        self._recording: list[str] = []
        self._input = b""

    def load(self, recording: Sequence[str]) -> None:
        """Take the recording of the next call."""
        self._recording = list(recording)
        self.asides = []

    @property
    def unsent(self) -> list[str]:
        """Recorded packets that were not sent."""
        return [line for line in self._recording if line.startswith("tx")]

    @property
    def in_waiting(self) -> int:
        return len(self._input)

    def read(self, size: int = 1) -> bytes:
        taken, self._input = self._input[:size], self._input[size:]
        return taken

    def write(self, data: bytes) -> int:
        assert self.is_open
        request = self._parse(data)
        if self._recording and self._recording[0] == f"tx {data.hex()}":
            self._execute(*request)
            self._recording.pop(0)
            while self._recording and not self._recording[0].startswith("tx"):
                self._input += bytes.fromhex(self._recording.pop(0).partition(" ")[2])
        else:
            self.asides.append(self._describe(*request))
            self._input += b"".join(self._status(*reply) for reply in self._execute(*request))
        return len(data)

    def reset_input_buffer(self) -> None:
        self._input = b""

    def close(self) -> None:
        self.is_open = False

    def _parse(self, packet: bytes) -> tuple[int, int, int, bytes]:
        """Return motor id, instruction, address and the rest of a packet."""
        if self._feetech:
            motor_id, instruction, body = packet[2], packet[4], packet[5:-1]
            return motor_id, instruction, body[0] if body else 0, body[1:]
        motor_id, instruction, body = packet[4], packet[7], unstuff(packet[8:-2])
        return motor_id, instruction, int.from_bytes(body[:2], "little"), body[2:]

    def _describe(self, motor_id: int, instruction: int, address: int, rest: bytes) -> str:
        size = rest[0] if rest else 0
        if instruction == 1:
            return f"ping {motor_id}" if motor_id != 0xFE else "broadcast ping"
        if instruction == 2 and size >= 7:
            return f"resynchronise {motor_id}"
        if instruction == 2:
            return f"read {address},{size} of {motor_id}"
        if instruction == 3:
            return f"write {address}={rest.hex()} to {motor_id}"
        if instruction == 0x82:
            return f"sync read {address},{size}"
        return f"sync write {address},{size}"

    def _execute(
        self, motor_id: int, instruction: int, address: int, rest: bytes
    ) -> list[tuple[int, bytes]]:
        """Carry a request out; return the ids that answer and the data of their replies."""
        memory = self._memory
        sizes = 1 if self._feetech else 2
        if instruction == 0x82:
            ids = [one for one in rest[sizes:] if one in memory]
            return [(one, bytes(memory[one][address : address + rest[0]])) for one in ids]
        if motor_id not in memory:
            return []
        if instruction == 1:
            return [(motor_id, b"" if self._feetech else bytes(memory[motor_id][:2]) + b"\x03")]
        if instruction == 2:
            return [(motor_id, bytes(memory[motor_id][address : address + rest[0]]))]
        memory[motor_id][address : address + len(rest)] = rest
        return self._moved(motor_id, address, rest)

    def _moved(self, motor_id: int, address: int, data: bytes) -> list[tuple[int, bytes]]:
        """Let a motor that got a new id answer to it from now on."""
        if address == (5 if self._feetech else 7):
            self._memory[data[0]] = self._memory.pop(motor_id)
        return [(motor_id, b"")]

    def _status(self, motor_id: int, data: bytes) -> bytes:
        error = self.errors.get(motor_id, 0)
        if self._feetech:
            body = bytes((motor_id, len(data) + 2, error)) + data
            return b"\xff\xff" + body + bytes((~sum(body) & 0xFF,))
        head = b"\xff\xff\xfd\x00" + bytes((motor_id, len(data) + 4, 0, 0x55, error)) + data
        return head + crc16(head).to_bytes(2, "little")


def opener_of(port: ReplayedPort) -> PortOpener:
    """Return an opener that gives ``port``."""

    def opener(name: str, baudrate: int) -> SerialPort:
        port.is_open = True
        port.baudrate = baudrate
        return port

    return opener
