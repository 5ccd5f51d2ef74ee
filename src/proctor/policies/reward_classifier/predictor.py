"""A trained reward classifier, ready to judge images with the normalisation it was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proctor.errors import UsageError
from proctor.features import Array, Feature
from proctor.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from proctor.policies.lerobot.checkpoint.location import locate
from proctor.policies.reward_classifier.network import RewardClassifier
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint, to_float_image
from proctor.policies.runtime.runner import device_or_fallback, make_runner, numerics_record


class RewardPredictor:
    """Judges images. A verdict does not depend on the other images of a batch."""

    def __init__(self, parts: LoadedCheckpoint, device: str = "auto") -> None:
        assert isinstance(parts.network, RewardClassifier)
        self.device, note = device_or_fallback(device)
        self.notes = (*parts.notes, *([note] if note else ()))
        self._parts = parts
        self._network = parts.network.eval().requires_grad_(False).to(self.device)
        self._preprocess = parts.preprocessor.on(self.device)
        self._runner = make_runner(self._forward, self.device, None)

    @property
    def features(self) -> dict[str, Feature]:
        """The images that it needs, by the dataset's names."""
        return dict(self._parts.config.input_features)

    @property
    def is_binary(self) -> bool:
        """Whether it distinguishes success from failure, and nothing else."""
        return self._network.is_binary

    def probabilities(self, images: Mapping[str, Array]) -> Array:
        """Return the probability of success [B] of ``images``, each uint8 [B, H, W, 3].

        With more than two classes: that of every class, [B, num_classes].
        """
        rows = {key: np.ascontiguousarray(images[key]) for key in self.features}
        found: Array = self._runner(rows).numpy()[:, 0]
        return found[:, 0] if self.is_binary else found

    def predict_reward(self, images: Mapping[str, Array], threshold: float = 0.5) -> Array:
        """Return the reward [B] of ``images``: 1 above ``threshold``, or the likeliest class."""
        found = self.probabilities(images)
        reward: Array = found > threshold if self.is_binary else found.argmax(-1)
        return reward.astype(np.float32)

    def protocol(self) -> dict[str, Any]:
        """Return what defines a verdict, as JSON values."""
        return {
            "type": self._parts.config.type,
            "files": dict(self._parts.files),
            "numerics": numerics_record(self.device, None),
        }

    def _forward(self, rows: dict[str, Tensor]) -> Tensor:
        images = self._preprocess({key: to_float_image(value) for key, value in rows.items()})
        return self._network.chunk(images, {})


def load_predictor(path: str, revision: str | None = None, device: str = "auto") -> RewardPredictor:
    """Return the reward classifier of a checkpoint folder or Hub id."""
    folder: Path = locate(path, revision).folder
    parts = read_checkpoint(folder)
    if not isinstance(parts.network, RewardClassifier):
        raise UsageError(
            f"{path} is a {parts.config.type}, not a reward_classifier",
            code="policy.not-a-reward-model",
        )
    with torch.inference_mode():
        return RewardPredictor(parts, device)
