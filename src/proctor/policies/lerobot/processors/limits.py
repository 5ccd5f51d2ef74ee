"""Limits on the values in a policy's config, which may be untrusted: a network takes memory.

A field states what it may hold, as ``setting(512, "width of the transformer", WIDTH)``;
``check_fields`` refuses everything else. The other checks concern several fields at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, Protocol

from proctor.errors import UsageError
from proctor.features import Feature
from proctor.policies.lerobot.config.feature_json import channels_first

MOST_PIXELS, MOST_NUMBERS = 4096, 100_000
"""Largest side of an image, and largest state or action."""
MOST_WIDTH, MOST_LAYERS, MOST_STEPS, MOST_PROMPT = 16_384, 200, 10_000, 4096
"""Several times the sizes of any supported network."""
ALLOWED = "allowed"
"""Key of a field's metadata: the values that it may hold."""


class Allowed(Protocol):
    """Values that a field may hold; None is always allowed where the field's type has it."""

    def check(self, name: str, value: Any) -> None:
        """Refuse another value of the field ``name``."""


class Limits(NamedTuple):
    """Numbers of an interval; each number of a list is checked."""

    least: float
    most: float = math.inf
    above: bool = False
    """Whether ``least`` itself is refused."""
    below: bool = False
    """Whether ``most`` itself is refused."""

    def check(self, name: str, value: Any) -> None:
        """Refuse numbers outside, and NaN."""
        for number in value if isinstance(value, list) else [value]:
            inside = self.least <= number <= self.most
            on_edge = (self.above and number == self.least) or (self.below and number == self.most)
            if not inside or on_edge:
                shown = f"{value:g}" if isinstance(value, float) else value
                raise UsageError(
                    f"{name} is {shown} (choose {self.text()})", code="policy.out-of-range"
                )

    def text(self) -> str:
        """Return the interval in words."""
        if self.most == math.inf:
            return f"above {self.least:g}" if self.above else f"{self.least:g} or more"
        if self.above or self.below:
            first = f"above {self.least:g}" if self.above else f"from {self.least:g}"
            return f"{first}, {'below' if self.below else 'up to'} {self.most:g}"
        if isinstance(self.least, int):
            return f"{self.least}-{self.most}"
        return f"{self.least:g} to {self.most:g}"


class Choices(NamedTuple):
    """Texts, or None."""

    known: Sequence[str]

    def check(self, name: str, value: Any) -> None:
        """Refuse other texts."""
        if value not in self.known:
            shown = ", ".join(known for known in self.known if known)
            raise UsageError(f"{name} is {value!r} (choose {shown})", code="policy.unknown-choice")


class Sides(NamedTuple):
    """Two sides of an image in pixels, in this order."""

    order: tuple[str, str] = ("height", "width")

    def check(self, name: str, value: Any) -> None:
        """Refuse another number of sides, and sides out of range."""
        if len(value) != 2 or min(value) < 1 or max(value) > MOST_PIXELS:
            raise UsageError(
                f"{name} is {value}, expected [{', '.join(self.order)}]",
                code="policy.invalid-shape",
            )


def up_to(most: int) -> Limits:
    """Return the limits of a count: from 1 to ``most``."""
    return Limits(1, most)


WIDTH, LAYERS, STEPS = up_to(MOST_WIDTH), up_to(MOST_LAYERS), up_to(MOST_STEPS)
POSITIVE, SHARE = Limits(0, above=True), Limits(0, 1, below=True)


def check_fields(config: Any, where: str = "") -> None:
    """Refuse values that the config's fields may not hold; ``where`` precedes their names."""
    for field in fields(config):
        allowed: Allowed | None = field.metadata.get(ALLOWED)
        value = getattr(config, field.name)
        if allowed is not None and value is not None:
            allowed.check(f"{where}{field.name}", value)


def check_divisible(config: Any, name: str, divisor: str) -> None:
    """Refuse a field that is no multiple of another."""
    whole, part = getattr(config, name), getattr(config, divisor)
    if whole % part:
        raise UsageError(
            f"{name} is {whole}, not a multiple of {divisor} {part}", code="policy.not-divisible"
        )


def check_periods(config: Any) -> None:
    """Refuse periods of a time embedding that are not in order."""
    if not 0 < config.min_period < config.max_period:
        raise UsageError(
            f"min_period is {config.min_period:g}, max_period {config.max_period:g}; expected "
            "0 < min_period < max_period",
            code="policy.out-of-range",
        )


def check_one_observation(config: Any) -> None:
    """Refuse a history of observations."""
    if config.n_obs_steps != 1:
        raise UsageError(
            f"{config.type} takes one observation, but n_obs_steps is {config.n_obs_steps}",
            code="policy.one-observation",
        )


def require_inputs(config: Any, *, state: bool = False, camera: bool = False) -> None:
    """Refuse inputs without the state or without a camera."""
    if state and config.state_dim is None:
        raise UsageError(
            f"{config.type} needs observation.state as input", code="policy.missing-input"
        )
    if camera and not config.cameras:
        raise UsageError(f"{config.type} needs a camera as input", code="policy.missing-input")


def check_padded_sizes(config: Any) -> None:
    """Refuse states and actions that are longer than their padded form."""
    if config.state_dim > config.max_state_dim:
        raise UsageError(
            f"max_state_dim is {config.max_state_dim}, states have {config.state_dim}",
            code="policy.state-size-mismatch",
        )
    if config.action_dim > config.max_action_dim:
        raise UsageError(
            f"max_action_dim is {config.max_action_dim}, actions have {config.action_dim}",
            code="policy.action-size-mismatch",
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
