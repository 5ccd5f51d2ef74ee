"""A policy from pictures that is fitted in seconds on a CPU, for demonstrations without a GPU.

    proctor eval --policy.type=measurements.picture_regression:PLUGIN --policy.dataset=DIR ...

Two kernel ridge regressions on the demonstrations of one task. The first predicts from the picture
where the hand will end, as the demonstrations' last states show. The second predicts the next
actions from the hand's position and that place.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from proctor import datasets
from proctor.features import IMAGE, STATE, Array, Interface
from proctor.policies.base import Batch, Policy, PolicyConfig, PolicyPlugin, PolicySpec

BLOCK = 4
"""Pixels of a side that are averaged."""
COMPONENTS = 100
"""Principal components of a picture."""
HAND = slice(0, 3)


@dataclass
class PictureRegressionConfig(PolicyConfig):
    """Flags of the policy."""

    type: str = "picture_regression"
    dataset: str = field(default="", metadata={"help": "folder of the demonstrations"})
    crop: list[int] = field(
        default_factory=lambda: [24, 34, 48, 48],
        metadata={"help": "part of the picture: top, left, height, width"},
    )
    chunk_size: int = field(default=20, metadata={"help": "actions per inference call"})


class KernelRidge:
    """Kernel ridge regression with a Gaussian kernel of the median width."""

    def __init__(self, inputs: Array, targets: Array, ridge: float) -> None:
        self._inputs, self._mean = inputs, targets.mean(0)
        distances = self._distances(inputs)
        self._width = float(np.median(distances)) / 0.5
        kernel = np.exp(-distances / self._width) + ridge * np.eye(len(inputs))
        self._weights = np.linalg.solve(kernel, targets - self._mean)

    def __call__(self, inputs: Array) -> Array:
        """Return the predictions for inputs [N, D]."""
        kernel = np.exp(-self._distances(inputs) / self._width)
        return np.asarray(kernel @ self._weights + self._mean)

    def _distances(self, inputs: Array) -> Array:
        known = self._inputs
        squares = (inputs**2).sum(1)[:, None] + (known**2).sum(1)[None]
        return np.asarray(np.maximum(squares - 2 * inputs @ known.T, 0))


class PictureRegression(Policy):
    """Where to, from the picture; how, from the hand's position."""

    def __init__(self, config: PictureRegressionConfig, interface: Interface) -> None:
        self._crop = config.crop
        self.spec = PolicySpec(
            "picture_regression", inputs=(IMAGE, STATE), n_action_steps=config.chunk_size
        )
        assert interface.fps is not None
        times = [step / interface.fps for step in range(config.chunk_size)]
        read = datasets.open(config.dataset, delta_timestamps={"action": times})
        parts = [
            read.batch(list(range(start, min(start + 200, len(read)))))
            for start in range(0, len(read), 200)
        ]
        images, states, actions = (
            np.concatenate([part[key] for part in parts]) for key in (IMAGE, STATE, "action")
        )
        self._version = zlib.crc32(actions.tobytes())
        ends = np.concatenate([np.full(end - start, end - 1) for start, end in read.spans])
        hand, goal = states[:, HAND].astype(float), states[ends, HAND].astype(float)
        self._fit_pictures(images, goal)
        route = self._route(hand, goal)
        self._middle, self._scale = route.mean(0), route.std(0) + 1e-6
        flat = actions.reshape(len(actions), -1).astype(float)
        self._chunk = KernelRidge((route - self._middle) / self._scale, flat, ridge=1e-3)
        self._shape = actions.shape[1:]

    def _fit_pictures(self, images: Array, goal: Array) -> None:
        pixels = self._pixels(images)
        self._mean_pixels = pixels.mean(0)
        centred = pixels - self._mean_pixels
        variance, axes = np.linalg.eigh(centred.T @ centred / len(centred))
        # Divided by the root of the deviation: small objects matter beside the arm.
        self._axes = axes[:, -COMPONENTS:] / np.maximum(variance[-COMPONENTS:], 1e-9) ** 0.25
        self._goal = KernelRidge(centred @ self._axes, goal, ridge=1e-2)

    def _pixels(self, images: Array) -> Array:
        top, left, height, width = self._crop
        seen = images[:, top : top + height, left : left + width].astype(np.float64) / 255
        blocks = (len(seen), height // BLOCK, BLOCK, width // BLOCK, BLOCK, 3)
        return np.asarray(seen.reshape(blocks).mean((2, 4)).reshape(len(seen), -1))

    def _route(self, hand: Array, goal: Array) -> Array:
        return np.concatenate([hand, goal - hand], axis=1)

    def act(self, batch: Batch) -> Array:
        """Return a chunk for every query, one by one: equal in every batch."""
        images = batch.observations[IMAGE][:, -1]
        hands = batch.observations[STATE][:, -1, HAND].astype(float)
        return np.stack([self._one(i[None], h[None]) for i, h in zip(images, hands, strict=True)])

    def _one(self, image: Array, hand: Array) -> Array:
        goal = self._goal((self._pixels(image) - self._mean_pixels) @ self._axes)
        route = (self._route(hand, goal) - self._middle) / self._scale
        return np.asarray(np.clip(self._chunk(route)[0].reshape(self._shape), -1, 1), np.float32)

    def protocol(self) -> dict[str, Any]:
        """Return what defines the policy: the demonstrations and the flags."""
        return {"crop": self._crop, "demonstrations": self._version, "components": COMPONENTS}


PLUGIN = PolicyPlugin(
    config=PictureRegressionConfig, make=PictureRegression, summary="regression from pictures"
)
