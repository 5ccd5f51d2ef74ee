"""What a server means by a rotation and by a gripper, and what our benchmarks do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from proctor.errors import SpecMismatch
from proctor.features import STATE, Array
from proctor.policies.remote.config import Gripper, RemoteConfig, Rotation

_ROTATION_SIZE = 3


def find_rotated_key(config: RemoteConfig, sizes: Mapping[str, int]) -> str | None:
    """Return which of the states that are sent has its rotation converted; None: none has.

    It is the robot's pose: the key that the user names, ``observation.state``, or the only state.

    Raises:
        SpecMismatch: it is not known which, or it has no room for a rotation.
    """
    if config.rotation is Rotation.AXIS_ANGLE:
        return None
    flag = f"--policy.rotation={config.rotation.value}"
    first, last = config.rotation_at, config.rotation_at + _ROTATION_SIZE - 1
    key = config.rotation_key or (STATE if len(sizes) > 1 else next(iter(sizes), STATE))
    if key not in sizes:
        sent = ", ".join(sizes) or "no state"
        raise SpecMismatch(
            f"{flag} converts numbers {first} to {last} of {key}; the states that are sent: "
            f"{sent}; name the one with the rotation by --policy.rotation_key"
        )
    if sizes[key] <= last:
        raise SpecMismatch(
            f"{flag} converts numbers {first} to {last} of {key}, which has {sizes[key]} numbers"
        )
    return key


def rotation_note(config: RemoteConfig, key: str) -> str:
    """Return a line for the user on which numbers are converted."""
    last = config.rotation_at + _ROTATION_SIZE - 1
    return f"numbers {config.rotation_at} to {last} of {key} are sent as {config.rotation.value}"


def converted_size(config: RemoteConfig, size: int) -> int:
    """Return how many numbers a state of ``size`` is sent as."""
    by_four = config.rotation in (Rotation.QUATERNION_XYZW, Rotation.QUATERNION_WXYZ)
    return size + by_four


def convert_rotation(state: Array, config: RemoteConfig) -> Array:
    """Return a state [..., D] with its axis-angle as the server wants it."""
    if config.rotation is Rotation.AXIS_ANGLE:
        return state
    from scipy.spatial.transform import Rotation as Turn

    first, last = config.rotation_at, config.rotation_at + _ROTATION_SIZE
    flat = state.reshape(-1, state.shape[-1])
    turn = Turn.from_rotvec(flat[:, first:last])
    if config.rotation is Rotation.EULER:
        made = turn.as_euler("xyz")
    else:
        made = turn.as_quat()
        if config.rotation is Rotation.QUATERNION_WXYZ:
            made = np.roll(made, 1, axis=-1)
    joined = np.concatenate([flat[:, :first], made, flat[:, last:]], axis=-1)
    return joined.reshape(*state.shape[:-1], -1).astype(state.dtype)


def convert_gripper(actions: Array, gripper: Gripper) -> Array:
    """Return a server's actions [T, A] with the gripper as our benchmarks have it."""
    if gripper is Gripper.AS_IS:
        return actions
    actions = np.array(actions, dtype=np.float32)
    last = actions[..., -1]
    if gripper is not Gripper.NEGATED:
        last = 2 * last - 1
    actions[..., -1] = last if gripper is Gripper.UNIT else -last
    return actions
