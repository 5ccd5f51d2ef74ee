"""Perturbations of images after rendering: sensor noise, blur and occlusion.

They change the policy's cameras only; the image of ``FeatureKind.FILM`` in videos stays clean.
"""

from __future__ import annotations

import numpy as np

from proctor.benchmarks.base import Benchmark
from proctor.benchmarks.perturbations.base import ActivePerturbation, Dimension, PerturbedEpisode
from proctor.features import Array, FeatureKind


class _ImageDimension(Dimension):
    noticed_in = frozenset({FeatureKind.VISUAL})

    def unsupported(self, benchmark: Benchmark) -> str | None:
        """Refuse a benchmark without cameras."""
        return None if self.noticed_keys(benchmark) else "it offers no camera image"


class Noise(_ImageDimension):
    """Sensor noise: independent Gaussian noise on every pixel and channel of every frame."""

    name = "noise"
    levels = (10.0, 25.0, 50.0)
    unit = "standard deviation, of 255"

    def begin(self, episode: PerturbedEpisode) -> ActivePerturbation:
        """Return noise of the level's standard deviation."""
        return _NoisyImages(episode, self.strength(episode.level))


class _NoisyImages(ActivePerturbation):
    def __init__(self, episode: PerturbedEpisode, sigma: float) -> None:
        self._episode, self._sigma = episode, sigma

    def change_observation(self, key: str, value: Array, step: int) -> Array:
        if not _is_camera(self._episode, key):
            return value
        noise = self._episode.rng(key, step).standard_normal(value.shape, np.float32)
        return _to_uint8(value + np.float32(self._sigma) * noise)


class Blur(_ImageDimension):
    """Defocus: a Gaussian blur whose width grows with the image."""

    name = "blur"
    levels = (0.005, 0.01, 0.02)
    unit = "standard deviation, in image heights"

    def begin(self, episode: PerturbedEpisode) -> ActivePerturbation:
        """Return a blur of the level's width."""
        return _BlurredImages(episode, self.strength(episode.level))


class _BlurredImages(ActivePerturbation):
    def __init__(self, episode: PerturbedEpisode, width: float) -> None:
        self._episode, self._width = episode, width

    def change_observation(self, key: str, value: Array, step: int) -> Array:
        if not _is_camera(self._episode, key):
            return value
        kernel = _gaussian(self._width * value.shape[0])
        blurred = value.astype(np.float32)
        for axis in (0, 1):
            blurred = _convolve(blurred, kernel, axis)
        return _to_uint8(blurred)


def _gaussian(sigma: float) -> Array:
    radius = max(1, int(np.ceil(3 * sigma)))
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    return np.asarray(kernel / kernel.sum(), np.float32)


def _convolve(image: Array, kernel: Array, axis: int) -> Array:
    """Convolve along one axis; the border repeats its pixels."""
    radius, length = len(kernel) // 2, image.shape[axis]
    padding = [(radius, radius) if at == axis else (0, 0) for at in range(image.ndim)]
    padded = np.pad(image, padding, mode="edge")
    result = np.zeros_like(image)
    for place, weight in enumerate(kernel):
        result += weight * np.take(padded, range(place, place + length), axis)
    return result


class Occlusion(_ImageDimension):
    """Something in front of the lens: a rectangle of one colour, fixed for the whole episode."""

    name = "occlusion"
    levels = (0.05, 0.1, 0.2)
    unit = "covered part of the image"

    def begin(self, episode: PerturbedEpisode) -> ActivePerturbation:
        """Return a rectangle of the level's area, at another place in every camera."""
        return _OccludedImages(episode, self.strength(episode.level))


class _OccludedImages(ActivePerturbation):
    def __init__(self, episode: PerturbedEpisode, area: float) -> None:
        self._episode, self._area = episode, area

    def change_observation(self, key: str, value: Array, step: int) -> Array:
        if not _is_camera(self._episode, key):
            return value
        rng = self._episode.rng(key)
        shape = np.exp(rng.uniform(np.log(0.5), np.log(2.0)))  # height : width
        sides = np.sqrt(self._area * shape), np.sqrt(self._area / shape)
        height, width = (
            max(1, round(side * whole)) for side, whole in zip(sides, value.shape, strict=False)
        )
        top = round(rng.uniform(0, value.shape[0] - height))
        left = round(rng.uniform(0, value.shape[1] - width))
        covered = value.copy()
        covered[top : top + height, left : left + width] = rng.integers(0, 256, value.shape[2:])
        return covered


def _is_camera(episode: PerturbedEpisode, key: str) -> bool:
    feature = episode.features.get(key)
    return feature is not None and feature.kind is FeatureKind.VISUAL


def _to_uint8(image: Array) -> Array:
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)
