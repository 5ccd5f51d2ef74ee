"""The renderer that a world's settings ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from proctor.benchmarks.base import PendingImage
from proctor.benchmarks.mujoco.render_config import RenderSettings
from proctor.benchmarks.mujoco.rendering import CameraRenderer, SceneEdit
from proctor.benchmarks.mujoco.warp_renderer import WarpRenderer
from proctor.features import Array


class ImageRenderer(Protocol):
    """Renders images of one MuJoCo world at one size."""

    def render(
        self, data: Any, camera: str, edit: SceneEdit | None = None, *, rotated: bool = False
    ) -> Array:
        """Return the image of ``camera`` in ``data``, uint8 [H, W, 3], after ``edit``.

        ``rotated``: by 180 degrees.
        """

    def request(
        self, data: Any, camera: str, edit: SceneEdit | None = None, *, rotated: bool = False
    ) -> PendingImage:
        """Begin to render; the image is that of now, however the world moves on."""

    def close(self) -> None:
        """Free what it holds."""


def make_renderer(
    model: Any, settings: RenderSettings, hidden_groups: Sequence[int] = ()
) -> ImageRenderer:
    """Return a renderer of ``model``, with GL or in the run's drawing process."""
    made = WarpRenderer if settings.is_drawn else CameraRenderer
    return made(model, settings, hidden_groups)
