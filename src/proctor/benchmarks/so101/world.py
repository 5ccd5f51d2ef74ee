"""The simulated SO-101 with a table, a cube and a bin, in MuJoCo.

The benchmark ``so101`` and the simulated robot (``--robot.port=sim``) are both made of it.
"""

from __future__ import annotations

import numpy as np

from proctor.benchmarks.mujoco.log import log_mujoco_warnings
from proctor.benchmarks.mujoco.render_config import RenderSettings
from proctor.benchmarks.mujoco.rendering import CameraRenderer, SceneEdit
from proctor.benchmarks.mujoco.world import world_state
from proctor.benchmarks.so101.kinematics import JOINT_NAMES, clip_angle, from_units
from proctor.benchmarks.so101.scene import (
    BIN_HALF_M,
    BIN_HEIGHT_M,
    CAMERAS,
    CUBE_HALF_M,
    TIMESTEP_S,
    scene_xml,
)
from proctor.benchmarks.so101.scene_view import SceneView
from proctor.features import Array
from proctor_worker.worlds.mujoco_tools import JointReader

SCENE_STATE_NAMES = ("cube.x", "cube.y", "cube.z", "cube.yaw", "bin.x", "bin.y")
"""Names of ``scene_state``: metres in the frame of the arm's base, and degrees."""
HOME = (0.0, -55.0, 50.0, 70.0, 0.0, 40.0)
"""The arm's pose after a reset, in LeRobot's units."""
CUBE_CENTRE_M, CUBE_SPREAD_M = (0.21, 0.0), (0.06, 0.08)
"""Middle and half size of the area in which a reset places the cube."""
CUBE_YAW_DEG = 40.0
BIN_CENTRE_M, BIN_SPREAD_M = (0.17, 0.19), (0.015, 0.015)
_OPEN_RAD = 0.35
"""Jaw angle above which the gripper is open: it holds a cube at about 0.2."""


class So101World:
    """One simulated SO-101 and its table.

    Angles are in radians by joint name. A world and its renderer belong to one thread.
    """

    cameras = CAMERAS

    def __init__(self) -> None:
        import mujoco

        log_mujoco_warnings()
        self._mujoco = mujoco
        self._model = mujoco.MjModel.from_xml_string(scene_xml())
        self._data = mujoco.MjData(self._model)
        self._actuator = {name: self._model.actuator(name).id for name in JOINT_NAMES}
        self._position = {name: self._model.joint(name).qposadr[0] for name in JOINT_NAMES}
        self._velocity = {name: self._model.joint(name).dofadr[0] for name in JOINT_NAMES}
        self._joints = JointReader(self._model)
        self._cube_at = self._model.joint("cube").qposadr[0]
        self._cube_body = self._model.body("cube").id
        self._hand_body = self._model.body("wrist_roll").id
        self._gains = self._model.actuator_gainprm.copy(), self._model.actuator_biasprm.copy()
        self._due_s = 0.0
        self._renderers: dict[tuple[int, int], CameraRenderer] = {}
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Put the arm into its home pose with torque on, and place the objects of an episode."""
        self._mujoco.mj_resetData(self._model, self._data)
        self._due_s = 0.0
        for name, angle in from_units(np.array(HOME)).items():
            self._data.qpos[self._position[name]] = angle
            self.set_torque(name, on=True)
        self.place_objects(seed)

    def place_objects(self, seed: int) -> None:
        """Place cube and bin and leave the arm as it is; equal seeds give equal places."""
        rng = np.random.default_rng(seed)
        x, y = rng.uniform(-1, 1, 2) * CUBE_SPREAD_M + CUBE_CENTRE_M
        yaw = np.radians(rng.uniform(-CUBE_YAW_DEG, CUBE_YAW_DEG))
        bin_xy = rng.uniform(-1, 1, 2) * BIN_SPREAD_M + BIN_CENTRE_M
        pose = (x, y, CUBE_HALF_M, np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2))
        self._data.qpos[self._cube_at : self._cube_at + 7] = pose
        cube_velocity = self._model.joint("cube").dofadr[0]
        self._data.qvel[cube_velocity : cube_velocity + 6] = 0.0
        self._data.mocap_pos[0] = (*bin_xy, 0.0)
        self._mujoco.mj_forward(self._model, self._data)

    def step(self, seconds: float) -> None:
        """Advance the physics; what is left of a time step is kept for the next call."""
        self._due_s += seconds
        steps = int(self._due_s / TIMESTEP_S + 1e-6)
        if steps > 0:
            self._due_s -= steps * TIMESTEP_S
            self._mujoco.mj_step(self._model, self._data, steps)

    def angles(self) -> dict[str, float]:
        """Return the angles of all joints."""
        return {name: float(self._data.qpos[at]) for name, at in self._position.items()}

    def velocities(self) -> dict[str, float]:
        """Return the velocities of all joints in rad/s."""
        return {name: float(self._data.qvel[at]) for name, at in self._velocity.items()}

    def torques(self) -> dict[str, float]:
        """Return the torques of all servos in N m."""
        return {name: float(self._data.actuator_force[at]) for name, at in self._actuator.items()}

    def targets(self) -> dict[str, float]:
        """Return the servos' targets."""
        return {name: float(self._data.ctrl[at]) for name, at in self._actuator.items()}

    def set_target(self, joint: str, angle: float) -> None:
        """Set a servo's target, limited to the joint's range."""
        self._data.ctrl[self._actuator[joint]] = clip_angle(joint, angle)

    def set_angle(self, joint: str, angle: float) -> None:
        """Put a joint at an angle without physics, as a hand that moves a limp arm."""
        self._data.qpos[self._position[joint]] = clip_angle(joint, angle)
        self._data.qvel[self._velocity[joint]] = 0.0
        self.set_target(joint, angle)
        self._mujoco.mj_forward(self._model, self._data)

    def set_torque(self, joint: str, *, on: bool) -> None:
        """Switch a servo; one that is switched on holds the present angle."""
        at = self._actuator[joint]
        gain, bias = self._gains
        self._model.actuator_gainprm[at] = gain[at] if on else 0.0
        self._model.actuator_biasprm[at] = bias[at] if on else 0.0
        self.set_target(joint, float(self._data.qpos[self._position[joint]]))

    def set_gain(self, joint: str, gain: float) -> None:
        """Scale the stiffness of a servo whose torque is on; 1 is the usual one."""
        at = self._actuator[joint]
        gains, biases = self._gains
        self._model.actuator_gainprm[at, 0] = gain * gains[at, 0]
        self._model.actuator_biasprm[at, 1] = gain * biases[at, 1]

    def view(self, height: int, width: int) -> SceneView:
        """Return a camera's own copy of this world, which another thread may render."""
        return SceneView(self._model, self._data, RenderSettings(height, width))

    def cube_pose(self) -> tuple[Array, Array]:
        """Return the cube's position in metres and its orientation as a quaternion, w first."""
        pose = self._data.qpos[self._cube_at : self._cube_at + 7]
        return pose[:3].copy(), pose[3:].copy()

    def bin_position(self) -> Array:
        """Return the position of the bin's centre on the table, in metres."""
        return np.array(self._data.mocap_pos[0])

    def hand_position(self) -> Array:
        """Return the position of the hand's frame, in metres."""
        return np.array(self._data.xpos[self._hand_body])

    def scene_state(self) -> Array:
        """Return the poses of cube and bin, float32 [6], named by ``SCENE_STATE_NAMES``."""
        position, _ = self.cube_pose()
        axes = self._data.xmat[self._cube_body].reshape(3, 3)
        # The horizontal one of the cube's x and y axes: a cube may lie on any of its sides.
        axis = axes[:, 0] if abs(axes[2, 0]) < 0.7 else axes[:, 1]
        yaw = np.degrees(np.arctan2(axis[1], axis[0]))
        return np.array([*position, yaw, *self.bin_position()[:2]], dtype=np.float32)

    def succeeded(self) -> bool:
        """Return whether the cube lies in the bin and the gripper is open."""
        position, _ = self.cube_pose()
        inside = np.abs(position[:2] - self.bin_position()[:2]).max() < BIN_HALF_M
        opened = self._data.qpos[self._position["gripper"]] > _OPEN_RAD
        return bool(inside and position[2] < BIN_HEIGHT_M and opened)

    def subgoals(self) -> tuple[bool, bool]:
        """Return whether the cube is above the bin's rim, and whether it is over or in the bin."""
        position, _ = self.cube_pose()
        over = np.abs(position[:2] - self.bin_position()[:2]).max() < BIN_HALF_M
        return bool(position[2] > BIN_HEIGHT_M), bool(over)

    def bin_distance(self) -> float:
        """Return the horizontal distance between cube and bin, in metres."""
        position, _ = self.cube_pose()
        return float(np.linalg.norm(position[:2] - self.bin_position()[:2]))

    def physics(self) -> Array:
        """Return everything that moves or that a reset places, float64."""
        return world_state(self._data)

    def start_state(self) -> dict[str, float]:
        """Return all joints, the cube's pose and the bin's place, by name."""
        bin_x, bin_y = self.bin_position()[:2].tolist()
        return {**self._joints.read(self._data.qpos), "bin x": bin_x, "bin y": bin_y}

    def render(self, camera: str, height: int, width: int, edit: SceneEdit | None = None) -> Array:
        """Return an image of ``camera``, uint8 [H, W, 3], after ``edit``."""
        if (height, width) not in self._renderers:
            settings = RenderSettings(height, width)
            self._renderers[height, width] = CameraRenderer(self._model, settings)
        self._mujoco.mj_forward(self._model, self._data)
        return self._renderers[height, width].render(self._data, camera, edit)

    def close(self) -> None:
        """Free the renderers and their GL contexts."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()
