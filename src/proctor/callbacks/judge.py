"""Lets a judge decide from images whether an episode was a success."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from proctor.callbacks.base import Callback
from proctor.features import Array, Feature
from proctor.types import EpisodeResult


class ImageClassifier(Protocol):
    """Gives images a probability of success."""

    @property
    def features(self) -> dict[str, Feature]:
        """The images that it needs."""

    def probabilities(self, images: Mapping[str, Array]) -> Array:
        """Return the probability of success [B] of ``images``, each uint8 [B, H, W, 3]."""

    def protocol(self) -> dict[str, Any]:
        """Return what defines a verdict, as JSON values."""


class Judge(Callback):
    """Adds its verdict to finished episodes, from the images of their last state.

    It comes before the journal, which keeps the verdict. An episode without a last state, because
    its simulator failed, gets none.
    """

    def __init__(self, classifier: ImageClassifier, threshold: float) -> None:
        self._classifier = classifier
        self._threshold = threshold

    @property
    def features(self) -> dict[str, Feature]:
        """The images that it needs."""
        return self._classifier.features

    def protocol(self) -> dict[str, Any]:
        """Return what defines a verdict, as JSON values."""
        return {**self._classifier.protocol(), "threshold": self._threshold}

    def on_episode_end(self, result: EpisodeResult) -> None:
        """Judge the episode, and drop its images."""
        if result.final_images is None:
            return
        images = {key: image[None] for key, image in result.final_images.items()}
        probability = float(self._classifier.probabilities(images)[0])
        result.judge_probability = probability
        result.judge_success = probability > self._threshold
        result.final_images = None
