"""Sizes that a policy may have: a config may come from anywhere, and building it takes memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proctor.errors import UsageError
from proctor.features import Feature
from proctor.policies.lerobot.feature_json import channels_first

MOST_PIXELS, MOST_NUMBERS = 4096, 100_000
"""Of an image's side, and of a state or an action."""
MOST_WIDTH, MOST_LAYERS, MOST_STEPS = 16_384, 200, 10_000
"""Of any network that we know how to build, several times over."""


def check_sizes(config: Any, most: Mapping[str, int]) -> None:
    """Refuse sizes of a network below 1 or above what can be meant: building it would take all.

    Raises:
        UsageError: naming the field.
    """
    for name, limit in most.items():
        value = getattr(config, name)
        for size in value if isinstance(value, list) else [value]:
            if not 1 <= size <= limit:
                raise UsageError(f"{name} is {value} (choose 1-{limit})")


def check_choices(config: Any, choices: Mapping[str, Sequence[str]]) -> None:
    """Refuse a name that is none of those a field may have.

    Raises:
        UsageError: naming the field.
    """
    for name, known in choices.items():
        if getattr(config, name) not in known:
            raise UsageError(f"{name} is {getattr(config, name)!r} (choose {', '.join(known)})")


def check_sides(config: Any, *names: str) -> None:
    """Refuse what is no height and width of an image; None is one that is left alone.

    Raises:
        UsageError: naming the field.
    """
    for name in names:
        sides = getattr(config, name)
        if sides is not None and (len(sides) != 2 or min(sides) < 1 or max(sides) > MOST_PIXELS):
            raise UsageError(f"{name} is {sides}, expected [height, width]")


def check_camera(key: str, feature: Feature) -> None:
    """Refuse pictures that are not of three colours, or too large."""
    shape = channels_first(feature)
    if len(shape) != 3 or shape[0] != 3 or not all(0 < n <= MOST_PIXELS for n in shape):
        raise UsageError(f"camera {key} has shape {list(shape)}, expected [3, H, W]")


def check_vector(key: str, shape: tuple[int, ...]) -> None:
    """Refuse what is no vector, or one too long."""
    if len(shape) != 1 or not 1 <= shape[0] <= MOST_NUMBERS:
        raise UsageError(f"{key} has shape {list(shape)}, expected [1-{MOST_NUMBERS}]")


def check_backbone(config: Any) -> None:
    """Refuse a vision backbone that we have no network for."""
    if config.vision_backbone not in ("resnet18", "resnet34"):
        raise UsageError(
            f"vision_backbone is {config.vision_backbone!r} (we have resnet18, resnet34)"
        )
