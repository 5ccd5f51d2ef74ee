"""Meta-World's environments and experts with less Python in a step and less physics in a reset.

Observations, rewards, infos and physics are the same to the bit.
"""

from __future__ import annotations

import inspect
import struct
from typing import Any

import mujoco
import numpy as np
from metaworld.sawyer_xyz_env import SawyerXYZEnv
from metaworld.utils.reward_utils import hamacher_product

from proctor.benchmarks.metaworld.fast_functions import norm, tolerance, with_fast_functions
from proctor.features import Array


class NamedArrays:
    """Arrays of one named element. An assignment to one writes into MuJoCo's memory.

    It does not refer to its MjData, so an MjData that keeps it is freed without garbage collection.
    """

    __slots__ = ("id", "qpos", "xmat", "xpos", "xquat")

    def __init__(self, element: Any) -> None:
        for name in self.__slots__:
            if hasattr(element, name):
                object.__setattr__(self, name, getattr(element, name))

    def __setattr__(self, name: str, value: Any) -> None:
        getattr(self, name)[:] = value


class NamedData(mujoco.MjData):  # type: ignore[misc]
    """An MjData whose bodies, sites, geoms and joints are looked up by name once.

    MuJoCo makes new views at each access. A reward function spends more time on that than on its
    arithmetic.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        counts = {
            "body": model.nbody,
            "site": model.nsite,
            "geom": model.ngeom,
            "joint": model.njnt,
        }
        for kind, count in counts.items():
            elements = map(getattr(self, kind), range(count))
            by_name = {element.name: NamedArrays(element) for element in elements}
            setattr(self, kind, by_name.__getitem__)
        self.controls = self.ctrl
        self.mocap_positions = self.mocap_pos
        self.mocap_quaternions = self.mocap_quat


_MOST_APART_M = 0.1
"""Distance of the fingers that Meta-World observes as 1."""
_HAND_TURN = np.array([1.0, 0.0, 1.0, 0.0])
"""Orientation of the body that the hand follows, a quaternion that is not normalised."""
_FLOAT32 = struct.Struct("=3f")


def fast_env_class(original: type) -> type:
    """Return a task's environment class, derived from ``FastSawyerXYZEnv``."""
    copy = with_fast_functions(original)
    assert copy.__bases__ == (SawyerXYZEnv,)
    copy.__bases__ = (FastSawyerXYZEnv,)
    return copy


def fast_expert_class(original: type) -> type:
    """Return a scripted policy's class without its warnings and checks of observations."""
    copy: Any = with_fast_functions(original)
    parse = copy._parse_obs
    checked = inspect.getclosurevars(parse).nonlocals.get("func")
    if checked is not None:  # decorated with assert_fully_parsed
        copy._parse_obs = staticmethod(checked)
    return copy  # type: ignore[no-any-return]


class FastSawyerXYZEnv(SawyerXYZEnv):  # type: ignore[misc]
    """Base class of a task's environment, whose methods do the same as Meta-World's in less time.

    Steps are not counted against ``max_path_length``, and no task need be set.
    """

    data_class = NamedData
    _prev_obs: Array

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._hand_resets = _PhysicsCache()

    def step(self, action: Array) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        """Advance the world by one action, float32 [4].

        Meta-World also places its target sites before ``mj_forward``, which overwrites them, and
        computes forces between bodies, which no task reads.
        """
        data = self.data
        *hand, grip = action.tolist()
        # The motion is rounded to float32, as that of an action of float32 is.
        scale = float(np.float32(self.action_scale))
        motion = _FLOAT32.unpack(_FLOAT32.pack(*[min(max(x, -1.0), 1.0) * scale for x in hand]))
        (target,) = data.mocap_positions.tolist()
        lows, highs = self.mocap_low.tolist(), self.mocap_high.tolist()
        data.mocap_positions[0] = [
            min(max(at + by, low), high)
            for at, by, low, high in zip(target, motion, lows, highs, strict=True)
        ]
        data.controls[:] = (grip, -grip)
        mujoco.mj_step(self.model, data, nstep=self.frame_skip)
        self.curr_path_length += 1
        mujoco.mj_forward(self.model, data)
        space = self.sawyer_observation_space
        observed = self._get_obs().clip(space.low, space.high)
        reward, info = self.evaluate_state(observed, action)
        return observed, reward, False, False, info

    def _get_obs(self) -> Array:
        """Return the current and the previous observation, and the goal."""
        goal = self._get_pos_goal()
        if self._partially_observable:
            goal = np.zeros_like(goal)
        observed = np.array(self._observe_now() + self._prev_obs.tolist() + goal.tolist())
        self._prev_obs = observed[: len(self._prev_obs)]
        return observed

    def _get_curr_obs_combined_no_goal(self) -> Array:
        """Return hand, gripper and objects."""
        return np.array(self._observe_now())

    def _observe_now(self) -> list[float]:
        """Return hand, gripper and objects.

        Meta-World splits and stacks arrays, which takes as long as the physics of some tasks.
        """
        data = self.data
        apart = norm(data.body("rightclaw").xpos - data.body("leftclaw").xpos)
        numbers: list[float] = data.body("hand").xpos.tolist()
        numbers.append(min(max(float(apart) / _MOST_APART_M, 0.0), 1.0))
        positions, turns = self._get_pos_objects().tolist(), self._get_quat_objects().tolist()
        for number in range(len(positions) // 3):
            numbers += positions[3 * number : 3 * number + 3]
            numbers += turns[4 * number : 4 * number + 4]
        return numbers + [0.0] * (4 + self._obs_obj_max_len - len(numbers))

    def touching_object(self, object_geom_id: int) -> bool:
        """Return whether both finger pads touch the object.

        Meta-World makes Python objects of all contacts, twice.
        """
        data = self.data
        pairs = data.contact.geom.tolist()
        left, right = data.geom("leftpad_geom").id, data.geom("rightpad_geom").id
        on_object = [(number, pair) for number, pair in enumerate(pairs) if object_geom_id in pair]
        contacts = [[number for number, pair in on_object if pad in pair] for pad in (left, right)]
        if not all(contacts):
            return False
        addresses, forces = data.contact.efc_address.tolist(), data.efc_force
        # The built-in sum adds in Meta-World's order, so the last bits agree.
        return all(sum(forces[addresses[number]] for number in pad) > 0 for pad in contacts)

    def _reset_hand(self, steps: int = 50) -> None:
        """Move the hand to its initial position.

        Every reset begins with the same motion, so it is simulated once.
        """
        data = self.data
        mocap = self.model.body_mocapid[data.body("mocap").id]
        data.mocap_positions[mocap] = self.hand_init_pos
        data.mocap_quaternions[mocap] = _HAND_TURN
        data.controls[:] = (-1, 1)
        self._hand_resets.advance(self.model, data, steps * self.frame_skip)
        self.init_tcp = self.tcp_center

    def _gripper_caging_reward(
        self,
        action: Array,
        obj_pos: Array,
        obj_radius: float,
        pad_success_thresh: float,
        object_reach_radius: float,
        xz_thresh: float,
        desired_gripper_effort: float = 1.0,
        high_density: bool = False,
        medium_density: bool = False,
    ) -> float:
        """Return the reward for fingers around the object, Meta-World's default."""
        start, first_tcp, tcp = self.obj_init_pos, self.init_tcp, self.tcp_center
        around = []
        for pad in ("leftpad", "rightpad"):
            y = self.data.body(pad).xpos[1]
            margin = abs(abs(y - start[1]) - pad_success_thresh)
            bounds = (obj_radius, pad_success_thresh)
            around.append(tolerance(abs(y - obj_pos[1]), bounds, margin, "long_tail"))
        margin = _norm_xz(start, first_tcp) - xz_thresh
        above = tolerance(_norm_xz(tcp, obj_pos), (0, xz_thresh), margin, "long_tail")
        caging = hamacher_product(hamacher_product(*around), above)
        closed = min(max(0, action[-1]), desired_gripper_effort) / desired_gripper_effort
        reward: Any = hamacher_product(caging, closed if caging > 0.97 else 0.0)
        if high_density:
            reward = (reward + caging) / 2
        if medium_density:
            margin = abs(norm(start - first_tcp) - object_reach_radius)
            reached = tolerance(norm(obj_pos - tcp), (0, object_reach_radius), margin, "long_tail")
            reward = (reward + reached) / 2
        return reward  # type: ignore[no-any-return]


def _norm_xz(a: Array, b: Array) -> Any:
    """Return the distance of two positions in the plane of x and z."""
    return norm(np.array((a[0] - b[0], a[2] - b[2])))


class _PhysicsCache:
    """States that physics reaches from the same state with the same controls.

    Exact for models that differ in the positions of bodies and of sites only, which is what
    Meta-World changes.
    """

    _SIZE = 2
    """A reset of Meta-World moves the hand twice."""

    def __init__(self) -> None:
        self._before_last: dict[tuple[int, bytes, bytes], Array] = {}

    def advance(self, model: Any, data: Any, steps: int) -> None:
        """Advance ``data`` by ``steps`` of physics, or to where they led before."""
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(model, kind))
        mujoco.mj_getState(model, data, state, kind)
        key = (steps, state.tobytes(), model.body_pos.tobytes())
        kept = self._before_last.get(key)
        if kept is not None:
            mujoco.mj_setState(model, data, kept, kind)
        else:
            mujoco.mj_step(model, data, nstep=steps - 1)
            if len(self._before_last) < self._SIZE:
                mujoco.mj_getState(model, data, state, kind)
                self._before_last[key] = state
        # The last step computes what depends on the state, for the sites of this model.
        mujoco.mj_step(model, data)
