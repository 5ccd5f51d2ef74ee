"""Whether a policy and an interface fit: asked before anything starts, answered with the fix."""

from __future__ import annotations

import json

from proctor.errors import SpecMismatch
from proctor.features import Feature, FeatureKind, Interface
from proctor.policies.fit import offered_key
from proctor.policies.lerobot.config import (
    ENV_STATE,
    STATE,
    CheckpointConfig,
    FeatureType,
    PolicyFeature,
)


def check_fit(
    config: CheckpointConfig, interface: Interface, rename_map: dict[str, str] | None = None
) -> None:
    """Check that the interface offers every input of the policy, and takes its actions.

    ``rename_map`` (its names to the policy's) defaults to the config's.

    Raises:
        SpecMismatch: what is missing or differs, and the flag that fixes it.
    """
    renames = rename_map if rename_map is not None else config.rename_map or {}
    offered = interface.features
    for old in renames:
        if old not in offered:
            raise SpecMismatch(
                f"--rename_map renames {old}, which {interface.name} does not offer "
                f"(it offers {', '.join(offered)})"
            )
    for key, wanted in config.input_features.items():
        source = offered_key(key, renames)
        if source not in offered or (source in renames and renames[source] != key):
            raise SpecMismatch(_missing(key, wanted, config, interface, renames))
        _check_shape(key, wanted, offered[source], interface)
    if config.action_dim != interface.action.size:
        raise SpecMismatch(
            f"the policy's actions have {config.action_dim} numbers, {interface.name} takes "
            f"{interface.action.size}: it was trained for another robot or control mode"
        )


def _missing(
    key: str,
    wanted: PolicyFeature,
    config: CheckpointConfig,
    interface: Interface,
    renames: dict[str, str],
) -> str:
    offered = interface.features
    if wanted.type is not FeatureType.VISUAL:
        return f"the policy wants {key}; {interface.name} offers only {', '.join(offered)}"
    cameras = [k for k, f in offered.items() if f.kind is FeatureKind.VISUAL]
    if not cameras:
        return f"the policy wants the camera {key}; {interface.name} offers no images"
    taken = {offered_key(k, renames) for k in config.cameras if k != key}
    free = [k for k in cameras if k not in taken]
    start = f"the policy wants the camera {key}; {interface.name} offers {', '.join(cameras)}"
    if not free:
        return f"{start}, all of them in use: it cannot be evaluated here"
    mapping = json.dumps({**renames, free[0]: key})
    flag = f"--rename_map='{mapping}'"
    return f"{start}; add {flag} (or name cameras with --env.camera_name_mapping)"


def _check_shape(key: str, wanted: PolicyFeature, found: Feature, interface: Interface) -> None:
    if wanted.type is FeatureType.VISUAL:
        _, height, width = wanted.shape
        if found.shape != (height, width, 3):
            shape = "x".join(map(str, found.shape[:2]))
            raise SpecMismatch(
                f"the policy wants {key} at {height}x{width}, {interface.name} gives {shape}; add "
                f"--env.observation_height={height} --env.observation_width={width}"
            )
    elif found.shape != wanted.shape:
        raise SpecMismatch(
            f"the policy wants {key} with {wanted.shape[0]} numbers, {interface.name} gives "
            f"{list(found.shape)}: it was trained for another robot or observation"
        )


def features_of(interface: Interface) -> dict[str, PolicyFeature]:
    """Return what an untrained policy looks at: cameras and state; if blind, the world's state."""
    offered = interface.features
    inputs: dict[str, PolicyFeature] = {}
    if STATE in offered:
        inputs[STATE] = PolicyFeature(FeatureType.STATE, offered[STATE].shape)
    for key, feature in offered.items():
        if feature.kind is FeatureKind.VISUAL:
            height, width, channels = feature.shape
            inputs[key] = PolicyFeature(FeatureType.VISUAL, (channels, height, width))
    blind = all(f.type is not FeatureType.VISUAL for f in inputs.values())
    if blind and ENV_STATE in offered:
        inputs[ENV_STATE] = PolicyFeature(FeatureType.ENV, offered[ENV_STATE].shape)
    return inputs
