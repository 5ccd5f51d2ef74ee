"""Rendering in the run's drawing process (``--env.renderer=warp``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from proctor.benchmarks.base import PendingImage
from proctor.benchmarks.mujoco.abstract_scene import AbstractScene, assets_key, model_assets
from proctor.benchmarks.mujoco.drawing_client import DrawingClient, DrawnImage
from proctor.benchmarks.mujoco.drawing_process import drawing_process
from proctor.benchmarks.mujoco.render_config import RenderSettings
from proctor.benchmarks.mujoco.rendering import SceneEdit
from proctor.features import Array
from proctor.system.platform.environment import DRAWER_VARIABLE
from proctor_worker.drawing.scene import DrawRequest, Quality, SceneLayout, layout_frame


class WarpRenderer:
    """Has images of one MuJoCo world drawn by the run's drawing process."""

    def __init__(
        self, model: Any, settings: RenderSettings, hidden_groups: Sequence[int] = ()
    ) -> None:
        self._model, self._shape = model, settings.shape
        self._key = assets_key(model_assets(model))
        quality = Quality(
            settings.height, settings.width, settings.samples_per_axis, settings.has_shadows
        )
        self._scene = AbstractScene(model, hidden_groups, self._key, quality)
        address = os.environ.get(DRAWER_VARIABLE) or drawing_process(settings).address
        self._client = DrawingClient(address, settings.height * settings.width * 3)
        self._layouts: dict[SceneLayout, int] = {}

    def render(
        self, data: Any, camera: str, edit: SceneEdit | None = None, *, rotated: bool = False
    ) -> Array:
        """Return the image of ``camera`` in ``data``, uint8 [H, W, 3], after ``edit``."""
        return self.request(data, camera, edit, rotated=rotated)()

    def request(
        self, data: Any, camera: str, edit: SceneEdit | None = None, *, rotated: bool = False
    ) -> PendingImage:
        """Begin to render; the image is that of now, however the world moves on."""
        request = self._scene.read(data, camera, edit, rotated=rotated)
        return partial(self._image, request, self._draw(request))

    def _draw(self, request: DrawRequest) -> DrawnImage:
        return self._client.draw(self._number(request.layout), request.numbers)

    def _image(self, request: DrawRequest, drawn: DrawnImage) -> Array:
        """Return an image; a layout that the drawing process has forgotten is sent again."""
        self._client.wait(drawn)
        while drawn.pixels is None:
            self._layouts.pop(request.layout, None)
            drawn = self._draw(request)
            self._client.wait(drawn)
        return drawn.pixels.reshape(self._shape)

    def _number(self, layout: SceneLayout) -> int:
        """Return the number of a layout in the drawing process, which gets to know it first."""
        number = self._layouts.get(layout)
        if number is None:
            frame = layout_frame(layout)
            reply = self._client.request(*frame)
            if reply["op"] == "without-assets":  # the first picture of this model, or long ago
                assets = model_assets(self._model)
                self._client.request({"op": "assets", "assets": self._key}, assets)
                reply = self._client.request(*frame)
            number = self._layouts[layout] = int(reply["number"])
        return number

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
