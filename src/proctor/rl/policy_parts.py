"""The policy that is trained online: features of the environment, statistics, network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from proctor import plugins
from proctor.config.online_training import OnlineTrainConfig
from proctor.config.sections.online import LeRobotFix
from proctor.errors import UsageError, did_you_mean
from proctor.features import ACTION, ActionSpec, Array, Feature, FeatureKind, Interface, NormMode
from proctor.fingerprint import ConfigUse
from proctor.policies.gaussian_actor.config import GaussianActorConfig
from proctor.policies.gaussian_actor.processors import make_pipelines
from proctor.policies.lerobot.checkpoint.checkpoint import build_network, read_checkpoint
from proctor.policies.lerobot.checkpoint.pretrained import PretrainedConfig, local_checkpoint
from proctor.policies.lerobot.config.config import CheckpointPlugin
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint
from proctor.training.rng import RngStreams

CHANGED_BY_RESUME = ("online_steps", "device")
"""Fields of the policy that a resumed training may change."""


@dataclass(frozen=True)
class TrainedPolicy:
    """The policy of an online training."""

    parts: LoadedCheckpoint
    config: GaussianActorConfig
    notes: tuple[str, ...] = ()


def make_policy(
    config: OnlineTrainConfig,
    interface: Interface,
    checkpoint: Path | None = None,
    statistics: Mapping[str, Mapping[str, Any]] | None = None,
) -> TrainedPolicy:
    """Make the policy for the environment's ``interface``.

    Args:
        config: the settings.
        interface: features and actions of the environment.
        checkpoint: the policy of a training that is resumed.
        statistics: those of the demonstrations, used where the settings have none.
    """
    policy = config.policy
    if checkpoint is None and isinstance(policy, PretrainedConfig):
        checkpoint = local_checkpoint(policy)
    if checkpoint is not None:
        overrides = (
            policy.overrides
            if isinstance(policy, PretrainedConfig)
            else {name: getattr(policy, name) for name in CHANGED_BY_RESUME}
        )
        parts = read_checkpoint(checkpoint, overrides, interface, ConfigUse.TRAINING)
        if not isinstance(parts.config, GaussianActorConfig):
            raise UsageError(
                f"{checkpoint} is a {parts.config.type}, which does not learn online (choose a "
                "gaussian_actor)",
                code="policy.not-trainable",
            )
        parts.network.begin_training()
        return TrainedPolicy(parts, parts.config, parts.notes)
    assert isinstance(policy, GaussianActorConfig)
    return _new_policy(config, policy, interface, statistics or {})


def _new_policy(
    config: OnlineTrainConfig,
    policy: GaussianActorConfig,
    interface: Interface,
    statistics: Mapping[str, Mapping[str, Any]],
) -> TrainedPolicy:
    plugin = plugins.find_policy(policy.type)
    assert isinstance(plugin, CheckpointPlugin)
    inputs = select_inputs(interface, config.rl.inputs)
    policy = policy.with_features(inputs, interface.action.size)
    given = policy.dataset_stats
    is_usual = given == type(policy)().dataset_stats  # LeRobot's example, which fits no environment
    chosen = {} if given is None or is_usual else given
    stats = _statistics(policy, {**statistics, **chosen})
    low, high = _action_range(policy, interface.action, (chosen, statistics))
    stats[ACTION] = {"min": low, "max": high}
    policy = replace(
        policy,
        dataset_stats={
            key: {name: v.tolist() for name, v in s.items()} for key, s in stats.items()
        },
    )
    policy.validate()
    notes = []
    is_unit = np.allclose(low, -1) and np.allclose(high, 1)
    if not is_unit and LeRobotFix.NORMALISATION not in config.rl.fixes:
        notes.append(
            "the actions' range is not -1 to 1: LeRobot's learner then mixes two scales, as this "
            "one does; --rl.fix=normalisation mends it"
        )
    if unknown := [key for key in inputs if key not in stats]:
        notes.append(
            f"no statistics of {', '.join(unknown)}: not normalised; give "
            "--policy.dataset_stats, or demonstrations (--dataset.repo_id)"
        )
    before, after = make_pipelines(policy)
    with RngStreams(config.seed).seed_weight_init():
        network = build_network(plugin, policy)
    network.load_pretrained()
    network.begin_training()
    parts = LoadedCheckpoint(policy, network, plugin.prefix, before, after)
    return TrainedPolicy(parts, policy, tuple(notes))


def select_inputs(interface: Interface, requested: list[str] | None) -> dict[str, Feature]:
    """Return the policy's input features: ``requested``, or all states."""
    available = {
        key: feature
        for key, feature in interface.features.items()
        if feature.kind in (FeatureKind.VISUAL, FeatureKind.STATE, FeatureKind.ENV)
    }
    if requested is None:
        requested = [k for k, f in available.items() if f.kind is not FeatureKind.VISUAL]
    if not requested:
        raise UsageError(
            f"{interface.name} has no states; choose images, as "
            f"--rl.inputs=[{', '.join(available)}]",
            code="flag.missing",
        )
    for key in requested:
        if key not in available:
            hint = did_you_mean(key, available) or f" (choose from: {', '.join(available)})"
            raise UsageError(
                f"--rl.inputs: {interface.name} has no {key!r}{hint}",
                code="rl.unknown-observation",
            )
    return {key: available[key] for key in requested}


def _statistics(
    policy: GaussianActorConfig, known: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Array]]:
    """Return the statistics of the policy's inputs, those that are known."""
    stats = {}
    for key, feature in policy.input_features.items():
        mode = policy.normalization_mapping.get(feature.kind.value)
        wanted = ("mean", "std") if mode is NormMode.MEAN_STD else ("min", "max")
        found = known.get(key, {})
        if all(name in found for name in wanted):
            stats[key] = {name: np.asarray(found[name], np.float32).ravel() for name in wanted}
    return stats


def _action_range(
    policy: GaussianActorConfig, action: ActionSpec, known: Sequence[Mapping[str, Any]]
) -> tuple[Array, Array]:
    """Return the range of the policy's actions: the chosen one, or the environment's.

    An environment without a range gets that of the demonstrations. ``known`` has the chosen
    statistics, then those of the demonstrations.
    """
    size = policy.action_dim
    chosen, recorded = (_stated_range(stats.get(ACTION, {}), size) for stats in known)
    low, high = (bound[:size] for bound in action.bounds)
    bounded = np.isfinite(low).all() and np.isfinite(high).all()
    found = chosen or ((low, high) if bounded else recorded)
    if found is None:
        raise UsageError(
            "the environment's actions have no range; give it as --policy.dataset_stats="
            "'{action: {min: [...], max: [...]}}'",
            code="flag.missing",
        )
    return found


def _stated_range(stats: Mapping[str, Any], size: int) -> tuple[Array, Array] | None:
    if not all(len(np.atleast_1d(stats.get(name, ()))) >= size for name in ("min", "max")):
        return None
    low, high = (np.asarray(stats[name], np.float32)[:size] for name in ("min", "max"))
    return low, high
