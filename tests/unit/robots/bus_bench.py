"""A motor bus on emulated servos of either protocol, for tests."""

from __future__ import annotations

from dataclasses import dataclass

from proctor.robots.base import Unit
from proctor.robots.buses.motor_bus import MotorBus
from proctor.robots.buses.ports import SerialPort
from proctor.robots.buses.registers import Motor
from proctor.robots.emulation.dynamixel_servo import DynamixelServo
from proctor.robots.emulation.emulated_bus import EmulatedBus, EmulatedPort
from proctor.robots.emulation.feetech_servo import FeetechServo
from proctor.robots.emulation.servo import Motion, Servo

NAMES = ("shoulder", "elbow", "wrist")
MODELS = {"feetech": "sts3215", "dynamixel": "xl330-m288"}


@dataclass
class Bench:
    """A driver's bus and the emulated motors behind it."""

    bus: MotorBus
    emulated: EmulatedBus
    port: EmulatedPort | None = None
    """The port that was opened last."""

    @property
    def servos(self) -> list[Servo]:
        return self.emulated.servos

    def move(self, ticks: int) -> None:
        """Put every encoder at ``ticks``."""
        for servo in self.servos:
            servo.observe(Motion(ticks))

    def positions(self, **options: int) -> dict[str, float]:
        return self.bus.sync_read("Present_Position", normalize=False, **options)

    def torque(self) -> list[bool]:
        return [servo.torque_is_on for servo in self.servos]


def make_bench(protocol: str, servos: list[Servo] | None = None) -> Bench:
    """Return a bus of three motors with ids 1 to 3; it is not connected."""
    if servos is None:
        servos = [new_servo(protocol, motor_id) for motor_id in (1, 2, 3)]
    motors = {
        name: Motor(number, MODELS[protocol], Unit.DEGREES)
        for number, name in enumerate(NAMES, start=1)
    }
    emulated = EmulatedBus(servos)

    def opener(name: str, baudrate: int) -> SerialPort:
        bench.port = EmulatedPort(emulated, baudrate)
        return bench.port

    bench = Bench(MotorBus("emulated", motors, opener=opener), emulated)
    return bench


def new_servo(protocol: str, motor_id: int) -> Servo:
    """Return a servo at 1 Mbaud."""
    if protocol == "feetech":
        return FeetechServo(motor_id)
    servo = DynamixelServo(motor_id)
    servo.store(servo.baud_register, servo.bauds.index(1_000_000))
    return servo
