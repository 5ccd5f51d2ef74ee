"""Whether a policy and a benchmark fit: asked before anything starts, answered with the fix."""

from __future__ import annotations

import json

from proctor.benchmarks.base import Benchmark
from proctor.errors import SpecMismatch
from proctor.features import Feature, FeatureKind
from proctor.policies.lerobot.config import (
    ENV_STATE,
    STATE,
    CheckpointConfig,
    FeatureType,
    PolicyFeature,
)


def benchmark_key(key: str, rename_map: dict[str, str]) -> str:
    """Return the benchmark's name for the policy's input ``key``."""
    return next((old for old, new in rename_map.items() if new == key), key)


def check_fit(
    config: CheckpointConfig, benchmark: Benchmark, rename_map: dict[str, str] | None = None
) -> None:
    """Check that the benchmark offers every input of the policy, and takes its actions.

    ``rename_map`` (benchmark's names to the policy's) defaults to the config's.

    Raises:
        SpecMismatch: what is missing or differs, and the flag that fixes it.
    """
    renames = rename_map if rename_map is not None else config.rename_map or {}
    offered = benchmark.features()
    for old in renames:
        if old not in offered:
            raise SpecMismatch(
                f"--rename_map renames {old}, which {benchmark.name} does not offer "
                f"(it offers {', '.join(offered)})"
            )
    for key, wanted in config.input_features.items():
        source = benchmark_key(key, renames)
        if source not in offered or (source in renames and renames[source] != key):
            raise SpecMismatch(_missing(key, wanted, config, benchmark, renames))
        _check_shape(key, wanted, offered[source], benchmark)
    if config.action_dim != benchmark.action.size:
        raise SpecMismatch(
            f"the policy's actions have {config.action_dim} numbers, {benchmark.name} takes "
            f"{benchmark.action.size}: it was trained for another robot or control mode"
        )


def _missing(
    key: str,
    wanted: PolicyFeature,
    config: CheckpointConfig,
    benchmark: Benchmark,
    renames: dict[str, str],
) -> str:
    offered = benchmark.features()
    if wanted.type is not FeatureType.VISUAL:
        return f"the policy wants {key}; {benchmark.name} offers only {', '.join(offered)}"
    cameras = [k for k, f in offered.items() if f.kind is FeatureKind.VISUAL]
    if not cameras:
        return f"the policy wants the camera {key}; {benchmark.name} offers no images"
    taken = {benchmark_key(k, renames) for k in config.cameras if k != key}
    free = [k for k in cameras if k not in taken]
    start = f"the policy wants the camera {key}; {benchmark.name} offers {', '.join(cameras)}"
    if not free:
        return f"{start}, all of them in use: it cannot be evaluated here"
    mapping = json.dumps({**renames, free[0]: key})
    flag = f"--rename_map='{mapping}'"
    return f"{start}; add {flag} (or name cameras with --env.camera_name_mapping)"


def _check_shape(key: str, wanted: PolicyFeature, found: Feature, benchmark: Benchmark) -> None:
    if wanted.type is FeatureType.VISUAL:
        _, height, width = wanted.shape
        if found.shape != (height, width, 3):
            shape = "x".join(map(str, found.shape[:2]))
            raise SpecMismatch(
                f"the policy wants {key} at {height}x{width}, {benchmark.name} gives {shape}; add "
                f"--env.observation_height={height} --env.observation_width={width}"
            )
    elif found.shape != wanted.shape:
        raise SpecMismatch(
            f"the policy wants {key} with {wanted.shape[0]} numbers, {benchmark.name} gives "
            f"{list(found.shape)}: it was trained for another robot or observation"
        )


def features_of(benchmark: Benchmark) -> dict[str, PolicyFeature]:
    """Return what an untrained policy looks at: cameras and state; if blind, the world's state."""
    offered = benchmark.features()
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
