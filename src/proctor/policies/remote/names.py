"""A server's conventions: its names of inputs, its rotations and its grippers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from proctor.errors import SpecMismatch, UsageError
from proctor.features import ACTION, STATE, Array, Feature, FeatureKind, Interface, observed_keys
from proctor.policies.compatibility import check_compatible, check_offered, source_key
from proctor.policies.remote.config import Gripper, RemoteConfig, Rotation
from proctor.protocols.inference_messages import ServerInfo

_WRIST = ("wrist", "eye_in_hand", "gripper", "hand")


@dataclass(frozen=True)
class ProtocolNames:
    """A protocol's names of inputs: the first camera, a wrist camera, other cameras, the state."""

    first: str
    wrist: str
    other: str | None
    """With {} for the last part of the benchmark's name; None: no other cameras."""
    state: str


def names_for_proctor_servers(
    server_info: ServerInfo, interface: Interface, rename_map: Mapping[str, str]
) -> dict[str, str]:
    """Return the benchmark's keys that a Proctor server requires -> the server's names."""
    wanted = {key: field.feature for key, field in server_info.inputs.items()}
    action = Feature(FeatureKind.ACTION, (server_info.action_size,), "float32")
    check_compatible({**wanted, ACTION: action}, interface, rename_map)
    return {source_key(key, rename_map): key for key in wanted}


def names_for_other_servers(
    protocol_names: ProtocolNames | None,
    interface: Interface,
    inputs: Sequence[str],
    rename_map: Mapping[str, str],
) -> dict[str, str]:
    """Return the benchmark's keys to send -> the server's names.

    If the protocol has no names (None), the server's names are the benchmark's.
    """
    check_offered([*inputs, *rename_map], interface, "--policy.inputs and --rename_map")
    keys = list(inputs) or list(observed_keys(interface.features))
    if protocol_names is None:
        return {key: rename_map.get(key, key) for key in keys}
    names = {key: rename_map[key] for key in keys if key in rename_map}
    cameras = [k for k in keys if interface.features[k].kind is FeatureKind.VISUAL]
    for key in sorted(cameras, key=is_wrist):  # a wrist camera is never the first
        if key not in names:
            names[key] = _camera_name(protocol_names, key, interface, set(names.values()))
    for key in keys:
        names.setdefault(key, protocol_names.state)
    if len(set(names.values())) < len(names):
        raise UsageError(
            f"--rename_map gives two of {', '.join(names)} the same name", code="flag.duplicate"
        )
    return {key: names[key] for key in keys}


def split_state(name: str, size: int) -> list[tuple[str, slice]]:
    """Return the server's names of a state of ``size`` numbers, each with its slice.

    Usually that is one name; ``state/arm:7,state/gripper:1`` splits the state.
    """
    if ":" not in name:
        return [(name, slice(None))]
    found, start = [], 0
    for part in name.split(","):
        called, _, count = part.strip().partition(":")
        if not called or not count.isdecimal() or not int(count):
            raise UsageError(
                f"--rename_map: {part!r} in {name!r} is not NAME:COUNT", code="flag.invalid-value"
            )
        found.append((called, slice(start, start + int(count))))
        start += int(count)
    if start != size:
        raise UsageError(
            f"--rename_map: {name!r} has {start} numbers, the state {size}",
            code="flag.invalid-value",
        )
    return found


def _camera_name(
    protocol_names: ProtocolNames, key: str, interface: Interface, taken: set[str]
) -> str:
    if protocol_names.first not in taken and not is_wrist(key):
        return protocol_names.first
    if protocol_names.wrist not in taken:
        return protocol_names.wrist
    if protocol_names.other is None:
        raise SpecMismatch(
            f"{interface.name} has more cameras than the server has names for: choose some with "
            f'--policy.inputs, or name {key} with --rename_map=\'{{"{key}": "..."}}\'',
            code="policy.too-many-cameras",
        )
    return protocol_names.other.format(key.rpartition(".")[2])


def is_wrist(key: str) -> bool:
    """Whether a camera's name says that it is at the wrist."""
    return any(word in key.lower() for word in _WRIST)


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
