"""Limits on the sizes in a policy's config, which may be untrusted: a network takes memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proctor.errors import UsageError
from proctor.features import Feature
from proctor.policies.lerobot.feature_json import channels_first

MOST_PIXELS, MOST_NUMBERS = 4096, 100_000
"""Largest side of an image, and largest state or action."""
MOST_WIDTH, MOST_LAYERS, MOST_STEPS = 16_384, 200, 10_000
"""Several times the sizes of any supported network."""


def check_sizes(config: Any, most: Mapping[str, int]) -> None:
    """Refuse sizes below 1 or above the limits in ``most``."""
    for name, limit in most.items():
        value = getattr(config, name)
        for size in value if isinstance(value, list) else [value]:
            if not 1 <= size <= limit:
                raise UsageError(
                    f"{name} is {value} (choose 1-{limit})", code="policy.out-of-range"
                )


def check_choices(config: Any, choices: Mapping[str, Sequence[str]]) -> None:
    """Refuse values that are not among a field's choices."""
    for name, known in choices.items():
        if getattr(config, name) not in known:
            raise UsageError(
                f"{name} is {getattr(config, name)!r} (choose {', '.join(known)})",
                code="policy.unknown-choice",
            )


def check_sides(config: Any, *names: str) -> None:
    """Refuse values that are not [height, width]; None is allowed."""
    for name in names:
        sides = getattr(config, name)
        if sides is not None and (len(sides) != 2 or min(sides) < 1 or max(sides) > MOST_PIXELS):
            raise UsageError(
                f"{name} is {sides}, expected [height, width]", code="policy.invalid-shape"
            )


def check_crop(name: str, crop: Sequence[int] | None, image: Sequence[int]) -> None:
    """Refuse a crop that is larger than the image; both are (height, width)."""
    height, width = image
    if crop is not None and (crop[0] > height or crop[1] > width):
        raise UsageError(
            f"{name} {list(crop)} is larger than the {height}x{width} image",
            code="policy.crop-too-large",
        )


def check_same_shape(policy: str, features: Mapping[str, Feature], cameras: Sequence[str]) -> None:
    """Refuse cameras of different shapes, for a policy whose image encoder takes one shape."""
    shapes = {features[key].shape for key in cameras}
    if len(shapes) > 1:
        raise UsageError(
            f"{policy}'s cameras differ in shape: {sorted(shapes)}",
            code="policy.camera-shapes-differ",
        )


def check_embedding_width(config: Any, name: str) -> None:
    """Refuse a width that a sinusoidal embedding, half sines and half cosines, cannot have."""
    width = getattr(config, name)
    if width < 4 or width % 2:
        raise UsageError(
            f"{name} is {width}, expected an even number of at least 4", code="policy.out-of-range"
        )


def check_camera(key: str, feature: Feature) -> None:
    """Refuse images without three channels, or too large ones."""
    shape = channels_first(feature)
    if len(shape) != 3 or shape[0] != 3 or not all(0 < n <= MOST_PIXELS for n in shape):
        raise UsageError(
            f"camera {key} has shape {list(shape)}, expected [3, H, W]", code="policy.invalid-shape"
        )


def check_vector(key: str, shape: tuple[int, ...]) -> None:
    """Refuse features that are not vectors, or too long ones."""
    if len(shape) != 1 or not 1 <= shape[0] <= MOST_NUMBERS:
        raise UsageError(
            f"{key} has shape {list(shape)}, expected [1-{MOST_NUMBERS}]",
            code="policy.invalid-shape",
        )


def check_backbone(config: Any) -> None:
    """Refuse an unsupported vision backbone."""
    if config.vision_backbone not in ("resnet18", "resnet34"):
        raise UsageError(
            f"vision_backbone is {config.vision_backbone!r} (choose resnet18, resnet34)",
            code="policy.unknown-choice",
        )
