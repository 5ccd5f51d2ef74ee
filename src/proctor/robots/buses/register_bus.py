"""RegisterBus: read and write registers of the motors on one serial port, by motor name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from proctor.errors import BusError, DeviceNotConnected, RobotError, UsageError
from proctor.robots.buses.calibration import Calibration, MotorCalibration
from proctor.robots.buses.dynamixel_packets import DynamixelCodec
from proctor.robots.buses.feetech_packets import FeetechCodec
from proctor.robots.buses.normalisation import NORMALISED_REGISTERS, PositionScale
from proctor.robots.buses.packets import PacketCodec, Reply, Request
from proctor.robots.buses.ports import DEFAULT_BAUDRATE, PortOpener, open_port
from proctor.robots.buses.registers import BusProtocol, Motor, Register
from proctor.robots.buses.serial_line import SerialLine

_HARDWARE_ERRORS = {
    1: "input voltage",
    4: "overheating",
    8: "motor encoder",
    16: "electrical shock",
    32: "overload",
}
"""Bits of Hardware_Error_Status of a Dynamixel motor."""


@dataclass(frozen=True)
class _ReadPlan:
    """A sync read, prepared once."""

    names: tuple[str, ...]
    register: Register
    requests: tuple[Request, ...]
    """One sync read, or one read per motor where the protocol has no sync read."""
    normalised: bool


def make_codec(protocol: BusProtocol) -> PacketCodec:
    """Return the codec of a protocol."""
    if protocol is BusProtocol.DYNAMIXEL:
        return DynamixelCodec()
    return FeetechCodec("big" if protocol is BusProtocol.FEETECH_SCS else "little")


class RegisterBus:
    """Motors on one serial port.

    ``alerts`` holds the present alert of each motor ("overload"); every reply updates it.
    """

    def __init__(
        self,
        port: str,
        motors: Mapping[str, Motor],
        calibration: Calibration | None = None,
        *,
        baudrate: int = DEFAULT_BAUDRATE,
        opener: PortOpener = open_port,
    ) -> None:
        """Describe a bus; ``connect`` opens it."""
        self.port = port
        self.motors = dict(motors)
        self.baudrate = baudrate
        self.protocol = _common_protocol(self.motors)
        self.codec = make_codec(self.protocol)
        self.alerts: dict[str, str] = {}
        self.retries = 0
        """Requests that were sent again."""
        self._opener = opener
        self._line: SerialLine | None = None
        self._names = {motor.id: name for name, motor in self.motors.items()}
        self._plans: dict[tuple[str, tuple[str, ...] | None, bool], _ReadPlan] = {}
        self._scales: dict[str, PositionScale] = {}
        self.calibration = dict(calibration or {})

    @property
    def is_connected(self) -> bool:
        """Whether the port is open."""
        return self._line is not None

    @property
    def line(self) -> SerialLine:
        """The open line."""
        if self._line is None:
            raise DeviceNotConnected(f"the motor bus on port {self.port!r} is not connected")
        return self._line

    def open(self) -> None:
        """Open the port without talking to a motor."""
        if self._line is not None:
            raise RobotError(
                f"the motor bus on port {self.port!r} is connected already",
                code="robot.already-connected",
            )
        opened = self._opener(self.port, self.baudrate)
        self._line = SerialLine(opened, self.codec, name=self.port)

    def close(self) -> None:
        """Close the port; leave the motors as they are."""
        if self._line is not None:
            line, self._line = self._line, None
            line.port.close()

    def read(self, register: str, motor: str, *, normalize: bool = True, retries: int = 0) -> float:
        """Return one register of one motor; positions in the motor's unit unless not normalised."""
        entry = self._motor(motor).model.register(register)
        request = self.codec.read(self._motor(motor).id, entry.address, entry.size)
        reply = self._ask(request, motor, f"read {register}", retries)
        self._check(motor, reply, f"read {register}")
        return self._decode(motor, entry, reply.data, normalize=normalize)

    def write(
        self,
        register: str,
        motor: str,
        value: float,
        *,
        normalize: bool = True,
        retries: int = 0,
    ) -> None:
        """Write one register of one motor and wait for its confirmation."""
        reply = self.write_despite_alerts(register, motor, value, normalize, retries)
        self._check(motor, reply, f"write {register}")

    def write_despite_alerts(
        self, register: str, motor: str, value: float, normalize: bool, retries: int
    ) -> Reply:
        """Write as ``write`` does; return the confirmation even if it reports an alert."""
        entry = self._motor(motor).model.register(register)
        data = self._encode(motor, entry, value, normalize=normalize)
        request = self.codec.write(self._motor(motor).id, entry.address, data)
        return self._ask(request, motor, f"write {register}", retries)

    def sync_read(
        self,
        register: str,
        motors: Sequence[str] | None = None,
        *,
        normalize: bool = True,
        retries: int = 0,
        raise_alerts: bool = True,
    ) -> dict[str, float]:
        """Return one register of several motors, in the order asked for (default: all)."""
        if motors is not None and not motors:
            return {}
        key = (register, None if motors is None else tuple(motors), normalize)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(*key)
        replies: dict[int, Reply] = {}
        for request in plan.requests:
            replies |= self._ask_all(request, register, retries)
        values: dict[str, float] = {}
        order = self.codec.word_order
        decode, alert = plan.register.decode, None
        for name, reply in zip(plan.names, replies.values(), strict=True):
            ticks = decode(int.from_bytes(reply.data, order))
            values[name] = self._scale(name).to_unit(ticks) if plan.normalised else ticks
            if reply.error or self.alerts:
                alert = self._note_alert(name, reply) or alert
        if alert and raise_alerts:
            raise self._alert_error()
        return values

    def sync_write(
        self, register: str, values: Mapping[str, float] | float, *, normalize: bool = True
    ) -> None:
        """Write one register of several motors in one packet; motors do not confirm it.

        Args:
            register: the register.
            values: motor name -> value, or one value for all motors.
            normalize: positions are in the motors' units.
        """
        wanted = values if isinstance(values, Mapping) else dict.fromkeys(self.motors, values)
        if not wanted:
            return
        entry = self._motor(next(iter(wanted))).model.register(register)
        items = [
            (self._motor(name).id, self._encode(name, entry, value, normalize=normalize))
            for name, value in wanted.items()
        ]
        self.line.send(self.codec.sync_write(entry.address, entry.size, items))

    # Calibration and units

    @property
    def calibration(self) -> dict[str, MotorCalibration]:
        """Calibration used for units; setting it does not write to the motors."""
        return self._calibration

    @calibration.setter
    def calibration(self, calibration: Calibration) -> None:
        self._calibration = dict(calibration)
        self._scales.clear()

    def _scale(self, name: str) -> PositionScale:
        scale = self._scales.get(name)
        if scale is None:
            if name not in self._calibration:
                raise RobotError(
                    f"{name} is not calibrated; run proctor calibrate", code="robot.not-calibrated"
                )
            scale = PositionScale(name, self._motor(name), self._calibration[name])
            self._scales[name] = scale
        return scale

    def _decode(self, name: str, register: Register, data: bytes, *, normalize: bool) -> float:
        value = register.decode(int.from_bytes(data, self.codec.word_order))
        if normalize and register.name in NORMALISED_REGISTERS:
            return self._scale(name).to_unit(value)
        return value

    def _encode(self, name: str, register: Register, value: float, *, normalize: bool) -> bytes:
        if not math.isfinite(value):
            raise UsageError(
                f"{register.name} of {name} cannot be set to {value}", code="robot.not-finite"
            )
        if normalize and register.name in NORMALISED_REGISTERS:
            value = self._scale(name).to_ticks(value)
        return register.encode(int(value)).to_bytes(register.size, self.codec.word_order)

    # Helpers

    def _plan(self, register: str, motors: tuple[str, ...] | None, normalize: bool) -> _ReadPlan:
        names = tuple(self.motors) if motors is None else motors
        ids = [self._motor(name).id for name in names]
        entry = self._motor(names[0]).model.register(register)  # one protocol has one table
        requests: Iterable[Request]
        if self.protocol is BusProtocol.FEETECH_SCS:
            requests = (self.codec.read(one, entry.address, entry.size) for one in ids)
        else:
            requests = (self.codec.sync_read(entry.address, entry.size, ids),)
        normalised = normalize and register in NORMALISED_REGISTERS
        return _ReadPlan(names, entry, tuple(requests), normalised)

    def _ask(self, request: Request, name: str, what: str, retries: int) -> Reply:
        """Return the only reply to a request; send writes even to a motor that is out of step."""
        writes = request.data_size == 0
        for attempt in range(retries + 1):
            self.retries += attempt > 0
            replies = self.line.exchange(request, send_to_suspects=writes)
            if replies:
                return replies[request.ids[0]]
        raise self._no_reply(what, [name], retries + 1)

    def _ask_all(self, request: Request, register: str, retries: int) -> dict[int, Reply]:
        """Return the replies to a sync read, in the order of its ids."""
        for attempt in range(retries + 1):
            self.retries += attempt > 0
            replies = self.line.exchange(request)
            if len(replies) == len(request.ids):
                return {motor_id: replies[motor_id] for motor_id in request.ids}
        missing = [self._names[motor_id] for motor_id in request.ids if motor_id not in replies]
        raise self._no_reply(f"read {register}", missing, retries + 1)

    def _no_reply(self, what: str, names: Sequence[str], attempts: int) -> BusError:
        tries = f"{attempts} attempts" if attempts > 1 else "1 attempt"
        return BusError(
            f"cannot {what}: no valid reply from {self._listed(names)} on port {self.port!r} "
            f"after {tries}; check the cables and the power",
            code="robot.no-reply",
        )

    def _listed(self, names: Iterable[str]) -> str:
        return ", ".join(f"{name} (id {self.motors[name].id})" for name in names)

    def _check(self, name: str, reply: Reply, what: str) -> None:
        """Raise BusError if a reply reports an alert or a refusal."""
        self._check_refusal(name, reply, what)
        if self._note_alert(name, reply):
            raise self._alert_error()

    def _check_refusal(self, name: str, reply: Reply, what: str) -> None:
        if refusal := self.codec.refusal(reply.error):
            raise BusError(
                f"{self._listed([name])} refused to {what}: {refusal}", code="robot.motor-refused"
            )

    def _note_alert(self, name: str, reply: Reply) -> str:
        """Keep or clear the alert of a motor; return its text."""
        alert = self.codec.alert(reply.error)
        if not alert:
            self.alerts.pop(name, None)
        elif name not in self.alerts or self.protocol is not BusProtocol.DYNAMIXEL:
            self.alerts[name] = self._hardware_error(name) or alert
        return alert

    def _hardware_error(self, name: str) -> str:
        """Ask a Dynamixel motor for the cause of its alert; empty if it does not tell."""
        if self.protocol is not BusProtocol.DYNAMIXEL:
            return ""
        entry = self._motor(name).model.register("Hardware_Error_Status")
        request = self.codec.read(self._motor(name).id, entry.address, entry.size)
        reply = self.line.exchange(request).get(self._motor(name).id)
        bits = reply.data[0] if reply is not None and reply.data else 0
        return " and ".join(text for bit, text in _HARDWARE_ERRORS.items() if bits & bit)

    def _alert_error(self) -> BusError:
        found = "; ".join(
            f"{self._listed([name])} reports {alert}" for name, alert in self.alerts.items()
        )
        return BusError(
            f"{found}: relieve the joint, then switch its power off and on",
            code="robot.motor-alert",
        )

    def _motor(self, name: str) -> Motor:
        try:
            return self.motors[name]
        except KeyError:
            raise UsageError(
                f"there is no motor {name!r} (choose {', '.join(self.motors)})",
                code="robot.unknown-motor",
            ) from None


def _common_protocol(motors: Mapping[str, Motor]) -> BusProtocol:
    ids = [motor.id for motor in motors.values()]
    if twice := sorted({one for one in ids if ids.count(one) > 1}):
        raise UsageError(f"several motors have the id {twice[0]}", code="robot.duplicate-id")
    protocols = {motor.model.protocol for motor in motors.values()}
    if len(protocols) != 1:
        raise UsageError(
            "the motors of one bus must have one protocol, not "
            + (" and ".join(sorted(one.value for one in protocols)) or "none"),
            code="robot.mixed-protocols",
        )
    return protocols.pop()
