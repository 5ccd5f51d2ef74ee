"""What arms on a serial motor bus share: connection, calibration, alerts, set-up, safe end."""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar, Protocol

from proctor.datasets.source import lerobot_home
from proctor.errors import ProctorWarning, RobotError, UsageError
from proctor.robots.arms.calibration_dialogue import CalibrationPlan, measure_calibration
from proctor.robots.base import (
    Clock,
    Device,
    DeviceHealth,
    GuardTarget,
    Operator,
    RealClock,
    Unit,
)
from proctor.robots.buses.calibration import (
    INVALID_FILE,
    Calibration,
    MotorCalibration,
    load_calibration,
    save_calibration,
)
from proctor.robots.buses.motor_bus import MotorBus
from proctor.robots.buses.ports import is_emulated
from proctor.robots.buses.registers import Motor
from proctor.robots.torque_guard import TorqueGuard

RETRIES = 2
"""Of writes while an arm is configured."""
TOLERATED_ALERTS = ("input voltage",)
"""Alerts that are a warning while the arm moves. The supply sags under load, and the motor goes on
driving: its factory setting unloads it for overload, current and heat only. ``connect`` still
refuses a motor with this alert, because the supply is then the wrong one."""


class ArmConfig(Protocol):
    """Fields of a config that every arm uses."""

    id: str | None
    calibration_dir: Path | None
    port: str


def is_simulated(port: str) -> bool:
    """Return whether ``port`` names a simulated arm inside this process."""
    return port.partition(":")[0] == "sim"


def calibration_path(config: ArmConfig, kind: str, name: str) -> Path:
    """Return where LeRobot keeps a device's calibration; ``kind``: robots or teleoperators."""
    file = f"{config.id}.json"
    if config.calibration_dir is not None:
        return config.calibration_dir / file
    home = os.environ.get("HF_LEROBOT_CALIBRATION")
    folder = Path(home).expanduser() if home else lerobot_home() / "calibration"
    return folder / kind / name / file


class SerialArm(Device):
    """An arm whose motors are on one serial bus."""

    calibration_kind: ClassVar[str]
    """Folder of its calibration file: "robots" or "teleoperators"."""
    full_turn_joints: ClassVar[tuple[str, ...]] = ("wrist_roll",)
    drive_modes: ClassVar[Mapping[str, int]] = {}

    def __init__(self, config: ArmConfig, motors: Mapping[str, Motor]) -> None:
        self.port, self.clock = _port_and_clock(config.port, self.name)
        self.bus = MotorBus(self.port, motors)
        self.calibration_file = calibration_path(config, self.calibration_kind, self.name)
        self._label = f"{config.id} {self.name}" if config.id else self.name
        self._guard: TorqueGuard | None = None
        self._warned: set[str] = set()

    # What a kind of arm defines

    @abstractmethod
    def _configure(self) -> None:
        """Set the motors up after each connection; torque is off and the EEPROM unlocked."""

    @abstractmethod
    def _prepare_calibration(self) -> None:
        """Set the operating mode in which positions are recorded; torque is off."""

    @property
    def _joints(self) -> tuple[str, ...]:
        """Motors with positions."""
        return tuple(self.bus.motors)

    # Connection

    @property
    def is_connected(self) -> bool:
        """Whether the port is open."""
        return self.bus.is_connected

    @property
    def action_features(self) -> Mapping[str, Unit]:
        """The channel ``<motor>.pos`` of each joint."""
        return {f"{name}.pos": self.bus.motors[name].unit for name in self._joints}

    def connect(self, operator: Operator | None = None) -> None:
        """Open the port, check calibration and motors, start the torque guard and configure."""
        self.bus.connect()
        self._warned.clear()
        try:
            self._settle_calibration(operator)
            self._connect_more()
            self.bus.disable_torque()
            self._configure()
        except BaseException:
            self._abandon()
            raise

    def _connect_more(self) -> None:
        """Open what belongs to the arm besides its bus, before torque goes on."""

    def _abandon(self) -> None:
        """Undo a failed ``connect``; its own failures would hide the first one."""
        try:
            self.disconnect()
        except RobotError as second:
            warnings.warn(f"{self._label}: {second}", ProctorWarning, stacklevel=2)

    def disconnect(self) -> None:
        """Switch off every motor that answers, close the port and end the guard."""
        self._disconnect(torque_off=True)

    def _disconnect(self, *, torque_off: bool) -> None:
        if not self.bus.is_connected:
            return
        failed = True
        try:
            self.bus.disconnect(disable_torque=torque_off)
            failed = False
        finally:
            guard, self._guard = self._guard, None
            if guard is not None and failed:
                guard.trigger()  # the port is closed: it goes on trying
            elif guard is not None:
                guard.release()

    # Torque

    def guard_targets(self) -> Sequence[GuardTarget]:
        """Return the motors on the port; none for an emulated one, which ends with the process."""
        if is_emulated(self.port):
            return ()
        ids = tuple(motor.id for motor in self.bus.motors.values())
        return (GuardTarget(self.port, self.bus.protocol.value, self.bus.baudrate, ids),)

    def _torque_on(self, motors: Sequence[str] | None = None) -> None:
        """Start the guard, let the motors hold their present positions and switch torque on.

        A motor keeps its last goal while it is off and would jump there.
        """
        if self._guard is None and (targets := self.guard_targets()):
            self._guard = TorqueGuard(targets)
        names = list(self._joints if motors is None else motors)
        joints = [name for name in names if name in self._joints]
        here = self.bus.sync_read("Present_Position", joints, normalize=False, retries=RETRIES)
        self.bus.sync_write("Goal_Position", here, normalize=False)
        self.bus.enable_torque(motors, retries=RETRIES)

    def _check_guard(self) -> None:
        """Raise RobotError if the torque guard is gone; the motors are off then."""
        if self._guard is not None and self._guard.loss:
            self._guard.settle()
            raise RobotError(f"{self._label}: {self._guard.loss}", code="robot.guard-lost")

    def _lock(self) -> None:
        """Protect the EEPROM of motors whose torque stays off."""
        for name, motor in self.bus.motors.items():
            if "Lock" in motor.model.table:
                self.bus.write("Lock", name, 1, retries=RETRIES)

    # Reading

    def _read(
        self, register: str, motors: Sequence[str] | None = None, retries: int = 0
    ) -> dict[str, float]:
        """Read a register of several motors and check their alerts."""
        self._check_guard()
        values = self.bus.sync_read(register, motors, retries=retries, raise_alerts=False)
        if self.bus.alerts:
            self._judge_alerts()
        return values

    def _judge_alerts(self) -> None:
        for motor, alert in self.bus.alerts.items():
            causes = [cause for cause in alert.split(" and ") if cause not in TOLERATED_ALERTS]
            if causes:
                raise RobotError(
                    f"{self._label}: {motor} reports {alert}; relieve the joint, let it cool, "
                    "then switch its power off and on",
                    code="robot.motor-alert",
                )
            if motor not in self._warned:
                self._warned.add(motor)
                warnings.warn(f"{self._label}: {motor} reports {alert}", ProctorWarning, 3)

    def health(self) -> DeviceHealth:
        """Return the counts of the bus since ``connect``."""
        if not self.bus.is_connected:
            return DeviceHealth(alerts=dict(self.bus.alerts))
        counts = self.bus.line.statistics
        names = {motor.id: name for name, motor in self.bus.motors.items()}
        return DeviceHealth(
            requests=counts.requests,
            retries=self.bus.retries,
            lost_replies={names[motor_id]: lost for motor_id, lost in counts.lost.items()},
            alerts=dict(self.bus.alerts),
        )

    # Calibration

    @property
    def is_calibrated(self) -> bool:
        """Whether the motors hold the calibration of the file; asks the motors."""
        return self.bus.is_calibrated

    def calibration_values(self) -> Mapping[str, Mapping[str, int]]:
        """Return the calibration of every motor."""
        return {name: asdict(values) for name, values in self.bus.calibration.items()}

    def _settle_calibration(self, operator: Operator | None) -> None:
        """Load the calibration and make the motors hold it."""
        if is_simulated(self.port):
            self._settle_simulated()
            return
        self.bus.calibration = self._load()
        if not self.bus.calibration:
            problem = f"there is no calibration file {self.calibration_file}"
        elif wrong := self.bus.calibration_differences():
            problem = f"file and motors differ: {wrong[0]}" + (
                f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            )
        else:
            return
        if operator is None:
            raise RobotError(
                f"{self._label} is not calibrated: {problem}; run: proctor calibrate",
                code="robot.not-calibrated",
            )
        operator.tell(f"{self._label}: {problem}")
        self._calibrate(operator)

    def _settle_simulated(self) -> None:
        """Use the file if there is one, else the calibration that the simulated motors hold."""
        held = self.bus.read_calibration()
        self.bus.calibration = self._load() or held
        if self.bus.calibration_differences():
            self._write_calibration(self.bus.calibration)

    def _load(self) -> dict[str, MotorCalibration]:
        """Return the calibration of the file; empty if there is no file."""
        if not self.calibration_file.exists():
            return {}
        found = load_calibration(self.calibration_file)
        if missing := [name for name in self.bus.motors if name not in found]:
            raise UsageError(
                f"{self.calibration_file} has no calibration of {', '.join(missing)}; "
                "run proctor calibrate",
                code=INVALID_FILE,
            )
        for name, motor in self.bus.motors.items():
            if found[name].id != motor.id:
                raise UsageError(
                    f"{self.calibration_file} is of another arm: its {name} has the id "
                    f"{found[name].id}, this one has {motor.id}; choose another id or run "
                    "proctor calibrate",
                    code=INVALID_FILE,
                )
        return {name: found[name] for name in self.bus.motors}

    def calibrate(self, operator: Operator) -> None:
        """Calibrate with a person's help; an arm that is not connected is opened for it."""
        if self.bus.is_connected:
            self._calibrate(operator)
            return
        self.bus.connect()
        try:
            self.bus.calibration = self._load_for_calibration(operator)
            self._calibrate(operator)
        except BaseException:
            self._abandon()
            raise
        self.disconnect()

    def _load_for_calibration(self, operator: Operator) -> dict[str, MotorCalibration]:
        """Return the calibration of the file; of a damaged file nothing, so it is measured anew."""
        try:
            return self._load()
        except UsageError as error:
            if error.code != INVALID_FILE:
                raise
            operator.tell(f"{error.args[0]}. This calibration replaces the file.")
            return {}

    def _calibrate(self, operator: Operator) -> None:
        if self.bus.calibration and self._uses_file(operator):
            self._write_calibration(self.bus.calibration)
            return
        self.bus.disable_torque()
        self._prepare_calibration()
        plan = CalibrationPlan(self._label, self._joints, self.full_turn_joints, self.drive_modes)
        person = _simulated_person(self.port, operator) if is_simulated(self.port) else operator
        calibration = measure_calibration(self.bus, plan, person, self.clock)
        self._write_calibration(calibration)
        save_calibration(self.calibration_file, calibration)
        operator.tell(f"Calibration saved to {self.calibration_file}")

    def _write_calibration(self, calibration: Calibration) -> None:
        """Write a complete calibration to the motors, or leave the old one."""
        self.bus.disable_torque()
        old = self.bus.read_calibration()
        try:
            self._write_drive_modes(calibration)
            self.bus.write_calibration(calibration)
        except BaseException:
            self._write_drive_modes(old)
            raise

    def _write_drive_modes(self, calibration: Calibration) -> None:
        """Set the direction of motors that have a register for it, as Dynamixel motors do."""
        for name, entry in calibration.items():
            if "Drive_Mode" in self.bus.motors[name].model.table:
                self.bus.write("Drive_Mode", name, entry.drive_mode, retries=RETRIES)

    def _uses_file(self, operator: Operator) -> bool:
        answer = operator.ask(
            f"{self.calibration_file} has a calibration: Enter writes it to the motors, c and "
            "Enter measures a new one: "
        )
        return answer.strip().lower() != "c"

    # Motor set-up

    def set_up_motors(self, operator: Operator) -> None:
        """Give every motor its id and baud rate, from the last one to the first."""
        for name in reversed(self.bus.motors):
            while not self._set_up_motor(name, operator):
                pass

    def _set_up_motor(self, name: str, operator: Operator) -> bool:
        """Ask for one motor and set it up; return False after a failure, which is shown.

        The port is open for this motor only: people unplug the board between two motors.
        """
        answer = operator.ask(
            f"Leave only the motor of {name} on the bus, then press Enter (s and Enter skips it): "
        )
        if answer.strip().lower() == "s":
            return True
        try:
            self.bus.open()
            written = self.bus.set_up_motor(name)
        except RobotError as failed:
            operator.tell(str(failed))
            return False
        finally:
            self.bus.close()
        state = "has now" if written else "already had"
        operator.tell(f"'{name}' motor {state} id {self.bus.motors[name].id}")
        return True


def _port_and_clock(port: str, device: str) -> tuple[str, Clock]:
    """Return the port of a device and its clock; a simulated cell has a port for each device."""
    if not is_simulated(port):
        return port, RealClock()
    from proctor.robots.emulation.cell import cell_for, device_port

    return device_port(port, device), cell_for(port).clock


def _simulated_person(port: str, screen: Operator) -> Operator:
    from proctor.robots.emulation.simulated_operator import SimulatedOperator

    return SimulatedOperator(port, screen)
