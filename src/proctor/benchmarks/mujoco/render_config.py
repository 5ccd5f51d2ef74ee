"""Render settings of MuJoCo benchmarks: image size and shadow map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from proctor.benchmarks.base import BenchmarkConfig
from proctor.benchmarks.selection import LARGEST_SIDE, require_positive
from proctor.errors import UsageError
from proctor.fingerprint import LOCAL_PATH, PRESENTATION
from proctor.settings import setting

_LARGEST_SHADOW_MAP = 16384
_SAMPLES = {1: 1, 4: 2, 9: 3, 16: 4}
"""Samples per pixel, and samples per axis."""

SHADOW_MAP = (
    "side of MuJoCo's shadow map in texels, as 4096 or 1024; 0: no shadows (default: the model's, "
    "with which published policies were trained)"
)


class Renderer(Enum):
    """What draws camera images."""

    GL = "gl"
    WARP = "warp"


class RendererDevice(Enum):
    """Device of the drawing process."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True)
class RenderSettings:
    """Image size of all cameras, side of the shadow map (None: the model's own), and renderer."""

    height: int
    width: int
    shadow_map: int | None = None
    renderer: Renderer = Renderer.GL
    device: RendererDevice = RendererDevice.CUDA
    """Device of the drawing process; GL chooses its own."""
    python: str | None = None
    """Interpreter of the drawing process; None: the installed one."""
    samples_per_axis: int = 1
    """Samples of a pixel in each direction, in the drawing process."""

    @property
    def is_drawn(self) -> bool:
        """Whether the drawing process draws the images."""
        return self.renderer is Renderer.WARP

    @property
    def has_shadows(self) -> bool:
        """Whether lights cast shadows."""
        return self.shadow_map != 0

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
        "Renderer": "renderer renderer_device renderer_python samples_per_pixel",
    }

    obs_type: ObservationType | None = setting(
        None,
        "observations of the policy: images only, or images and robot state (default: "
        "pixels_agent_pos)",
    )
    observation_height: int = setting(480, "height of camera images in pixels")
    observation_width: int = setting(480, "width of camera images in pixels")
    shadow_map: int | None = setting(None, SHADOW_MAP)

    renderer: Renderer | None = setting(
        None,
        "gl: MuJoCo's own; warp: all workers' images in batches on a CUDA device (default: gl)",
    )
    renderer_device: RendererDevice | None = setting(
        None, "device of renderer warp: cuda or cpu, which is slower than gl (default: cuda)"
    )
    renderer_python: str | None = setting(
        None,
        "interpreter or virtual environment of renderer warp; it needs numpy, mujoco >= "
        "3.13, warp-lang and mujoco-warp (default: installed by proctor benchmarks install "
        "warp)",
        PRESENTATION,
        LOCAL_PATH,
    )
    samples_per_pixel: int | None = setting(
        None, "rays per pixel of renderer warp, averaged: 1, 4, 9 or 16 (default: 1)"
    )

    def __post_init__(self) -> None:
        if self.renderer is Renderer.GL:
            self.renderer = None  # the default: runs of both records are one protocol

    @property
    def state_is_offered(self) -> bool:
        """Whether policies get the robot's state."""
        return self.obs_type is not ObservationType.PIXELS

    def render_settings(self) -> RenderSettings:
        """Return the render settings."""
        require_positive("observation_height", self.observation_height, LARGEST_SIDE)
        require_positive("observation_width", self.observation_width, LARGEST_SIDE)
        side = self.shadow_map
        require_shadow_map(side)
        size = (self.observation_height, self.observation_width)
        if self.renderer is not Renderer.WARP:
            self._refuse_unused_flags()
            return RenderSettings(*size, side)
        if self.python is not None or self.command is not None:
            raise UsageError(
                "--env.renderer=warp draws worlds of this interpreter; drop --env.python and "
                "--env.command",
                code="flag.conflict",
            )
        if side:
            raise UsageError(
                "--env.renderer=warp has no shadow map; drop --env.shadow_map, or set it to 0",
                code="flag.conflict",
            )
        samples = 1 if self.samples_per_pixel is None else self.samples_per_pixel
        if samples not in _SAMPLES:
            raise UsageError(
                f"--env.samples_per_pixel must be 1, 4, 9 or 16, not {samples}",
                code="flag.out-of-range",
            )
        return RenderSettings(
            *size,
            side,
            Renderer.WARP,
            self.renderer_device or RendererDevice.CUDA,
            self.renderer_python,
            _SAMPLES[samples],
        )

    def _refuse_unused_flags(self) -> None:
        for name in ("renderer_device", "renderer_python", "samples_per_pixel"):
            if getattr(self, name) is not None:
                raise UsageError(
                    f"--env.{name} has no effect without --env.renderer=warp", code="flag.conflict"
                )


def require_shadow_map(side: int | None) -> None:
    """Check the side of a shadow map."""
    if side is not None and (side < 0 or side > _LARGEST_SHADOW_MAP or side & (side - 1)):
        raise UsageError(
            f"--env.shadow_map must be a power of two up to {_LARGEST_SHADOW_MAP}, or 0 for "
            f"no shadows, not {side}",
            code="flag.out-of-range",
        )
