"""Arms on an emulated bus in this process, and operators that follow a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from proctor.robots.buses.ports import SerialPort, register_port_opener
from proctor.robots.emulation.dynamixel_servo import DynamixelServo
from proctor.robots.emulation.emulated_bus import EmulatedBus, EmulatedPort
from proctor.robots.emulation.feetech_servo import FeetechServo
from proctor.robots.emulation.servo import Motion, Servo

_buses: dict[str, EmulatedBus] = {}
_numbers = count()


def _open(name: str, baudrate: int) -> SerialPort:
    return EmulatedPort(_buses[name], baudrate)


register_port_opener("bench", _open)


def plug_in(bus: EmulatedBus) -> str:
    """Return a port name that leads to ``bus``."""
    port = f"bench:{next(_numbers)}"
    _buses[port] = bus
    return port


def so_bus(ticks: Sequence[int] = (2047,) * 6) -> EmulatedBus:
    """Return a bus of factory-new SO arm motors at the given encoder positions."""
    return EmulatedBus([FeetechServo(n, ticks=at) for n, at in enumerate(ticks, start=1)])


def koch_bus(models: Sequence[int], ticks: Sequence[int] = (2047,) * 6) -> EmulatedBus:
    """Return a bus of factory-new Koch arm motors."""
    return EmulatedBus(
        [
            DynamixelServo(n, model_number=model, ticks=at)
            for n, (model, at) in enumerate(zip(models, ticks, strict=True), start=1)
        ]
    )


def torques(bus: EmulatedBus) -> list[bool]:
    """Return whether torque is on, by motor."""
    return [servo.torque_is_on for servo in bus.servos]


def move_to(servo: Servo, ticks: int) -> None:
    """Move a joint by hand."""
    servo.observe(Motion(ticks))


class ScriptedOperator:
    """Gives the next answer to each question and presses Enter when its moves are done."""

    def __init__(self, answers: Sequence[str], moves: Sequence[Callable[[], None]] = ()) -> None:
        self._answers = list(answers)
        self._moves = list(moves)
        self.asked: list[str] = []
        self.told: list[str] = []
        self.tables = 0

    def tell(self, text: str) -> None:
        self.told.append(text)

    def ask(self, text: str) -> str:
        self.asked.append(text)
        return self._answers.pop(0)

    def pressed_enter(self) -> bool:
        if not self._moves:
            return True
        self._moves.pop(0)()
        return False

    def show_table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.tables += 1
