"""LIBERO-plus's image corruptions: motion blur, Gaussian blur, zoom blur, fog and glass.

Numbers 1-10 are motion blur, 11-20 Gaussian blur, 21-30 zoom blur, 31-40 fog and 41-50 glass, each
in ten strengths. The definitions are those of ImageNet-C (Hendrycks and Dietterich, 2019) with
LIBERO-plus's strengths. Motion blur is ImageMagick's, computed here in its 16-bit integers, so that
ImageMagick is not needed. Motion blur, fog and glass are random; ``corrupted`` gets the generator.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import ndimage

from proctor.features import Array

_STRENGTHS = 10
_MOTION = (  # radius in pixels, standard deviation
    *((5, 2), (8, 3), (10, 4), (12, 5), (15, 6)),
    *((18, 8), (20, 10), (25, 12), (30, 15), (35, 20)),
)
_MOTION_DEGREES = 45
_ZOOM = (  # largest zoom (excluded), step
    *((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    *((1.36, 0.01), (1.41, 0.01), (1.46, 0.02), (1.51, 0.02), (1.56, 0.03)),
)
_FOG = (  # density, decay of the fractal's roughness
    *((0.5, 3.0), (1.0, 2.8), (1.5, 2.5), (2.0, 2.2), (2.5, 2.0)),
    *((3.0, 1.8), (3.5, 1.6), (4.0, 1.5), (4.5, 1.4), (5.0, 1.3)),
)
_FOG_MAP = 256
_GLASS = (  # standard deviation of the blur, largest shift in pixels, passes
    *((0.5, 1, 3), (0.7, 1, 3), (0.9, 2, 3), (1.0, 2, 2), (1.1, 3, 2)),
    *((1.3, 3, 2), (1.5, 4, 2), (1.8, 4, 2), (2.2, 5, 1), (2.5, 5, 1)),
)
_QUANTA = 257
"""ImageMagick's 16-bit value of one step of 8 bits."""


def noise_key(seed: int, suite: int, task_id: int, step: int) -> int:
    """Return the seed of the noise of one picture, by its episode and step."""
    return int(np.random.SeedSequence([seed, suite, task_id, step]).generate_state(1)[0])


def corrupted(image: Array, number: int, draw: np.random.RandomState) -> Array:
    """Return ``image``, uint8 [H, W, 3], with corruption ``number`` (1 to 50)."""
    kind, strength = divmod(number - 1, _STRENGTHS)
    return _KINDS[kind](image, strength, draw)


def _motion_blur(image: Array, strength: int, draw: np.random.RandomState) -> Array:
    """Blur along a line of random direction that starts at each pixel, as ImageMagick does."""
    radius, sigma = _MOTION[strength]
    angle = np.deg2rad(draw.uniform(-_MOTION_DEGREES, _MOTION_DEGREES))
    width = 2 * radius + 1
    along = np.arange(width, dtype=np.float64)
    kernel = np.exp(-(along * along) / (2.0 * sigma * sigma))
    kernel /= kernel.sum()
    columns = np.ceil(along * np.cos(angle) - 0.5).astype(int)
    rows = np.ceil(along * np.sin(angle) - 0.5).astype(int)
    height, breadth = image.shape[:2]
    blurred = np.zeros(image.shape)
    for weight, down, right in zip(kernel, rows, columns, strict=True):
        row = np.clip(np.arange(height) + down, 0, height - 1)
        column = np.clip(np.arange(breadth) + right, 0, breadth - 1)
        blurred += weight * (image[row[:, None], column].astype(np.float64) * _QUANTA)
    # ImageMagick rounds to 16 bits, and its PNG file drops the fraction of 8 bits.
    return (np.floor(blurred + 0.5).astype(np.int64) // _QUANTA).astype(np.uint8)


def _gaussian_blur(image: Array, strength: int, draw: np.random.RandomState) -> Array:
    return _bytes(_smoothed(image / 255.0, strength + 1))


def _zoom_blur(image: Array, strength: int, draw: np.random.RandomState) -> Array:
    """Average the image with zoomed copies of its centre."""
    end, step = _ZOOM[strength]
    factors = np.arange(1, end, step)
    plain = (image / 255.0).astype(np.float32)
    total = np.zeros_like(plain)
    for factor in factors:
        total += _zoomed(plain, factor)
    return _bytes((plain + total) / (len(factors) + 1))


def _zoomed(image: Array, factor: float) -> Array:
    height = len(image)
    side = int(np.ceil(height / float(factor)))
    start = (height - side) // 2
    part = image[start : start + side, start : start + side]
    large = ndimage.zoom(part, (factor, factor, 1), order=1)
    start = (len(large) - height) // 2
    return np.asarray(large[start : start + height, start : start + height])


def _fog(image: Array, strength: int, draw: np.random.RandomState) -> Array:
    """Add a random cloud to the image, and scale the result to the image's brightness."""
    density, decay = _FOG[strength]
    height, width = image.shape[:2]
    side = max(_FOG_MAP, 1 << (max(height, width) - 1).bit_length())
    cloud = _plasma(side, decay, draw)[:height, :width, np.newaxis]
    plain = image / 255.0
    brightest = plain.max()
    return _bytes((plain + density * cloud) * brightest / (brightest + density))


def _plasma(side: int, decay: float, draw: np.random.RandomState) -> Array:
    """Return a random map in [0, 1] by the diamond-square algorithm, on a torus.

    The sums are those of ImageNet-C to the bit: the squares' corners are added twice along x.
    """
    field = np.empty((side, side))
    field[0, 0] = 0.0
    step, rough = side, 100.0

    def jittered(total: Array) -> Array:
        return np.asarray(total / 4 + rough * draw.uniform(-rough, rough, total.shape))

    while step >= 2:
        half = step // 2
        corners = field[::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=0)
        field[half::step, half::step] = jittered(pairs + np.roll(pairs, -1, axis=1))
        middles = field[half::step, half::step]
        across = (middles + np.roll(middles, 1, axis=0)) + (corners + np.roll(corners, -1, axis=1))
        field[::step, half::step] = jittered(across)
        down = (middles + np.roll(middles, 1, axis=1)) + (corners + np.roll(corners, -1, axis=0))
        field[half::step, ::step] = jittered(down)
        step, rough = half, rough / decay
    field -= field.min()
    return np.asarray(field / field.max())


def _glass(image: Array, strength: int, draw: np.random.RandomState) -> Array:
    """Blur, replace pixels by random neighbours, and blur again.

    ImageNet-C means to swap pixels, but its swap of two views copies one of them: so does this.
    Later pixels see earlier replacements, so the order (from the last row and column) matters.
    """
    sigma, shift, passes = _GLASS[strength]
    height, width = image.shape[:2]
    soft = (_smoothed(image / 255.0, sigma) * 255).astype(np.uint8)
    packed = soft.astype(np.uint32) @ np.array([1, 1 << 8, 1 << 16], np.uint32)
    pixels: list[int] = packed.ravel().tolist()
    rows = np.arange(height - shift, shift, -1)
    columns = np.arange(width - shift, shift, -1)
    targets = (rows[:, None] * width + columns).ravel()
    for _ in range(passes):
        shifts = draw.randint(-shift, shift, size=(len(targets), 2))
        sources = targets + shifts[:, 1] * width + shifts[:, 0]
        for target, source in zip(targets.tolist(), sources.tolist(), strict=True):
            pixels[target] = pixels[source]
    flat = np.array(pixels, np.uint32).reshape(height, width)
    shuffled = np.stack([flat & 255, (flat >> 8) & 255, flat >> 16], axis=-1).astype(np.uint8)
    return _bytes(_smoothed(shuffled / 255.0, sigma))


def _smoothed(image: Array, sigma: float) -> Array:
    """Blur each channel, with the edges repeated."""
    return np.asarray(ndimage.gaussian_filter(image, (sigma, sigma, 0), mode="nearest"))


def _bytes(image: Array) -> Array:
    return np.asarray(np.clip(image, 0, 1) * 255).astype(np.uint8)


_KINDS: tuple[Callable[[Array, int, np.random.RandomState], Array], ...] = (
    _motion_blur,
    _gaussian_blur,
    _zoom_blur,
    _fog,
    _glass,
)
