"""Checks whether a policy's inputs and actions match an interface, before anything starts.

The interface is a benchmark's, a dataset's (training) or a client's (serving). Errors name the
flag that fixes the mismatch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from proctor.errors import SpecMismatch, did_you_mean, strip_control_codes
from proctor.features import (
    ACTION,
    ENVIRONMENT_STATE,
    IMAGES,
    STATE,
    Feature,
    FeatureKind,
    Interface,
)
from proctor.fingerprint import ConfigUse
from proctor.types import Task

EMPTY_CAMERA = f"{IMAGES}empty_camera_"
"""Prefix of LeRobot's placeholder cameras."""


def source_key(key: str, rename_map: Mapping[str, str]) -> str:
    """Return the interface's name for the policy's input ``key``."""
    return next((old for old, new in rename_map.items() if new == key), key)


def policy_keys(keys: Iterable[str], rename_map: Mapping[str, str]) -> dict[str, str]:
    """Return the policy's name of each of the interface's ``keys``.

    A key is left out if its name is given to another one: the policy never sees it.
    """
    given = set(rename_map.values())
    return {key: rename_map.get(key, key) for key in keys if key in rename_map or key not in given}


def check_offered(inputs: Iterable[str], interface: Interface, asker: str) -> None:
    """Check that the interface offers every key of ``inputs``; ``asker`` is named in the error."""
    offered = interface.features
    for key in inputs:
        if key not in offered:
            near = _nearest(key, offered) or f" (choose from: {', '.join(offered)})"
            raise SpecMismatch(
                f"{asker}: {interface.name} offers no {key!r}{near}", code="policy.missing-input"
            )


def _nearest(key: str, offered: Iterable[str]) -> str:
    """Return the offered key nearest to ``key``; openpi writes it with slashes."""
    offered = list(offered)
    dotted = key.replace("/", ".")
    if dotted != key and dotted in offered:
        return f"; did you mean {dotted!r}? (names with slashes are openpi's)"
    return did_you_mean(key, offered)


def check_instructions(policy: str, benchmark: str, tasks: Iterable[Task]) -> None:
    """Check that every task has an instruction, for a language-conditioned policy."""
    for task in tasks:
        if not task.instruction:
            raise SpecMismatch(
                f"policy {policy!r} needs an instruction, {benchmark} has none for {task.name}; "
                "choose other tasks with --env.task",
                code="policy.missing-instruction",
            )


def indistinguishable_text(policy: str, texts: tuple[str, str]) -> str:
    """Return a clause that the policy encodes two instructions identically."""
    one, other = (strip_control_codes(text, 120) for text in texts)
    return f"{policy} reads {one!r} and {other!r} alike"


def check_compatible(
    wanted: Mapping[str, Feature],
    interface: Interface,
    rename_map: Mapping[str, str],
    use: ConfigUse = ConfigUse.EVALUATION,
    who: str = "the policy",
) -> None:
    """Check that the interface offers every input in ``wanted``, and takes the actions there.

    ``rename_map`` maps the interface's names to the policy's. ``use`` selects the flags that
    errors name, and ``who`` is named as the one that wants the inputs.
    """
    offered = interface.features
    for old in rename_map:
        if old not in offered:
            raise SpecMismatch(
                f"--rename_map renames {old}, which {interface.name} does not offer"
                f"{_nearest(old, offered)} (it offers {', '.join(offered)})",
                code="flag.rename-unknown",
            )
    for key, feature in wanted.items():
        _check_renamed(key, rename_map)
        if key == ACTION:
            _check_action(feature, interface)
            continue
        source = source_key(key, rename_map)
        if source not in offered or (source in rename_map and rename_map[source] != key):
            missing = _missing(key, wanted, interface, rename_map)
            raise SpecMismatch(f"{who} wants {missing}", code="policy.missing-input")
        _check_shape(key, feature, offered[source], interface, use, who)


def adopt_feature_sizes(
    wanted: Mapping[str, Feature],
    interface: Interface,
    rename_map: Mapping[str, str],
    use: ConfigUse,
) -> dict[str, Feature]:
    """Return ``wanted`` with the interface's sizes, for a policy that resizes and pads its inputs.

    For training it takes the dataset's state and action sizes, and drops missing cameras if at
    least one is present. LeRobot's placeholder cameras (``empty_camera``) are never required.
    """
    offered, found = interface.features, dict[str, Feature]()
    for key, feature in wanted.items():
        source = offered.get(source_key(key, rename_map))
        if feature.kind is FeatureKind.VISUAL:
            if source is not None or not key.startswith(EMPTY_CAMERA):
                found[key] = source or feature
        elif key == ACTION and use is ConfigUse.TRAINING:
            found[key] = replace(feature, shape=(interface.action.size,))
        else:
            found[key] = source if source is not None and use is ConfigUse.TRAINING else feature
    there = [key for key in _cameras(found) if source_key(key, rename_map) in offered]
    if use is ConfigUse.EVALUATION or not there:
        return found
    return {k: f for k, f in found.items() if f.kind is not FeatureKind.VISUAL or k in there}


def check_cameras(
    lost: Iterable[str],
    used: Iterable[str],
    interface: Interface,
    rename_map: Mapping[str, str],
) -> None:
    """Refuse unused cameras on both sides, as LeRobot does: they may be the same camera.

    ``lost`` are the policy's cameras that the interface lacks; ``used`` the policy's inputs.
    """
    seen = {source_key(key, rename_map) for key in used}
    unseen = [key for key in _cameras(interface.features) if key not in seen]
    missing = [key for key in lost if not key.startswith(EMPTY_CAMERA)]
    if unseen and missing:
        mapping = json.dumps({**rename_map, unseen[0]: missing[0]})
        raise SpecMismatch(
            f"the policy needs {', '.join(missing)}, which {interface.name} does not have, and "
            f"does not use its {', '.join(unseen)}: match them with --rename_map='{mapping}', or "
            "remove the unused ones (proctor data remove-feature)",
            code="policy.ambiguous-cameras",
        )


def _check_renamed(key: str, rename_map: Mapping[str, str]) -> None:
    """Refuse a rename map that gives the policy's feature ``key`` several sources."""
    sources = [old for old, new in rename_map.items() if new == key]
    if key == ACTION and sources:
        raise SpecMismatch(
            f"--rename_map gives {sources[0]} the name {ACTION}: only observations are renamed",
            code="flag.rename-action",
        )
    if len(sources) > 1:
        raise SpecMismatch(
            f"--rename_map gives {' and '.join(sources)} the same name, {key}: keep one of them",
            code="flag.duplicate",
        )


def _check_action(wanted: Feature, interface: Interface) -> None:
    if wanted.shape != (interface.action.size,):
        raise SpecMismatch(
            f"the policy's actions have {wanted.shape[0]} numbers, {interface.name} takes "
            f"{interface.action.size}: it was trained for another robot or control mode",
            code="policy.action-size-mismatch",
        )


def _missing(
    key: str, wanted: Mapping[str, Feature], interface: Interface, renames: Mapping[str, str]
) -> str:
    offered = interface.features
    if wanted[key].kind is not FeatureKind.VISUAL:
        return f"{key}; {interface.name} offers only {', '.join(offered)}"
    cameras = _cameras(offered)
    if not cameras:
        return f"the camera {key}; {interface.name} offers no images"
    taken = {source_key(k, renames) for k in _cameras(wanted) if k != key}
    free = [k for k in cameras if k not in taken]
    start = f"the camera {key}; {interface.name} offers {', '.join(cameras)}"
    if not free:
        return f"{start}, all of them in use: it cannot be evaluated here"
    mapping = json.dumps({**renames, free[0]: key})
    flag = f"--rename_map='{mapping}'"
    return f"{start}; add {flag} (or name cameras with --env.camera_name_mapping)"


def _cameras(features: Mapping[str, Feature]) -> list[str]:
    return [key for key, feature in features.items() if feature.kind is FeatureKind.VISUAL]


def _check_shape(
    key: str, wanted: Feature, found: Feature, interface: Interface, use: ConfigUse, who: str
) -> None:
    if found.shape == wanted.shape:
        return
    if wanted.kind is FeatureKind.VISUAL:
        height, width, _ = wanted.shape
        shape = "x".join(map(str, found.shape[:2]))
        advice = _size_advice(interface, height, width)
        if use is ConfigUse.TRAINING:
            advice = f"; add --dataset.image_size=[{height},{width}]"
        raise SpecMismatch(
            f"{who} wants {key} at {height}x{width}, {interface.name} gives {shape}{advice}",
            code="policy.image-size-mismatch",
        )
    raise SpecMismatch(
        f"{who} wants {key} with {wanted.shape[0]} numbers, {interface.name} gives "
        f"{list(found.shape)}: it was trained for another robot or observation",
        code="policy.state-size-mismatch",
    )


def _size_advice(interface: Interface, height: int, width: int) -> str:
    """Return the flags that make the interface's images this large; empty if there are none."""
    flags = interface.image_size_flags
    if not flags or (len(flags) == 1 and height != width):
        return ""
    sizes = (height, width)[: len(flags)]
    return "; add " + " ".join(f"{flag}={n}" for flag, n in zip(flags, sizes, strict=True))


def default_inputs(interface: Interface) -> dict[str, Feature]:
    """Return the inputs of an untrained policy: state and cameras, or else environment state."""
    offered = interface.features
    cameras = _cameras(offered)
    keys = [key for key in (STATE,) if key in offered] + cameras
    if not cameras and ENVIRONMENT_STATE in offered:
        keys.append(ENVIRONMENT_STATE)
    return {key: offered[key] for key in keys}
