"""Statistics of actions relative to the state, for each step of a chunk."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from proctor.errors import UsageError
from proctor.features import ACTION, STATE, Array
from proctor.policies.blocks.poses import relative_poses
from proctor.policies.lerobot.config.presets import POSE_SIZE, RelativeChunks
from proctor.policies.lerobot.processors.relative_actions import RelativeActions
from proctor.training.data.dataset_selection import DatasetSelection


def relative_action_stats(selection: DatasetSelection, chunks: RelativeChunks) -> dict[str, Tensor]:
    """Return min, max, mean, std and quantiles [horizon, A] over all whole chunks of a dataset."""
    if selection.handle is None:
        raise UsageError(
            "use_relative_actions needs statistics of the whole dataset: set "
            "--dataset.streaming=false",
            code="dataset.not-streamable",
        )
    dataset = selection.handle.frames()
    found = dataset.batch(np.arange(len(dataset)), [ACTION, STATE])
    actions, states = (np.asarray(found[key], np.float32) for key in (ACTION, STATE))
    horizon = chunks.horizon
    starts = _whole_chunks(selection.source.episodes.length, horizon)
    if len(starts) < 2:
        raise UsageError(
            f"{selection.source.name} has no episodes of {horizon} steps, which the statistics of "
            "relative actions need",
            code="dataset.too-short",
        )
    reference = torch.from_numpy(states[starts])
    rows = []
    for step in range(horizon):
        action = torch.from_numpy(actions[starts + step])
        rows.append(_summary(_relative(action, reference, chunks.poses).numpy()))
    return {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in rows[0]}


def _relative(actions: Tensor, reference: Tensor, poses: tuple[int, ...]) -> Tensor:
    """Return actions [N, A] relative to states [N, S]; those of ``poses`` as transforms."""
    found = actions - RelativeActions().offset(actions, reference)
    for start in poses:
        part = slice(start, start + POSE_SIZE)
        found[:, part] = relative_poses(reference[:, part], actions[:, None, part])[:, 0]
    return found


def _whole_chunks(lengths: Array, horizon: int) -> Array:
    """Return the frames at which a whole chunk starts."""
    ends = np.cumsum(lengths)
    parts = [
        np.arange(end - length, max(end - length, end - horizon + 1))
        for end, length in zip(ends, lengths, strict=True)
    ]
    return np.concatenate(parts)


def _summary(values: Array) -> dict[str, Array]:
    return {
        "min": values.min(0),
        "max": values.max(0),
        "mean": values.mean(0),
        "std": values.std(0),
        "q01": np.quantile(values, 0.01, axis=0).astype(np.float32),
        "q99": np.quantile(values, 0.99, axis=0).astype(np.float32),
    }
