"""Serial ports of this machine, and the motors that answer on them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proctor.errors import MissingExtra
from proctor.robots.buses.motor_setup import scan_port
from proctor.robots.buses.ports import PortOpener, open_port
from proctor.robots.buses.registers import MODELS, BusProtocol, model_by_number

BY_ID = Path("/dev/serial/by-id")


@dataclass(frozen=True)
class PortInfo:
    """A serial port of this machine."""

    name: str
    description: str
    """What the adapter calls itself; empty if it says nothing."""
    stable_name: str = ""
    """A name that stays the same when other adapters are plugged in; empty if there is none."""

    def __str__(self) -> str:
        return "  ".join(part for part in (self.name, self.description, self.stable_name) if part)


@dataclass(frozen=True)
class FoundMotor:
    """A motor that answered."""

    protocol: BusProtocol
    baudrate: int
    id: int
    model: str

    def __str__(self) -> str:
        return f"id {self.id}: {self.model} at {self.baudrate} baud"


def list_ports(by_id: Path = BY_ID) -> list[PortInfo]:
    """List the serial ports of this machine."""
    try:
        tools: Any = importlib.import_module("serial.tools.list_ports")
    except ImportError:
        raise MissingExtra("pyserial", "robot") from None
    links = sorted(by_id.iterdir()) if by_id.is_dir() else []
    stable = {str(link.resolve()): str(link) for link in links}
    return [
        PortInfo(
            port.device,
            "" if port.description in (None, "n/a") else port.description,
            stable.get(port.device, ""),
        )
        for port in sorted(tools.comports())
    ]


def find_motors(port: str, opener: PortOpener = open_port) -> list[FoundMotor]:
    """List the motors that answer on a port, of both protocols and at every baud rate."""
    found: dict[tuple[int, int], FoundMotor] = {}
    for protocol in BusProtocol:
        for baudrate, motors in scan_port(port, protocol, opener).items():
            for motor_id, number in motors.items():
                motor = FoundMotor(protocol, baudrate, motor_id, model_by_number(number))
                if _fits(motor, number):
                    found[baudrate, motor_id] = motor
                else:
                    found.setdefault((baudrate, motor_id), motor)
    return list(found.values())


def _fits(motor: FoundMotor, number: int) -> bool:
    """Whether the protocol is that of the motor's model.

    Feetech's two protocols have the same packets with swapped bytes: a motor answers both.
    """
    model = MODELS.get(motor.model)
    return model is not None and model.number == number and model.protocol is motor.protocol
