"""Rendering in the run's drawing process (``--env.renderer=warp``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from proctor.benchmarks.mujoco.abstract_scene import AbstractScene, assets_key, model_assets
from proctor.benchmarks.mujoco.drawing_client import DrawingClient
from proctor.benchmarks.mujoco.drawing_process import drawing_process
from proctor.benchmarks.mujoco.render_config import RenderSettings
from proctor.benchmarks.mujoco.rendering import SceneEdit
from proctor.features import Array
from proctor.system.environment import DRAWER_VARIABLE
from proctor_worker.drawing.scene import Quality, request_frame


class WarpRenderer:
    """Has images of one MuJoCo world drawn by the run's drawing process."""

    def __init__(
        self, model: Any, settings: RenderSettings, hidden_groups: Sequence[int] = ()
    ) -> None:
        self._model = model
        self._key = assets_key(model_assets(model))
        self._quality = Quality(
            settings.height, settings.width, settings.samples_per_axis, settings.has_shadows
        )
        self._scene = AbstractScene(model, hidden_groups)
        address = os.environ.get(DRAWER_VARIABLE) or drawing_process(settings).address
        self._client = DrawingClient(address, settings.height * settings.width * 3)

    def render(self, data: Any, camera: str, edit: SceneEdit | None = None) -> Array:
        """Return the image of ``camera`` in ``data``, uint8 [H, W, 3], after ``edit``."""
        request = self._scene.read(data, camera, edit, self._key, self._quality)
        header, arrays = request_frame(request)
        reply, images = self._client.request(header, arrays, key=self._key)
        if reply["op"] == "unknown":  # the first picture of this model, or long ago
            assets = model_assets(self._model)
            self._client.request({"op": "assets", "assets": self._key}, assets)
            reply, images = self._client.request(header, arrays)
        return images["image"]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
