"""Which motors answer on a bus, and whether they are the expected ones."""

from __future__ import annotations

from typing import NamedTuple

from proctor.errors import BusError
from proctor.robots.buses.packets import PacketCodec, Reply, Request
from proctor.robots.buses.register_bus import RegisterBus
from proctor.robots.buses.registers import BusProtocol, model_by_number
from proctor.robots.buses.serial_line import SerialLine

HANDSHAKE_RETRIES = 2
_FEETECH_IDENTITY_SIZE = 5
"""Bytes from address 0: firmware major and minor, one unused byte, model number (2)."""


class Identity(NamedTuple):
    """Id, model and firmware version of a motor."""

    model_number: int
    firmware: str
    alert: str
    """Its present alert ("overload"), or an empty string."""


def identity_request(codec: PacketCodec, motor_id: int, protocol: BusProtocol) -> Request:
    """Return the request for a motor's model and firmware: one packet in either protocol."""
    if protocol is BusProtocol.DYNAMIXEL:
        return codec.ping(motor_id)
    return codec.read(motor_id, 0, _FEETECH_IDENTITY_SIZE)


def parse_identity(codec: PacketCodec, reply: Reply, protocol: BusProtocol) -> Identity:
    """Return the identity in the reply to an identity request."""
    alert = codec.alert(reply.error)
    if protocol is BusProtocol.DYNAMIXEL:
        return Identity(int.from_bytes(reply.data[:2], "little"), str(reply.data[2]), alert)
    number = int.from_bytes(reply.data[3:5], codec.word_order)
    return Identity(number, f"{reply.data[0]}.{reply.data[1]}", alert)


def identify(
    line: SerialLine, protocol: BusProtocol, motor_id: int, retries: int
) -> Identity | None:
    """Ask a motor for its model and firmware; return None if it does not answer."""
    request = identity_request(line.codec, motor_id, protocol)
    for _ in range(retries + 1):
        reply = line.exchange(request).get(motor_id)
        if reply is not None and len(reply.data) == request.data_size:
            return parse_identity(line.codec, reply, protocol)
    return None


def check_motors(bus: RegisterBus) -> None:
    """Check that every motor of a bus answers, is of its model and has the common firmware."""
    found = {
        name: identify(bus.line, bus.protocol, motor.id, HANDSHAKE_RETRIES)
        for name, motor in bus.motors.items()
    }
    problems = []
    for name, motor in bus.motors.items():
        identity, label = found[name], f"{name} (id {motor.id})"
        if identity is None:
            problems.append(f"{label} does not answer")
        elif identity.model_number != motor.model.number:
            actual = model_by_number(identity.model_number)
            problems.append(f"{label} is a {actual}, not a {motor.model_name}")
        elif identity.alert:
            problems.append(f"{label} reports {identity.alert}")
    if problems:
        raise BusError(
            f"motor check failed on port {bus.port!r}: {'; '.join(problems)}. "
            "Check power and cables; give motors their ids with proctor setup-motors",
            code="robot.motor-check-failed",
        )
    _check_firmware(bus, {name: identity for name, identity in found.items() if identity})


def _check_firmware(bus: RegisterBus, found: dict[str, Identity]) -> None:
    """Raise BusError if Feetech motors differ in firmware; each Dynamixel model has its own."""
    versions = {identity.firmware for identity in found.values()}
    if bus.protocol is BusProtocol.DYNAMIXEL or len(versions) <= 1:
        return
    listed = ", ".join(f"{name} {identity.firmware}" for name, identity in found.items())
    raise BusError(
        f"the motors on port {bus.port!r} have different firmware versions: {listed}. "
        "Update them with Feetech's FD program so that all have the same",
        code="robot.firmware-differs",
    )
