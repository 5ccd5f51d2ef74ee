"""Render settings of MuJoCo benchmarks: image size and shadow map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.selection import LARGEST_SIDE, require_positive
from proctor.errors import UsageError

_LARGEST_SHADOW_MAP = 16384


@dataclass(frozen=True)
class RenderSettings:
    """Image size of all cameras, and side of the shadow map (None: the model's own)."""

    height: int
    width: int
    shadow_map: int | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an image: height, width, channels."""
        return (self.height, self.width, 3)


class ObservationType(Enum):
    """Observations that policies get: images, with or without the robot's state."""

    PIXELS = "pixels"
    PIXELS_AGENT_POS = "pixels_agent_pos"


@dataclass
class RenderedConfig(BenchmarkConfig):
    """Flags of every benchmark that MuJoCo renders."""

    help_groups: ClassVar[Mapping[str, str]] = {
        "Observations": "shadow_map",
    }

    obs_type: ObservationType | None = field(
        default=None,
        metadata={
            "help": "observations of the policy: images only, or images and robot state",
            "default_help": "pixels_agent_pos",
        },
    )
    observation_height: int = field(
        default=480, metadata={"help": "height of camera images in pixels"}
    )
    observation_width: int = field(
        default=480, metadata={"help": "width of camera images in pixels"}
    )
    shadow_map: int | None = field(
        default=None,
        metadata={
            "help": "side of MuJoCo's shadow map in texels, as 4096 or 1024; 0: no shadows",
            "default_help": "the model's, with which published policies were trained",
        },
    )

    @property
    def state_is_offered(self) -> bool:
        """Whether policies get the robot's state."""
        return self.obs_type is not ObservationType.PIXELS

    def render_settings(self) -> RenderSettings:
        """Return the render settings.

        Raises:
            UsageError: a size is out of range.
        """
        require_positive("observation_height", self.observation_height, LARGEST_SIDE)
        require_positive("observation_width", self.observation_width, LARGEST_SIDE)
        side = self.shadow_map
        if side is not None and (side < 0 or side > _LARGEST_SHADOW_MAP or side & (side - 1)):
            raise UsageError(
                f"--env.shadow_map must be a power of two up to {_LARGEST_SHADOW_MAP}, or 0 for "
                f"no shadows, not {side}",
                code="flag.out-of-range",
            )
        return RenderSettings(self.observation_height, self.observation_width, side)
