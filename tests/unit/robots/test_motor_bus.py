"""Torque, alerts, calibration and set-up of motors on an emulated bus."""

from __future__ import annotations

import sys

import pytest

from proctor.errors import BusError, DeviceNotConnected, MissingExtra, RobotError, UsageError
from proctor.robots.buses.calibration import MotorCalibration
from proctor.robots.buses.motor_setup import scan_port
from proctor.robots.buses.ports import SerialPort, open_port, register_port_opener
from proctor.robots.buses.registers import BusProtocol
from proctor.robots.emulation.emulated_bus import EmulatedPort, Fault, FaultKind
from proctor.robots.emulation.feetech_servo import FeetechServo
from tests.unit.robots.bus_bench import NAMES, make_bench, new_servo

PROTOCOLS = ("feetech", "dynamixel")
OVERLOAD = {"feetech": 0x20, "dynamixel": 0x80}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_motor_goes_off_although_one_is_burnt(protocol: str) -> None:
    bench = make_bench(protocol)
    bench.bus.connect()
    bench.bus.enable_torque()
    bench.emulated.burn(1)
    with pytest.raises(BusError) as error:
        bench.bus.disconnect()
    assert error.value.code == "robot.torque-off-unconfirmed"
    assert "shoulder" in str(error.value)
    assert "elbow" not in str(error.value)
    assert bench.torque()[1:] == [False, False]
    assert not bench.bus.is_connected
    assert bench.port is not None
    assert not bench.port.is_open


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_motors_that_hear_but_cannot_answer_go_off(protocol: str) -> None:
    bench = make_bench(protocol)
    bench.bus.connect()
    bench.bus.enable_torque()
    bench.emulated.inject(Fault(FaultKind.DROP, count=None))
    with pytest.raises(BusError):
        bench.bus.disable_torque()
    assert bench.torque() == [False] * 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_alert_does_not_stop_torque_off(protocol: str) -> None:
    bench = make_bench(protocol)
    bench.bus.connect()
    bench.bus.enable_torque()
    bench.emulated.inject(Fault(FaultKind.ERROR, 1, count=None, error=OVERLOAD[protocol]))
    bench.bus.disable_torque()
    assert bench.torque() == [False] * 3
    assert list(bench.bus.alerts) == ["shoulder"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_alert_is_raised_in_its_cycle_and_named_by_joint(protocol: str) -> None:
    bench = make_bench(protocol)
    bench.bus.connect()
    bench.servos[1].alerts = 0x20
    with pytest.raises(BusError) as error:
        bench.positions()
    assert error.value.code == "robot.motor-alert"
    assert "elbow (id 2) reports overload" in str(error.value)
    assert bench.bus.sync_read("Present_Position", normalize=False, raise_alerts=False)
    assert bench.bus.alerts == {"elbow": "overload"}
    bench.servos[1].alerts = 0
    bench.positions()
    assert bench.bus.alerts == {}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_torque_comes_back_after_an_error_in_the_block(protocol: str) -> None:
    bench = make_bench(protocol)
    bench.bus.connect()
    bench.bus.enable_torque()
    seen = []

    def fail() -> None:
        with bench.bus.torque_disabled(["elbow"]):
            seen.append(bench.torque())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen == [[True, False, True]]
    assert bench.torque() == [True] * 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_failed_handshake_names_the_motor_and_closes_the_port(protocol: str) -> None:
    bench = make_bench(protocol)
    bench.emulated.burn(2)
    with pytest.raises(BusError) as error:
        bench.bus.connect()
    assert error.value.code == "robot.motor-check-failed"
    assert "elbow (id 2) does not answer" in str(error.value)
    assert not bench.bus.is_connected
    assert bench.port is not None
    assert not bench.port.is_open


def test_no_motors_give_no_values() -> None:
    bench = make_bench("feetech")
    bench.bus.connect()
    sent = len(bench.emulated.log)
    assert bench.bus.sync_read("Present_Position", []) == {}
    bench.bus.sync_write("Goal_Position", {})
    assert len(bench.emulated.log) == sent


def test_a_connected_bus_does_not_connect_again() -> None:
    bench = make_bench("feetech")
    bench.bus.connect()
    with pytest.raises(RobotError) as error:
        bench.bus.connect()
    assert error.value.code == "robot.already-connected"


def test_a_bus_that_is_not_connected_cannot_be_read() -> None:
    with pytest.raises(DeviceNotConnected):
        make_bench("feetech").positions()


CALIBRATION = {
    name: MotorCalibration(number, 0, 100 * number, 500, 3000)
    for number, name in enumerate(NAMES, start=1)
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_written_calibration_survives_a_power_cycle(protocol: str) -> None:
    bench = make_bench(protocol)
    bench.bus.connect()
    bench.bus.enable_torque()
    bench.bus.write_calibration(CALIBRATION)
    assert bench.torque() == [False] * 3
    for servo in bench.servos:
        servo.power_cycle()
    assert bench.bus.is_calibrated
    assert bench.bus.read_calibration() == CALIBRATION


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_calibration_that_fails_half_way_leaves_the_old_one(protocol: str) -> None:
    bench = make_bench(protocol)
    bench.bus.connect()
    bench.bus.write_calibration(CALIBRATION)
    other = {
        name: MotorCalibration(entry.id, 0, entry.homing_offset + 7, 600, 2900)
        for name, entry in CALIBRATION.items()
    }
    # The last motor is silent from some moment of the write on.
    bench.emulated.inject(Fault(FaultKind.DROP, 3, skip=7, count=12))
    with pytest.raises(BusError):
        bench.bus.write_calibration(other)
    held = bench.bus.read_calibration()
    assert {name: held[name] for name in NAMES[:2]} == {n: CALIBRATION[n] for n in NAMES[:2]}
    assert bench.bus.calibration == CALIBRATION


def test_a_difference_between_file_and_motor_is_described() -> None:
    bench = make_bench("feetech")
    bench.bus.connect()
    bench.bus.write_calibration(CALIBRATION)
    bench.servos[1].write(31, (1234).to_bytes(2, "little"))
    (text,) = bench.bus.calibration_differences()
    assert "elbow.homing_offset is 1234 in the motor, 200 in the file" in text


def test_positions_need_a_calibration() -> None:
    bench = make_bench("feetech")
    bench.bus.connect()
    with pytest.raises(RobotError) as error:
        bench.bus.sync_read("Present_Position")
    assert error.value.code == "robot.not-calibrated"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_target_that_is_not_finite_is_refused(value: float) -> None:
    bench = make_bench("feetech")
    bench.bus.connect()
    bench.bus.calibration = CALIBRATION
    with pytest.raises(UsageError) as error:
        bench.bus.sync_write("Goal_Position", {"elbow": value})
    assert error.value.code == "robot.not-finite"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_motor_gets_its_id_and_baud_rate_and_is_left_alone_the_second_time(protocol: str) -> None:
    servo = new_servo(protocol, 9)
    servo.store(servo.baud_register, servo.bauds.index(57_600))
    bench = make_bench(protocol, [servo])
    bench.bus.connect(handshake=False)
    assert bench.bus.set_up_motor("elbow")
    servo.power_cycle()
    assert (servo.id, servo.baud) == (2, 1_000_000)
    sent = len(bench.emulated.log)
    assert not bench.bus.set_up_motor("elbow")
    assert len(bench.emulated.log) > sent
    assert (servo.id, servo.baud) == (2, 1_000_000)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("ids", [(1, 2), (9, 1)])
def test_two_motors_on_the_bus_are_refused(protocol: str, ids: tuple[int, int]) -> None:
    servos = [new_servo(protocol, motor_id) for motor_id in ids]
    bench = make_bench(protocol, servos)
    bench.bus.connect(handshake=False)
    with pytest.raises(BusError) as error:
        bench.bus.set_up_motor("wrist")
    assert error.value.code == "robot.several-motors"
    assert tuple(servo.id for servo in servos) == ids


def test_a_set_up_dynamixel_motor_beside_a_new_one_is_not_renamed() -> None:
    done, new = new_servo("dynamixel", 3), new_servo("dynamixel", 1)
    new.store(new.baud_register, new.bauds.index(57_600))
    bench = make_bench("dynamixel", [done, new])
    bench.bus.connect(handshake=False)
    with pytest.raises(BusError) as error:
        bench.bus.set_up_motor("elbow")
    assert error.value.code == "robot.several-motors"
    assert (done.id, new.id) == (3, 1)


def test_a_motor_of_another_model_is_not_set_up() -> None:
    servo = FeetechServo(1, model_number=2825)
    bench = make_bench("feetech", [servo])
    bench.bus.connect(handshake=False)
    with pytest.raises(BusError) as error:
        bench.bus.set_up_motor("wrist")
    assert error.value.code == "robot.wrong-model"
    assert servo.id == 1


def test_an_empty_bus_is_named() -> None:
    bench = make_bench("feetech")
    for servo in bench.servos:
        servo.burnt = True
    bench.bus.connect(handshake=False)
    with pytest.raises(BusError) as error:
        bench.bus.set_up_motor("wrist")
    assert error.value.code == "robot.motor-not-found"
    assert bench.port is not None
    assert bench.port.baudrate == 1_000_000


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_scan_finds_motors_at_every_baud_rate(protocol: str) -> None:
    slow, quick = new_servo(protocol, 7), new_servo(protocol, 2)
    slow.store(slow.baud_register, slow.bauds.index(115_200))
    bench = make_bench(protocol, [slow, quick])
    ports = []

    def opener(name: str, baudrate: int) -> SerialPort:
        ports.append(EmulatedPort(bench.emulated, baudrate))
        return ports[-1]

    found = scan_port("emulated", BusProtocol(protocol), opener)
    number = bench.bus.motors["elbow"].model.number
    assert found == {115_200: {7: number}, 1_000_000: {2: number}}
    assert not ports[0].is_open


def test_a_registered_prefix_opens_its_own_ports() -> None:
    asked = []

    def opener(name: str, baudrate: int) -> SerialPort:
        asked.append((name, baudrate))
        return EmulatedPort(make_bench("feetech").emulated, baudrate)

    register_port_opener("motor-bus-test", opener)
    open_port("motor-bus-test")
    open_port("motor-bus-test:second", 115_200)
    assert asked == [("motor-bus-test", 1_000_000), ("motor-bus-test:second", 115_200)]


def test_a_missing_pyserial_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "serial", None)
    with pytest.raises(MissingExtra):
        open_port("/dev/ttyACM0")


def test_a_motor_of_an_unknown_name_or_register_is_refused() -> None:
    bench = make_bench("feetech")
    bench.bus.connect()
    with pytest.raises(UsageError) as error:
        bench.bus.read("Present_Position", "hand")
    assert error.value.code == "robot.unknown-motor"
    with pytest.raises(UsageError) as error:
        bench.bus.read("Present_Postion", "elbow")
    assert error.value.code == "robot.unknown-register"
