"""Register memory of one emulated motor: Feetech STS3215 or Dynamixel X.

A servo keeps what its registers hold and what survives a power cycle. The owner of the joint
reports the motion with ``observe`` and reads the command with ``drives`` and ``goal_ticks``.
The register addresses are written down here again, not shared with the driver, so that a wrong
address in the driver shows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from proctor.robots.buses.registers import BusProtocol

TICKS_PER_TURN = 4096
MEMORY_BYTES = 256
VOLTAGE_ALERT, OVERHEAT_ALERT, OVERLOAD_ALERT = 1, 4, 32
"""Alert bits that both vendors share."""
MOVING_TICKS_PER_S = 20
"""Slowest speed at which Moving reads 1."""


@dataclass(frozen=True)
class MemoryField:
    """Address and size of a register in bytes; words are little-endian."""

    address: int
    size: int


@dataclass(frozen=True)
class Motion:
    """Movement of the joint that a servo measures."""

    ticks: int
    """Encoder before the homing offset; may leave 0-4095 on a joint of several turns."""
    ticks_per_s: float = 0.0
    load: float = 0.0
    """Part of the motor's greatest torque, -1 to 1."""


class Servo(ABC):
    """One motor. Subclasses hold the vendor's addresses and rules."""

    protocol: ClassVar[BusProtocol]
    bauds: ClassVar[tuple[int, ...]]
    """Baud rates, in the order of their codes."""
    ram_start: ClassVar[int]
    """First address that is lost at power-off."""
    id_register: ClassVar[MemoryField]
    baud_register: ClassVar[MemoryField]
    offset_register: ClassVar[MemoryField]
    min_limit: ClassVar[MemoryField]
    max_limit: ClassVar[MemoryField]
    mode_register: ClassVar[MemoryField]
    torque_enable: ClassVar[MemoryField]
    goal_position: ClassVar[MemoryField]
    goal_velocity: ClassVar[MemoryField]
    gain_register: ClassVar[MemoryField]
    voltage: ClassVar[MemoryField]
    """Unit 0.1 V, also of the limits."""
    voltage_limits: ClassVar[tuple[MemoryField, MemoryField]]
    """Lowest, highest; a highest of 0 means none."""
    temperature: ClassVar[MemoryField]
    temperature_limit: ClassVar[MemoryField]
    read_only: ClassVar[tuple[range, ...]]

    def __init__(self, registers: Mapping[int, int], *, ticks: int = 2048) -> None:
        self.memory = bytearray(MEMORY_BYTES)
        for address, value in registers.items():
            self.memory[address] = value
        self.motion = Motion(ticks)
        self._is_measured = True
        """False while ``motion`` is newer than the measurement registers."""
        self.burnt = False
        """A burnt motor never answers and never drives."""
        self.alerts = 0
        """Hardware error bits that an injected fault raised."""
        self._power_on = bytes(self.memory)
        self._stored = bytearray(self.memory)
        self._registered: tuple[int, bytes] | None = None

    def get(self, register: MemoryField) -> int:
        """Return a register's unsigned value."""
        start = register.address
        return int.from_bytes(self.memory[start : start + register.size], "little")

    def put(self, register: MemoryField, value: int) -> None:
        """Set a register, as the motor itself does: no rule of host writes applies."""
        wrapped = value % (1 << 8 * register.size)
        start = register.address
        self.memory[start : start + register.size] = wrapped.to_bytes(register.size, "little")

    def store(self, register: MemoryField, value: int) -> None:
        """Set a register so that the value also survives a power cycle."""
        self.put(register, value)
        self._keep(register.address, register.size)

    @property
    def id(self) -> int:
        """Present id."""
        return self.get(self.id_register)

    @property
    def baud(self) -> int | None:
        """Present baud rate; None for a code that no rate belongs to."""
        code = self.get(self.baud_register)
        return self.bauds[code] if code < len(self.bauds) else None

    @property
    def torque_is_on(self) -> bool:
        """Whether the host has switched torque on."""
        return self.get(self.torque_enable) != 0

    @property
    def drives(self) -> bool:
        """Whether the motor moves its joint: torque is on, and it is not burnt, not shut down."""
        return self.torque_is_on and not self.burnt and not self.alerts

    def observe(self, motion: Motion) -> None:
        """Take over the movement of the joint; the next read reports it."""
        self.motion = motion
        self._is_measured = False

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes of registers, with measurements of this moment."""
        if not self._is_measured:
            self._is_measured = True
            self._measure(self.motion)
        self._refresh()
        return bytes(self.memory[address : address + size]).ljust(size, b"\0")

    def write(self, address: int, data: bytes) -> int:
        """Execute a host's write; return the error of the status packet, 0 if all is well."""
        if error := self._refusal(address, data):
            return error
        was_on = self.torque_is_on
        self.memory[address : address + len(data)] = data
        if address < self.ram_start and self._eeprom_is_unlocked:
            self._keep(address, len(data))
        if self.torque_is_on and not was_on:
            self.hold()
        if was_on and not self.torque_is_on:
            self._torque_went_off()
        return 0

    def register_write(self, address: int, data: bytes) -> int:
        """Keep a write for the next ``action``; return the error of the status packet."""
        if error := self._refusal(address, data):
            return error
        self._registered = (address, data)
        return 0

    def action(self) -> None:
        """Execute the registered write, if there is one."""
        if self._registered is not None:
            self.write(*self._registered)
            self._registered = None

    def power_cycle(self) -> None:
        """Switch the supply off and on: RAM is lost, and EEPROM writes that were locked."""
        self.memory[:] = self._power_on
        self.memory[: self.ram_start] = self._stored[: self.ram_start]
        self.put(self.torque_enable, 0)
        self.alerts = 0
        self._registered = None

    def hold(self) -> None:
        """Make the present position the goal."""
        self.put(self.goal_position, self._encoded_goal(self.present_ticks()))

    def set_supply(self, *, volts: float, celsius: int) -> None:
        """Set the measured voltage and temperature."""
        self.put(self.voltage, round(10 * volts))
        self.put(self.temperature, celsius)

    def status_error(self) -> int:
        """Return the error byte that every status packet of this motor carries now."""
        return self._error_byte(self.alerts | self._measured_alerts())

    def answers(self, *, is_read: bool) -> bool:
        """Return whether the motor sends a status packet for a read, or for another request."""
        return not self.burnt and (is_read or self._answers_writes)

    @property
    @abstractmethod
    def homing_offset(self) -> int:
        """Signed homing offset in ticks."""

    @property
    @abstractmethod
    def gain(self) -> float:
        """Position gain as a multiple of the arm's usual one."""

    @abstractmethod
    def present_ticks(self) -> int:
        """Return the position that the motor reports."""

    @abstractmethod
    def goal_ticks(self) -> int | None:
        """Return the goal as an encoder value, within the limits; None outside position modes."""

    @abstractmethod
    def goal_ticks_per_s(self) -> float | None:
        """Return the goal speed; None outside velocity mode."""

    @property
    @abstractmethod
    def _eeprom_is_unlocked(self) -> bool:
        """Whether writes to EEPROM addresses survive a power cycle."""

    @property
    @abstractmethod
    def _answers_writes(self) -> bool:
        """Whether the status level asks for an answer to writes."""

    @abstractmethod
    def _refusal(self, address: int, data: bytes) -> int:
        """Return the error with which a write is refused, or 0."""

    @abstractmethod
    def _measure(self, motion: Motion) -> None:
        """Put a movement into the measurement registers."""

    @abstractmethod
    def _refresh(self) -> None:
        """Compute the registers that depend on others, as Present_Position."""

    @abstractmethod
    def _encoded_goal(self, ticks: int) -> int:
        """Return the bits of a goal."""

    @abstractmethod
    def _error_byte(self, alerts: int) -> int:
        """Return the error byte of a status packet for alert bits."""

    def _torque_went_off(self) -> None:
        """Clear an overload, as both vendors' motors can after torque was off."""
        self.alerts &= ~OVERLOAD_ALERT

    def _measured_alerts(self) -> int:
        """Return the alert bits of voltage and temperature."""
        alerts = 0
        low, high = (self.get(limit) for limit in self.voltage_limits)
        if high > 0 and not low <= self.get(self.voltage) <= high:
            alerts |= VOLTAGE_ALERT
        limit = self.get(self.temperature_limit)
        if limit > 0 and self.get(self.temperature) > limit:
            alerts |= OVERHEAT_ALERT
        return alerts

    def _keep(self, address: int, size: int) -> None:
        self._stored[address : address + size] = self.memory[address : address + size]

    def _is_read_only(self, address: int, size: int) -> bool:
        written = range(address, address + size)
        return written.stop > MEMORY_BYTES or any(
            byte in part for byte in written for part in self.read_only
        )


def model_number_bytes(register: MemoryField, model_number: int) -> dict[int, int]:
    """Return the bytes of a model number by address."""
    start = register.address
    return {start: model_number & 0xFF, start + 1: model_number >> 8}
