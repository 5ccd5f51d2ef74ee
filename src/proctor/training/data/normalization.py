"""Normalisation of a trained policy, from the dataset's statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from proctor.config.training import TrainConfig
from proctor.errors import UsageError
from proctor.features import ACTION
from proctor.policies.compatibility import policy_keys
from proctor.policies.lerobot.checkpoint.checkpoint import FOLLOWED
from proctor.policies.lerobot.processors.pipelines import (
    normalization_conflicts,
    with_dataset_stats,
)
from proctor.policies.lerobot.processors.processors import Normalize, Stats
from proctor.policies.lerobot.processors.step_reader import check_stats
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint
from proctor.training.data.dataset_selection import DatasetSelection

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def dataset_stats(
    config: TrainConfig, selection: DatasetSelection, rename_map: Mapping[str, str]
) -> Stats:
    """Return the dataset's statistics by the policy's feature names."""
    source = selection.source
    stats: Stats = {
        name: {
            k: torch.from_numpy(np.array(value, dtype=np.float32))
            for k, value in source.stats[key].items()
        }
        for key, name in policy_keys(source.stats, rename_map).items()
    }
    if config.dataset.use_imagenet_stats:
        for key, name in policy_keys(source.info.cameras, rename_map).items():
            if not source.info.is_depth(key):
                of_camera = stats.setdefault(name, {})
                of_camera |= {k: torch.tensor(v).reshape(3, 1, 1) for k, v in IMAGENET.items()}
    return stats


def with_stats(parts: LoadedCheckpoint, stats: Stats) -> LoadedCheckpoint:
    """Return the parts with the dataset's statistics and config.json's normalisation modes."""
    pipelines = parts.preprocessor, parts.postprocessor
    odd = normalization_conflicts(parts.config, *pipelines)
    notes = [f"in config.json {'; '.join(odd)}: config.json is followed, as in LeRobot"]
    before, after = with_dataset_stats(parts.config, *pipelines, stats)
    notes = [*parts.notes, *(notes if odd else ())]
    return replace(parts, preprocessor=before, postprocessor=after, notes=tuple(notes))


def check_resumed_normalization(parts: LoadedCheckpoint) -> LoadedCheckpoint:
    """Check that the postprocessor inverts the preprocessor's action normalisation."""
    pipelines = parts.preprocessor, parts.postprocessor
    before, after = (
        {step.asked(ACTION) for step in pipeline.steps if isinstance(step, Normalize)}
        for pipeline in pipelines
    )
    if before and after and before != after:
        names = [" ".join(sorted(mode.value for mode in modes)) for modes in (before, after)]
        raise UsageError(
            f"--resume: the checkpoint's preprocessor normalises actions by {names[0]}, but its "
            f"postprocessor inverts {names[1]}; restore the changed file",
            code="checkpoint.pipeline-mismatch",
        )
    odd = normalization_conflicts(parts.config, *pipelines)
    notes = [f"in config.json {'; '.join(odd)}: {FOLLOWED}"]
    return replace(parts, notes=(*parts.notes, *(notes if odd else ())))


def require_stats(parts: LoadedCheckpoint, selection: DatasetSelection) -> None:
    """Check that the dataset has the statistics for the policy's normalisation."""
    features = {**parts.config.input_features, **parts.config.output_features}
    for key in features:
        if parts.preprocessor.lacks_stats(key):
            raise UsageError(
                f"{selection.source.name} has no statistics of {key} for its normalisation "
                "(compute them with proctor data stats)",
                code="dataset.missing-stats",
            )
    for step in (*parts.preprocessor.steps, *parts.postprocessor.steps):
        if isinstance(step, Normalize):
            check_stats(step, f"the statistics of {selection.source.name}")
