"""The calibration dialogue of an SO-101 with a scripted person."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from proctor.errors import BusError, ProctorWarning, RobotError, UsageError
from proctor.robots.arms.serial_arm import calibration_path
from proctor.robots.arms.so import SoFollower, SoFollowerConfig, SoLeader, SoLeaderConfig
from proctor.robots.emulation.emulated_bus import EmulatedBus, Fault, FaultKind
from tests.unit.robots.arm_bench import ScriptedOperator, move_to, plug_in, so_bus

MIDDLE = (1500, 2500, 3100, 700, 2047, 1800)


def arm_on(bus: EmulatedBus, folder: Path) -> SoFollower:
    return SoFollower(SoFollowerConfig(port=plug_in(bus), id="arm", calibration_dir=folder))


def sweep(bus: EmulatedBus, *amounts: int) -> list[Callable[[], None]]:
    """Return moves of all joints, each by the same amount from where they are."""

    def move(amount: int) -> Callable[[], None]:
        def everything() -> None:
            for servo in bus.servos:
                move_to(servo, (servo.motion.ticks + amount) % 4096)

        return everything

    return [move(amount) for amount in amounts]


def read_file(folder: Path) -> dict[str, dict[str, int]]:
    content: dict[str, dict[str, int]] = json.loads((folder / "arm.json").read_text())
    return content


def test_a_new_arm_is_calibrated_at_connect(tmp_path: Path) -> None:
    bus = so_bus(MIDDLE)
    arm = arm_on(bus, tmp_path)
    person = ScriptedOperator([""], sweep(bus, 500, -900, 100))
    arm.connect(person)
    file = read_file(tmp_path)
    assert list(file) == list(arm.bus.motors)
    assert file["shoulder_pan"] == {
        "id": 1,
        "drive_mode": 0,
        "homing_offset": 1500 - 2047,
        "range_min": 2047 - 400,
        "range_max": 2047 + 500,
    }
    assert file["wrist_roll"]["range_min"] == 0
    assert file["wrist_roll"]["range_max"] == 4095
    assert person.tables == 4
    assert arm.is_calibrated
    arm.disconnect()
    for servo in bus.servos:
        servo.power_cycle()
    arm.connect()
    assert arm.get_observation()["shoulder_pan.pos"] == pytest.approx(-350 * 360 / 4095, abs=0.05)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: "",
        lambda file: "[" * 100_000,
        lambda file: json.dumps({name: file[name] for name in file if name != "gripper"}),
        lambda file: json.dumps(file | {"gripper": file["gripper"] | {"range_min": 4000}}),
        lambda file: json.dumps(file | {"gripper": file["gripper"] | {"drive_mode": 7}}),
    ],
)
def test_a_damaged_file_is_refused_and_a_calibration_replaces_it(
    tmp_path: Path, damage: Callable[[dict[str, dict[str, int]]], str]
) -> None:
    bus = so_bus(MIDDLE)
    arm = arm_on(bus, tmp_path)
    arm.connect(ScriptedOperator([""], sweep(bus, 500, -900, 100)))
    arm.disconnect()
    good = read_file(tmp_path)
    (tmp_path / "arm.json").write_text(damage(good))
    with pytest.raises(UsageError) as refused:
        arm_on(bus, tmp_path).connect()
    assert refused.value.code == "robot.calibration-invalid"
    arm_on(bus, tmp_path).calibrate(ScriptedOperator([""], sweep(bus, 500, -900, 100)))
    assert set(read_file(tmp_path)) == set(good)


def test_a_range_across_the_encoders_end_is_unwrapped(tmp_path: Path) -> None:
    bus = so_bus((4095, 0, 100, 4000, 2047, 2048))
    person = ScriptedOperator([""], sweep(bus, 800, -800, -800))
    arm_on(bus, tmp_path).connect(person)
    for name, entry in read_file(tmp_path).items():
        if name != "wrist_roll":
            assert entry["range_max"] - entry["range_min"] == 1600, name
            assert 0 <= entry["range_min"] < entry["range_max"] <= 4095
            assert abs(entry["homing_offset"]) <= 2047


def test_a_pose_far_from_the_middle_still_gives_the_true_range(tmp_path: Path) -> None:
    bus = so_bus((2047,) * 6)
    person = ScriptedOperator([""], sweep(bus, *[800] * 4, *[-800] * 4))
    arm = arm_on(bus, tmp_path)
    arm.connect(person)
    for name, entry in read_file(tmp_path).items():
        if name != "wrist_roll":
            assert entry["range_max"] - entry["range_min"] == 3200, name
            assert 0 <= entry["range_min"] < entry["range_max"] <= 4095
    assert arm.get_observation()["gripper.pos"] == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize(
    ("amounts", "code"),
    [((), "robot.range-empty"), ((1500, 1500, 1500), "robot.range-too-wide")],
)
def test_a_failed_calibration_keeps_the_old_file_and_the_old_registers(
    tmp_path: Path, amounts: tuple[int, ...], code: str
) -> None:
    bus = so_bus(MIDDLE)
    arm = arm_on(bus, tmp_path)
    arm.calibrate(ScriptedOperator([""], sweep(bus, 300, -500)))
    before = (tmp_path / "arm.json").read_text()
    registers = [bytes(servo.memory[9:33]) for servo in bus.servos]
    with pytest.raises(RobotError) as failed:
        arm.calibrate(ScriptedOperator(["c", ""], sweep(bus, *amounts)))
    assert failed.value.code == code
    assert (tmp_path / "arm.json").read_text() == before
    assert [bytes(servo.memory[9:33]) for servo in bus.servos] == registers
    assert not arm.is_connected


def test_a_motor_that_fails_while_the_values_are_written_keeps_the_old_ones(
    tmp_path: Path,
) -> None:
    bus = so_bus(MIDDLE)
    arm = arm_on(bus, tmp_path)
    arm.calibrate(ScriptedOperator([""], sweep(bus, 300, -500)))
    before = (tmp_path / "arm.json").read_text()
    registers = [bytes(servo.memory[9:33]) for servo in bus.servos[:5]]

    def burn() -> None:
        bus.inject(Fault(FaultKind.DROP, motor_id=6, skip=7, count=None))

    person = ScriptedOperator(["c", ""], [*sweep(bus, 700, -900), burn])
    with pytest.raises(BusError), pytest.warns(ProctorWarning, match="gripper"):
        arm.calibrate(person)
    assert (tmp_path / "arm.json").read_text() == before
    assert [bytes(servo.memory[9:33]) for servo in bus.servos[:5]] == registers


def test_calibrating_again_starts_from_the_encoder_whatever_the_motors_hold(
    tmp_path: Path,
) -> None:
    bus = so_bus(MIDDLE)
    arm = arm_on(bus, tmp_path)
    arm.calibrate(ScriptedOperator([""], sweep(bus, 300, -600, 300)))
    first = read_file(tmp_path)
    arm.calibrate(ScriptedOperator(["c", ""], sweep(bus, 300, -600, 300)))
    assert read_file(tmp_path) == first


def test_an_empty_answer_uses_the_file(tmp_path: Path) -> None:
    bus = so_bus(MIDDLE)
    arm = arm_on(bus, tmp_path)
    arm.calibrate(ScriptedOperator([""], sweep(bus, 300, -500)))
    for servo in bus.servos:
        servo.store(servo.offset_register, 0)
    person = ScriptedOperator([""])
    arm.calibrate(person)
    assert len(person.asked) == 1
    assert bus.servos[0].homing_offset == 1500 - 2047


def test_a_file_of_another_arm_is_refused(tmp_path: Path) -> None:
    (tmp_path / "arm.json").write_text("{}")
    with pytest.raises(UsageError) as refused:
        arm_on(so_bus(), tmp_path).connect()
    assert refused.value.code == "robot.calibration-invalid"


def test_files_are_where_lerobot_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_LEROBOT_CALIBRATION", raising=False)
    bus = so_bus()
    arm = SoFollower(SoFollowerConfig(port=plug_in(bus), id="left"))
    home = tmp_path / "home" / "calibration"
    assert arm.calibration_file == home / "robots" / "so_follower" / "left.json"
    monkeypatch.setenv("HF_LEROBOT_CALIBRATION", str(tmp_path / "c"))
    leader = SoLeader(SoLeaderConfig(port=plug_in(bus)))
    assert leader.calibration_file == tmp_path / "c" / "teleoperators" / "so_leader" / "None.json"
    config = SoLeaderConfig(port="x", id="a", calibration_dir=tmp_path)
    assert calibration_path(config, "robots", "so_follower") == tmp_path / "a.json"
