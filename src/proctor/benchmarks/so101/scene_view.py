"""A copy of a world's state that is rendered in its own thread while the physics goes on."""

from __future__ import annotations

from typing import Any

import numpy as np

from proctor.benchmarks.mujoco.render_config import RenderSettings
from proctor.benchmarks.mujoco.rendering import CameraRenderer
from proctor.features import Array


class SceneView:
    """Renders a world. ``capture`` needs the world to stand still; ``render`` does not.

    All but ``capture`` belong to one thread, which owns the GL context.
    """

    def __init__(self, model: Any, world_data: Any, settings: RenderSettings) -> None:
        import mujoco

        self._mujoco = mujoco
        self._model, self._world_data, self._settings = model, world_data, settings
        self._data = mujoco.MjData(model)
        self._renderer: CameraRenderer | None = None

    def capture(self) -> None:
        """Copy the positions of everything that moves."""
        self._data.qpos[:] = self._world_data.qpos
        self._data.mocap_pos[:] = self._world_data.mocap_pos
        self._data.mocap_quat[:] = self._world_data.mocap_quat

    def render(self, camera: str) -> Array:
        """Return the image of ``camera`` at the last ``capture``, uint8 [H, W, 3]."""
        if self._renderer is None:
            self._renderer = CameraRenderer(self._model, self._settings)
        self._mujoco.mj_kinematics(self._model, self._data)
        self._mujoco.mj_camlight(self._model, self._data)
        return np.array(self._renderer.render(self._data, camera))

    def close(self) -> None:
        """Free the GL context; a view without one is left alone."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
