"""The simulated SO-101: servos, torque, placing of objects, and the success rule."""

import numpy as np
import pytest

from proctor.benchmarks.so101.kinematics import JOINT_NAMES, from_unit, joint_frames, to_units
from proctor.benchmarks.so101.world import HOME, So101World

pytest.importorskip("mujoco")


@pytest.fixture(scope="module")
def shared_world() -> So101World:
    return So101World()


@pytest.fixture
def world(shared_world: So101World) -> So101World:
    shared_world.reset(0)
    return shared_world


def test_arm_holds_its_home_pose(world: So101World) -> None:
    world.step(1.0)
    np.testing.assert_allclose(to_units(world.angles()), HOME, atol=0.1)


def test_servo_reaches_its_target(world: So101World) -> None:
    world.set_target("wrist_flex", 0.5)
    world.step(1.0)
    assert world.angles()["wrist_flex"] == pytest.approx(0.5, abs=0.002)


def test_target_is_limited_to_the_range_of_the_joint(world: So101World) -> None:
    world.set_target("elbow_flex", 9.0)
    assert world.targets()["elbow_flex"] == pytest.approx(1.69)


def test_limp_arm_sinks_and_holds_again(world: So101World) -> None:
    before = world.angles()["elbow_flex"]
    for joint in JOINT_NAMES:
        world.set_torque(joint, on=False)
    world.step(0.5)
    sunk = world.angles()["elbow_flex"]
    assert abs(sunk - before) > 0.05
    for joint in JOINT_NAMES:
        world.set_torque(joint, on=True)
    world.step(0.5)
    assert world.angles()["elbow_flex"] == pytest.approx(sunk, abs=0.02)


def test_parts_of_time_steps_add_up(world: So101World) -> None:
    start = world.angles()
    for _ in range(8):
        world.set_target("wrist_roll", 1.0)
        world.step(1 / 240 / 8)
    assert world.angles() != start


def test_equal_seeds_place_equal_objects(world: So101World) -> None:
    world.reset(5)
    first, scene = world.physics(), world.scene_state()
    world.reset(6)
    assert not np.array_equal(world.scene_state(), scene)
    world.step(0.3)
    world.reset(5)
    np.testing.assert_array_equal(world.physics(), first)


def test_placing_objects_leaves_the_arm(world: So101World) -> None:
    world.set_angle("shoulder_pan", 0.3)
    world.place_objects(9)
    assert world.angles()["shoulder_pan"] == pytest.approx(0.3)


def test_model_agrees_with_the_kinematics(world: So101World) -> None:
    world.set_angle("wrist_flex", 0.4)
    angles = np.array([world.angles()[name] for name in JOINT_NAMES[:5]])
    np.testing.assert_allclose(world.hand_position(), joint_frames(angles)[-1][:3, 3], atol=1e-6)


def _drop_into_bin(world: So101World) -> None:
    at = world._cube_at
    world._data.qpos[at : at + 3] = world.bin_position() + np.array([0, 0, 0.03])
    world.step(0.5)


def test_cube_in_the_bin_is_a_success_once_the_gripper_is_open(world: So101World) -> None:
    assert not world.succeeded()
    _drop_into_bin(world)
    assert world.succeeded()
    world.set_angle("gripper", from_unit("gripper", 10.0))
    assert not world.succeeded()
