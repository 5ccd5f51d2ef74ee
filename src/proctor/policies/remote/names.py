"""By which names a server is shown what a benchmark offers."""

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
    """What a protocol calls things: the first camera, one at the wrist, others, the state."""

    first: str
    wrist: str
    other: str | None
    """With {} for the last part of the benchmark's name; None: there are no others."""
    state: str


def names_for_proctor_servers(
    about: ServerInfo, interface: Interface, rename_map: Mapping[str, str]
) -> dict[str, str]:
    """Return the benchmark's keys that a server of ours wants, with its names for them.

    Raises:
        SpecMismatch: something is missing or differs.
    """
    wanted = {key: seen.feature for key, seen in about.inputs.items()}
    action = Feature(FeatureKind.ACTION, (about.action_size,), "float32")
    check_compatible({**wanted, ACTION: action}, interface, rename_map)
    return {source_key(key, rename_map): key for key in wanted}


def names_for_other_servers(
    words: ProtocolNames | None,
    interface: Interface,
    inputs: Sequence[str],
    rename_map: Mapping[str, str],
) -> dict[str, str]:
    """Return the benchmark's keys that are sent, with the server's names for them.

    Without ``words`` of the protocol's own they are the benchmark's.

    Raises:
        UsageError: a camera has no name there, or two have the same.
    """
    check_offered([*inputs, *rename_map], interface, "--policy.inputs and --rename_map")
    keys = list(inputs) or list(observed_keys(interface.features))
    if words is None:
        return {key: rename_map.get(key, key) for key in keys}
    names = {key: rename_map[key] for key in keys if key in rename_map}
    cameras = [k for k in keys if interface.features[k].kind is FeatureKind.VISUAL]
    for key in sorted(cameras, key=is_wrist):  # what is at the wrist is never the first
        if key not in names:
            names[key] = _camera_name(words, key, interface, set(names.values()))
    for key in keys:
        names.setdefault(key, words.state)
    if len(set(names.values())) < len(names):
        raise UsageError(f"--rename_map gives two of {', '.join(names)} the same name")
    return {key: names[key] for key in keys}


def split_state(name: str, size: int) -> list[tuple[str, slice]]:
    """Return under which names a state of ``size`` numbers is sent, each with its part of them.

    As a rule that is one; ``state/arm:7,state/gripper:1`` cuts it.

    Raises:
        UsageError: the parts are not the whole.
    """
    if ":" not in name:
        return [(name, slice(None))]
    found, start = [], 0
    for part in name.split(","):
        called, _, count = part.strip().partition(":")
        if not called or not count.isdecimal() or not int(count):
            raise UsageError(f"--rename_map: {part!r} is no NAME:COUNT, in {name!r}")
        found.append((called, slice(start, start + int(count))))
        start += int(count)
    if start != size:
        raise UsageError(f"--rename_map: {name!r} is of {start} numbers, the state has {size}")
    return found


def _camera_name(words: ProtocolNames, key: str, interface: Interface, taken: set[str]) -> str:
    if words.first not in taken and not is_wrist(key):
        return words.first
    if words.wrist not in taken:
        return words.wrist
    if words.other is None:
        raise SpecMismatch(
            f"{interface.name} has more cameras than the server has names for: say which with "
            f'--policy.inputs, or how {key} is called with --rename_map=\'{{"{key}": "..."}}\''
        )
    return words.other.format(key.rpartition(".")[2])


def is_wrist(key: str) -> bool:
    """Whether a camera is at the wrist, by its name."""
    return any(word in key.lower() for word in _WRIST)
