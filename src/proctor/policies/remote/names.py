"""Mapping of the benchmark's observation keys to a server's input names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proctor.errors import SpecMismatch, UsageError
from proctor.features import ACTION, Feature, FeatureKind, Interface, observed_keys
from proctor.policies.compatibility import check_compatible, check_offered, source_key
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
