"""Conversion of rotations and grippers between the benchmark's and the server's conventions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from proctor.errors import SpecMismatch
from proctor.features import STATE, Array
from proctor.policies.remote.config import Gripper, RemoteConfig, Rotation

_ROTATION_SIZE = 3


def find_rotated_key(config: RemoteConfig, sizes: Mapping[str, int]) -> str | None:
    """Return the key of the state whose rotation is converted; None: no conversion.

    It is ``--policy.rotation_key``, else ``observation.state``, else the only state.
    """
    if config.rotation is Rotation.AXIS_ANGLE:
        return None
    flag = f"--policy.rotation={config.rotation.value}"
    first, last = config.rotation_at, config.rotation_at + _ROTATION_SIZE - 1
    key = config.rotation_key or (STATE if len(sizes) > 1 else next(iter(sizes), STATE))
    if key not in sizes:
        sent = ", ".join(sizes) or "no state"
        raise SpecMismatch(
            f"{flag} converts numbers {first} to {last} of {key}, which is not sent ({sent} is); "
            "name the state with the rotation by --policy.rotation_key",
            code="policy.no-rotation",
        )
    if sizes[key] <= last:
        raise SpecMismatch(
            f"{flag} converts numbers {first} to {last} of {key}, which has {sizes[key]} numbers",
            code="policy.no-rotation",
        )
    return key


def rotation_note(config: RemoteConfig, key: str) -> str:
    """Return a note for the user on which numbers are converted."""
    last = config.rotation_at + _ROTATION_SIZE - 1
    return f"numbers {config.rotation_at} to {last} of {key} are sent as {config.rotation.value}"


def converted_size(config: RemoteConfig, size: int) -> int:
    """Return the length of a converted state of ``size`` numbers."""
    by_four = config.rotation in (Rotation.QUATERNION_XYZW, Rotation.QUATERNION_WXYZ)
    return size + by_four


def convert_rotation(state: Array, config: RemoteConfig) -> Array:
    """Return a state [..., D] with its axis-angle in the server's representation."""
    if config.rotation is Rotation.AXIS_ANGLE:
        return state
    from scipy.spatial.transform import Rotation as ScipyRotation

    first, last = config.rotation_at, config.rotation_at + _ROTATION_SIZE
    flat = state.reshape(-1, state.shape[-1])
    rotation = ScipyRotation.from_rotvec(flat[:, first:last])
    if config.rotation is Rotation.EULER:
        converted = rotation.as_euler("xyz")
    else:
        converted = rotation.as_quat()
        if config.rotation is Rotation.QUATERNION_WXYZ:
            converted = np.roll(converted, 1, axis=-1)
    joined = np.concatenate([flat[:, :first], converted, flat[:, last:]], axis=-1)
    return joined.reshape(*state.shape[:-1], -1).astype(state.dtype)


def convert_gripper(actions: Array, gripper: Gripper) -> Array:
    """Return a server's actions [T, A] with the gripper in the benchmark's convention."""
    if gripper is Gripper.AS_IS:
        return actions
    actions = np.array(actions, dtype=np.float32)
    last = actions[..., -1]
    if gripper is not Gripper.NEGATED:
        last = 2 * last - 1
    actions[..., -1] = last if gripper is Gripper.UNIT else -last
    return actions
