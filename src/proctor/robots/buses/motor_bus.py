"""MotorBus: connect, torque, configuration, calibration and set-up of motors on one port."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from proctor.errors import BusError, RobotError
from proctor.robots.buses import identification, motor_setup
from proctor.robots.buses.calibration import (
    Calibration,
    MotorCalibration,
    differences,
)
from proctor.robots.buses.register_bus import RegisterBus
from proctor.robots.buses.registers import BusProtocol

TORQUE_OFF_RETRIES = 5
_MULTI_TURN_PHASE = 0x10
"""Phase bit of an sts3215 that lets positions leave 0 to 4095."""


class MotorBus(RegisterBus):
    """Motors on one serial port."""

    def connect(self, *, handshake: bool = True) -> None:
        """Open the port and check every motor's model and firmware."""
        self.open()
        if handshake:
            try:
                self.check_motors()
            except BaseException:
                self.close()
                raise

    def check_motors(self) -> None:
        """Raise BusError unless every motor answers with the expected model and firmware."""
        identification.check_motors(self)

    def disconnect(self, *, disable_torque: bool = True) -> None:
        """Switch torque off on every motor that answers, and close the port in any case."""
        if self._line is None:
            return
        try:
            if disable_torque:
                self.disable_torque()
        finally:
            self.close()

    def ping(self, motor: str | int, *, retries: int = 0) -> int | None:
        """Return the model number of a motor (by name or id), or None if it does not answer."""
        motor_id = motor if isinstance(motor, int) else self._motor(motor).id
        found = identification.identify(self.line, self.protocol, motor_id, retries)
        return None if found is None else found.model_number

    def broadcast_ping(self) -> dict[int, int]:
        """Return the model number of every motor that answers, by id; takes most of a second."""
        return motor_setup.broadcast_ping(self.line, self.protocol)

    def set_up_motor(self, motor: str) -> bool:
        """Give the only motor on the bus the id and baud rate of ``motor``.

        The bus must be open (``connect(handshake=False)``).

        Returns:
            Whether something was written; False if the motor is set up already.
        """
        return motor_setup.set_up_motor(self, motor)

    # Torque

    def disable_torque(
        self, motors: Sequence[str] | None = None, *, retries: int = TORQUE_OFF_RETRIES
    ) -> None:
        """Switch torque off and unlock the EEPROM of every motor; a failure skips no motor.

        One packet to all motors comes first, so a motor that cannot answer is switched off too.
        Then each motor gets its own request, with retries.
        """
        names = list(self.motors) if motors is None else list(motors)
        if len(names) > 1:
            self.sync_write("Torque_Enable", dict.fromkeys(names, 0))
        failed = {}
        for name in names:
            try:
                self._set_torque(name, on=False, retries=retries)
            except BusError as error:
                failed[name] = error
        if failed:
            raise BusError(
                f"torque-off was sent to every motor, but {self._listed(failed)} did not confirm "
                f"it ({next(iter(failed.values()))}); cut the power if a joint is still stiff",
                code="robot.torque-off-unconfirmed",
            )

    def enable_torque(self, motors: Sequence[str] | None = None, *, retries: int = 0) -> None:
        """Switch torque on and lock the EEPROM, motor by motor."""
        for name in self.motors if motors is None else motors:
            self._set_torque(name, on=True, retries=retries)
            if name in self.alerts:
                raise self._alert_error()

    @contextlib.contextmanager
    def torque_disabled(self, motors: Sequence[str] | None = None) -> Iterator[None]:
        """Switch torque off inside a ``with`` block and on again after it, also after an error."""
        self.disable_torque(motors)
        try:
            yield
        finally:
            self.enable_torque(motors)

    def _set_torque(self, name: str, *, on: bool, retries: int) -> None:
        registers = ["Torque_Enable"] + ["Lock"] * ("Lock" in self._motor(name).model.table)
        failure = None
        for register in registers:
            try:
                tries = retries if failure is None else 0
                reply = self.write_despite_alerts(register, name, int(on), False, tries)
                self._note_alert(name, reply)
                self._check_refusal(name, reply, f"write {register}")
            except BusError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    # Configuration and calibration

    def configure_motors(self) -> None:
        """Set what every arm needs: no reply delay, full acceleration, single-turn positions."""
        for name, motor in self.motors.items():
            self.write("Return_Delay_Time", name, 0, retries=2)
            if self.protocol is BusProtocol.DYNAMIXEL:
                continue
            if "Maximum_Acceleration" in motor.model.table:
                self.write("Maximum_Acceleration", name, 254, retries=2)
            self.write("Acceleration", name, 254, retries=2)
            if motor.model_name == "sts3215":
                phase = int(self.read("Phase", name, retries=2))
                if phase & _MULTI_TURN_PHASE:
                    self.write("Phase", name, phase & ~_MULTI_TURN_PHASE, retries=2)

    def read_calibration(self) -> dict[str, MotorCalibration]:
        """Return the calibration that the motors hold."""
        if self.protocol is BusProtocol.DYNAMIXEL:
            registers = ("Homing_Offset", "Min_Position_Limit", "Max_Position_Limit", "Drive_Mode")
            columns = [self.sync_read(register, retries=2) for register in registers]
            return {
                name: MotorCalibration(
                    motor.id, int(drive[name]), int(offset[name]), int(low[name]), int(high[name])
                )
                for name, motor in self.motors.items()
                for offset, low, high, drive in [columns]
            }
        return {name: self._read_feetech_calibration(name) for name in self.motors}

    def _read_feetech_calibration(self, name: str) -> MotorCalibration:
        low = int(self.read("Min_Position_Limit", name, retries=2))
        high = int(self.read("Max_Position_Limit", name, retries=2))
        offset = 0
        if "Homing_Offset" in self._motor(name).model.table:
            offset = int(self.read("Homing_Offset", name, retries=2))
        return MotorCalibration(self._motor(name).id, 0, offset, low, high)

    def calibration_differences(self) -> list[str]:
        """Describe where the motors' calibration differs from ``calibration``."""
        stored = self.read_calibration()
        return differences(
            self.calibration, stored, drive_mode=self.protocol is BusProtocol.DYNAMIXEL
        )

    @property
    def is_calibrated(self) -> bool:
        """Whether every motor holds its calibration; asks the motors."""
        return not self.calibration_differences()

    def write_calibration(self, calibration: Calibration) -> None:
        """Write a calibration to the motors and read it back; torque goes off and stays off.

        The EEPROM is unlocked for the write and locked after it. If anything fails, the old values
        are written back as far as the motors answer, and ``calibration`` is unchanged.
        """
        old = self.read_calibration()
        names = [name for name in self.motors if name in calibration]
        self.disable_torque(names)
        try:
            for name in names:
                self._write_entry(name, calibration[name])
            held = {name: entry for name, entry in self.read_calibration().items() if name in names}
            if wrong := differences(calibration, held, drive_mode=False):
                raise BusError(
                    f"the motors did not keep the calibration: {'; '.join(wrong)}",
                    code="robot.calibration-not-kept",
                )
        except BaseException:
            for name in names:
                with contextlib.suppress(RobotError):
                    self._write_entry(name, old[name])
            raise
        self.calibration = {**self.calibration, **calibration}

    def _write_entry(self, name: str, entry: MotorCalibration) -> None:
        table = self._motor(name).model.table
        if "Homing_Offset" in table:
            self.write("Homing_Offset", name, entry.homing_offset, retries=2)
        self.write("Min_Position_Limit", name, entry.range_min, retries=2)
        self.write("Max_Position_Limit", name, entry.range_max, retries=2)
        if "Lock" in table:
            self.write("Lock", name, 1, retries=2)
