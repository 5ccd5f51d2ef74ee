"""Find motors at any baud rate, and give one motor its id and baud rate."""

from __future__ import annotations

from collections.abc import Iterable

from proctor.errors import BusError
from proctor.robots.buses.identification import identify, parse_identity
from proctor.robots.buses.packets import HIGHEST_ID
from proctor.robots.buses.ports import PortOpener, open_port
from proctor.robots.buses.register_bus import RegisterBus, make_codec
from proctor.robots.buses.registers import (
    DYNAMIXEL_BAUD_CODES,
    FEETECH_BAUD_CODES,
    BusProtocol,
    Motor,
    model_by_number,
)
from proctor.robots.buses.serial_line import SerialLine

_RETRIES = 3
_SECONDS_PER_ID = 0.003
"""A motor waits for its turn in the answer to a broadcast ping."""
_USB_LATENCY_S = 0.016
_FACTORY_BAUDRATE = {BusProtocol.DYNAMIXEL: 57_600}
"""Baud rate of a new motor; Feetech's is the 1 Mbaud of an arm."""


def broadcast_ping(line: SerialLine, protocol: BusProtocol) -> dict[int, int]:
    """Return the model number of every motor that answers, by id."""
    size = 14 if protocol is BusProtocol.DYNAMIXEL else 6
    ids = HIGHEST_ID
    window_s = ids * (size * 10 / line.port.baudrate + _SECONDS_PER_ID) + _USB_LATENCY_S
    corrupt = line.statistics.corrupt
    replies = line.collect(line.codec.broadcast_ping(), window_s)
    found = [reply.id for reply in replies]
    if line.statistics.corrupt > corrupt or len(set(found)) < len(found):
        raise BusError(
            "replies collide: several motors have the same id; connect only one motor",
            code="robot.several-motors",
        )
    if protocol is BusProtocol.DYNAMIXEL:
        return {
            reply.id: parse_identity(line.codec, reply, protocol).model_number for reply in replies
        }
    models = {}
    for motor_id in sorted(found):
        if (identity := identify(line, protocol, motor_id, _RETRIES)) is not None:
            models[motor_id] = identity.model_number
    return models


def scan_port(
    port: str, protocol: BusProtocol, opener: PortOpener = open_port
) -> dict[int, dict[int, int]]:
    """Return the motors on a port: baud rate -> {id: model number}, without empty entries."""
    codes = DYNAMIXEL_BAUD_CODES if protocol is BusProtocol.DYNAMIXEL else FEETECH_BAUD_CODES
    opened = opener(port, next(iter(codes)))
    try:
        line = SerialLine(opened, make_codec(protocol), name=port)
        found = {}
        for baudrate in codes:
            if motors := _ping_at(line, protocol, baudrate):
                found[baudrate] = motors
        return found
    finally:
        opened.close()


def set_up_motor(bus: RegisterBus, name: str) -> bool:
    """Give the only motor on an open bus the id and the baud rate of motor ``name``.

    A motor that has them already is left alone, so an interrupted set-up can be started again.

    Returns:
        Whether something was written.
    """
    motor = bus.motors[name]
    try:
        baudrate, motor_id = _find_only_motor(bus, name, motor)
        if (baudrate, motor_id) == (bus.baudrate, motor.id):
            return False
        _set_baudrate(bus.line, baudrate)
        _write(bus, motor_id, motor, "Torque_Enable", 0)
        if "Lock" in motor.model.table:
            _write(bus, motor_id, motor, "Lock", 0)
        if motor_id != motor.id:
            _write(bus, motor_id, motor, "ID", motor.id)
        _write(bus, motor.id, motor, "Baud_Rate", motor.model.baud_codes[bus.baudrate])
    finally:
        _set_baudrate(bus.line, bus.baudrate)
    if identify(bus.line, bus.protocol, motor.id, _RETRIES) is None:
        raise BusError(
            f"{name} does not answer with its new id {motor.id}; switch its power off and on, "
            "then start the set-up again",
            code="robot.set-up-unconfirmed",
        )
    return True


def _find_only_motor(bus: RegisterBus, name: str, motor: Motor) -> tuple[int, int]:
    """Return baud rate and id of the only motor on the bus.

    The arm's baud rate and the factory's are both searched before a motor is taken: a motor that
    was set up before and is still connected must not be renamed.
    """
    likely = dict.fromkeys((bus.baudrate, _FACTORY_BAUDRATE.get(bus.protocol, bus.baudrate)))
    rest = [baudrate for baudrate in motor.model.baud_codes if baudrate not in likely]
    found = _search(bus, likely)
    for baudrate in rest:
        if found:
            break
        found = _search(bus, [baudrate])
    if not found:
        raise BusError(
            f"no motor answers on port {bus.port!r}: connect {name} alone and check its power",
            code="robot.motor-not-found",
        )
    if len(found) > 1:
        listed = ", ".join(f"id {one} at {baudrate} baud" for baudrate, one, _ in found)
        raise BusError(
            f"several motors answer on port {bus.port!r} ({listed}): connect only {name}",
            code="robot.several-motors",
        )
    baudrate, motor_id, number = found[0]
    if number != motor.model.number:
        raise BusError(
            f"the motor on port {bus.port!r} is a {model_by_number(number)}, "
            f"but {name} must be a {motor.model_name}",
            code="robot.wrong-model",
        )
    return baudrate, motor_id


def _search(bus: RegisterBus, baudrates: Iterable[int]) -> list[tuple[int, int, int]]:
    return [
        (baudrate, motor_id, number)
        for baudrate in baudrates
        for motor_id, number in _ping_at(bus.line, bus.protocol, baudrate).items()
    ]


def _ping_at(line: SerialLine, protocol: BusProtocol, baudrate: int) -> dict[int, int]:
    _set_baudrate(line, baudrate)
    return broadcast_ping(line, protocol)


def _set_baudrate(line: SerialLine, baudrate: int) -> None:
    if line.port.baudrate != baudrate:
        line.port.baudrate = baudrate
        line.forget_suspects()


def _write(bus: RegisterBus, motor_id: int, motor: Motor, register: str, value: int) -> None:
    """Write a register of a motor that may not have its final id yet."""
    entry = motor.model.register(register)
    data = value.to_bytes(entry.size, bus.codec.word_order)
    request = bus.codec.write(motor_id, entry.address, data)
    for _ in range(_RETRIES + 1):
        if bus.line.exchange(request, send_to_suspects=True):
            return
    raise BusError(
        f"the motor with id {motor_id} does not confirm {register}; check its power, "
        "then start the set-up again",
        code="robot.no-reply",
    )
