"""MJCF of the scene: the SO-101 in primitive shapes, a table, a cube, a bin and two cameras.

There are no meshes, shadows or reflections, so that software rendering is fast. The joints' frames
and ranges are those of ``kinematics``; servo gains are those of MuJoCo Menagerie's SO-101. The
gripper is weaker, since its full force presses the fingers into so small and light a cube.
"""

from __future__ import annotations

import numpy as np

from proctor.benchmarks.so101.kinematics import ARM, JAW, Joint, Vector, rotation

TIMESTEP_S = 1 / 240
"""Eight physics steps make one control step at 30 Hz."""
CUBE_HALF_M = 0.0125
BIN_HALF_M = 0.05
"""Half the inner width of the bin."""
BIN_HEIGHT_M = 0.04
_WALL_M = 0.003
_GRASP_RAD = 0.215
"""Angle of the jaw at which the pads of both fingers are parallel, a cube's width apart."""
CAMERAS = ("front", "wrist")

# Links by joint: shapes in the frame of the joint. The table, bin and cube collide with everything;
# the links collide with those, not with each other.
_LINKS = {
    "shoulder_pan": '<geom class="link" type="box" pos="-.012 0 -.03" size=".03 .026 .03"/>',
    "shoulder_lift": '<geom class="link" fromto="0 0 .018 -.11257 -.028 .018" size=".018"/>',
    "elbow_flex": '<geom class="link" fromto="0 0 .018 -.1349 .0052 .018" size=".016"/>',
    "wrist_flex": '<geom class="motor" fromto="0 0 .018 0 -.04 .018" size=".017"/>',
    "wrist_roll": """
      <geom class="motor" type="box" pos="0 0 -.022" size=".02 .016 .024"/>
      <geom class="finger" pos="-.0119 -.0002 -.076" size=".004 .011 .032"/>
      <camera name="wrist" pos="0 -.065 0" xyaxes="1 0 0 0 .91 .42" fovy="75"/>""",
}  # fmt: skip


def scene_xml() -> str:
    """Return the scene as MJCF."""
    arm = ""
    for joint in reversed(ARM):
        inner = arm if arm else _body(JAW, _jaw_shapes())
        arm = _body(joint, _LINKS[joint.name] + inner)
    actuators = "".join(
        f'<position name="{joint.name}" joint="{joint.name}" class="servo" '
        f'ctrlrange="{joint.low} {joint.high}" forcerange="-{force} {force}"/>'
        for joint, force in (*((joint, 2.94) for joint in ARM), (JAW, 1.2))
    )
    return f"""
<mujoco model="so101">
  <compiler angle="radian"/>
  <option timestep="{TIMESTEP_S:.10f}" integrator="implicitfast" cone="elliptic" impratio="10"/>
  <visual>
    <quality shadowsize="0" offsamples="4"/>
    <headlight ambient=".35 .35 .35" diffuse=".3 .3 .3" specular="0 0 0"/>
    <global offwidth="640" offheight="480"/>
    <map znear=".02" zfar="20"/>
  </visual>
  <default>
    <joint damping="0.6" armature="0.028" frictionloss="0.052"/>
    <geom contype="1" conaffinity="3" solref="0.004 1"/>
    <default class="servo"><position kp="998.22" kv="2.731"/></default>
    <default class="link">
      <geom type="capsule" contype="2" conaffinity="1" density="900" rgba=".95 .7 .1 1"/>
    </default>
    <default class="motor">
      <geom type="capsule" contype="2" conaffinity="1" density="1100" rgba=".15 .15 .17 1"/>
    </default>
    <default class="finger">
      <geom type="box" contype="2" conaffinity="1" density="900" rgba=".85 .85 .8 1" condim="4"
            friction="1.5 0.02 0.001" priority="1" solref="0.004 1"/>
    </default>
  </default>
  <worldbody>
    <light directional="true" pos=".2 0 1.2" dir=".2 .3 -1" castshadow="false" specular="0 0 0"/>
    <geom name="table" type="plane" size="1 1 .1" rgba=".75 .72 .68 1" friction="0.8 0.01 0.001"/>
    <camera name="front" pos=".6 0 .38" xyaxes="0 1 0 -.58 0 .81" fovy="52"/>
    <body name="base">
      <geom class="motor" type="box" pos=".015 0 .03" size=".045 .035 .03"/>
      {arm}
    </body>
    <body name="cube">
      <freejoint name="cube"/>
      <geom name="cube" type="box" size="{CUBE_HALF_M} {CUBE_HALF_M} {CUBE_HALF_M}" mass=".03"
            rgba=".85 .1 .1 1" condim="4" friction="0.8 0.01 0.001"/>
    </body>
    <body name="bin" mocap="true">{_bin_shapes()}</body>
  </worldbody>
  <actuator>{actuators}</actuator>
</mujoco>"""


def _body(joint: Joint, content: str) -> str:
    pose = f'pos="{_numbers(joint.xyz)}" quat="{_numbers(_quaternion(joint.rpy))}"'
    turn = f'<joint name="{joint.name}" axis="0 0 1" range="{joint.low} {joint.high}"/>'
    return f'<body name="{joint.name}" {pose}>{turn}{content}</body>'


def _jaw_shapes() -> str:
    """Return the moving jaw: at ``_GRASP_RAD`` its pad hangs straight down from the pivot."""
    cos, sin = np.cos(-_GRASP_RAD), np.sin(-_GRASP_RAD)

    def at(across: float, along: float) -> str:
        return f"{cos * across - sin * along:.6f} {sin * across + cos * along:.6f} 0.019"

    turn = f'euler="0 0 {-_GRASP_RAD}"'
    return (
        f'<geom class="finger" pos="{at(0.0009, -0.0576)}" {turn} size=".004 .027 .011"/>'
        f'<geom class="motor" type="box" pos="{at(0.0029, -0.018)}" {turn} size=".006 .02 .012"/>'
    )


def _bin_shapes() -> str:
    outer, half_height = BIN_HALF_M + _WALL_M, BIN_HEIGHT_M / 2
    floor = f'<geom type="box" pos="0 0 .0015" size="{outer} {outer} .0015" rgba=".1 .25 .7 1"/>'
    walls = "".join(
        f'<geom type="box" pos="{x} {y} {half_height}" '
        f'size="{_WALL_M if x else outer} {_WALL_M if y else outer} {half_height}" '
        'rgba=".15 .35 .85 1"/>'
        for x, y in ((outer, 0), (-outer, 0), (0, outer), (0, -outer))
    )
    return floor + walls


def _quaternion(rpy: Vector) -> tuple[float, ...]:
    """Return roll, pitch and yaw as a quaternion, w first."""
    import mujoco

    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, rotation(rpy).ravel())
    return tuple(float(value) for value in quaternion)


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.12g}" for value in values)
