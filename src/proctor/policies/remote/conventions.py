"""What a server means by a rotation and by a gripper, and what our benchmarks do."""

from __future__ import annotations

import numpy as np

from proctor.errors import SpecMismatch
from proctor.features import Array
from proctor.policies.remote.config import Gripper, RemoteConfig, Rotation

_ROTATION_SIZE = 3


def check_rotation(config: RemoteConfig, size: int | None) -> None:
    """Refuse to turn a rotation that the state has no room for.

    Raises:
        SpecMismatch: naming the flag.
    """
    if config.rotation is Rotation.AXIS_ANGLE:
        return
    last = config.rotation_at + _ROTATION_SIZE
    if size is None or size < last:
        has = "sends no state" if size is None else f"has {size} numbers in its state"
        raise SpecMismatch(
            f"--policy.rotation={config.rotation.value} turns numbers {config.rotation_at} to "
            f"{last - 1} of the state; the benchmark {has}"
        )


def sent_size(config: RemoteConfig, size: int) -> int:
    """Return how many numbers a state of ``size`` is sent as."""
    by_four = config.rotation in (Rotation.QUATERNION_XYZW, Rotation.QUATERNION_WXYZ)
    return size + by_four


def turned(state: Array, config: RemoteConfig) -> Array:
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


def played(actions: Array, gripper: Gripper) -> Array:
    """Return a server's actions [T, A] with the gripper as our benchmarks have it."""
    if gripper is Gripper.AS_IS:
        return actions
    actions = np.array(actions, dtype=np.float32)
    last = actions[..., -1]
    if gripper is not Gripper.NEGATED:
        last = 2 * last - 1
    actions[..., -1] = last if gripper is Gripper.UNIT else -last
    return actions
