"""How pictures of a MuJoCo world are drawn: their size, and how fine its shadows are."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.selection import LARGEST_SIDE, require_positive
from proctor.errors import UsageError

_LARGEST_SHADOW_MAP = 16384


@dataclass(frozen=True)
class RenderSettings:
    """One size for all cameras of a world, and how fine its shadows are; None: as they are."""

    height: int
    width: int
    shadow_map: int | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one picture: height, width, channels."""
        return (self.height, self.width, 3)


class ObservationType(Enum):
    """What a policy is offered: pictures, and the robot's state or not."""

    PIXELS = "pixels"
    PIXELS_AGENT_POS = "pixels_agent_pos"


@dataclass
class RenderedConfig(BenchmarkConfig):
    """Flags of every benchmark whose pictures MuJoCo draws."""

    obs_type: ObservationType | None = field(
        default=None,
        metadata={"help": "pixels: policies see no robot state (default: pixels_agent_pos)"},
    )
    observation_height: int = field(default=480, metadata={"help": "image height in pixels"})
    observation_width: int = field(default=480, metadata={"help": "image width in pixels"})
    shadow_map: int | None = field(
        default=None,
        metadata={
            "help": "side of the shadow map, as 4096, 2048 or 1024; 0: no shadows (default: the "
            "world's own, which published policies were trained on)"
        },
    )

    @property
    def state_is_offered(self) -> bool:
        """Whether policies see the robot's state."""
        return self.obs_type is not ObservationType.PIXELS

    def render_settings(self) -> RenderSettings:
        """Return how pictures are drawn.

        Raises:
            UsageError: a size is none.
        """
        require_positive("observation_height", self.observation_height, LARGEST_SIDE)
        require_positive("observation_width", self.observation_width, LARGEST_SIDE)
        side = self.shadow_map
        if side is not None and (side < 0 or side > _LARGEST_SHADOW_MAP or side & (side - 1)):
            raise UsageError(
                f"--env.shadow_map must be a power of two up to {_LARGEST_SHADOW_MAP}, or 0 for "
                f"no shadows, not {side}"
            )
        return RenderSettings(self.observation_height, self.observation_width, side)
