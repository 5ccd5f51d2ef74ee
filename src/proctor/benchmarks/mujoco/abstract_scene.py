"""A MuJoCo world as the drawing process gets it: visible geoms, lights and a camera.

They come from MuJoCo's abstract scene, the list of shapes that GL would draw. It needs no GL.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from proctor.benchmarks.mujoco.rendering import SceneEdit
from proctor.benchmarks.mujoco.scene_views import SceneViews
from proctor.errors import PluginError
from proctor.features import Array
from proctor_worker.drawing import scene as columns
from proctor_worker.drawing.scene import ASSETS, DrawRequest, Quality, SceneLayout

_MORE_GEOMS = 1000
"""Geoms of a scene beyond those of its model's geoms and sites, such as those of tendons."""
_SYMMETRIC = 1e-6
_LAYOUT_COLUMNS = [SceneViews.TYPE, SceneViews.DATAID, SceneViews.MATID]
_CAMERA = struct.Struct(f"<{columns.CAMERA_FLOATS}f")


def model_assets(model: Any) -> dict[str, Array]:
    """Return the meshes, textures and materials of a model."""
    return {name: np.asarray(getattr(model, name)) for name in ASSETS}


def assets_key(assets: dict[str, Array]) -> str:
    """Return the hash of a model's assets."""
    found = hashlib.blake2b(digest_size=16)
    for name, array in assets.items():
        found.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


class AbstractScene:
    """The abstract scene of one model, read into requests."""

    def __init__(
        self, model: Any, hidden_groups: Sequence[int], assets: str, quality: Quality
    ) -> None:
        import mujoco

        self._model = model
        self._assets, self._quality = assets, quality
        most = model.ngeom + model.nsite + model.nwrap + _MORE_GEOMS
        self._scene = mujoco.MjvScene(model, maxgeom=most)
        self._option = mujoco.MjvOption()
        self._option.geomgroup[list(hidden_groups)] = 0
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._update = mujoco.mjv_updateScene
        self._everything = mujoco.mjtCatBit.mjCAT_ALL.value
        self._views = SceneViews(self._scene)
        self._camera_ids: dict[str, int] = {}
        self._layouts: dict[tuple[str, bool], tuple[tuple[Any, ...], SceneLayout]] = {}
        """The last layout of each camera, and what it was made of."""

    def read(
        self, data: Any, camera: str, edit: SceneEdit | None, *, rotated: bool = False
    ) -> DrawRequest:
        """Return the request for the picture of ``camera`` in ``data``, after ``edit``."""
        scene, views = self._scene, self._views
        if camera not in self._camera_ids:
            self._camera_ids[camera] = self._model.camera(camera).id
        self._camera.fixedcamid = self._camera_ids[camera]
        self._update(self._model, data, self._option, None, self._camera, self._everything, scene)
        if edit is not None:
            edit(scene, self._model, camera)
        n_geoms, n_lights = scene.ngeom, scene.nlight
        left, right = views.eyes.tolist()
        made_of = (
            views.geom_ints[:n_geoms].tobytes(),
            views.light_constants(n_lights),
            tuple(left[SceneViews.FRUSTUM]),
        )
        known, layout = self._layouts.get((camera, rotated), (None, None))
        if known != made_of or layout is None:
            layout = self._make_layout(rotated=rotated)
            self._layouts[camera, rotated] = made_of, layout
        geoms = views.geom_floats[:n_geoms].copy()
        alpha = geoms[:, columns.RGBA.stop - 1]
        np.maximum(alpha, 0.0, out=alpha)  # robosuite hides sites by a negative one
        parts = (_camera(left, right), views.light_numbers(n_lights), geoms.tobytes())
        return DrawRequest(layout, b"".join(parts))

    def _make_layout(self, *, rotated: bool) -> SceneLayout:
        scene, views = self._scene, self._views
        views.check()
        geoms = views.geom_ints[: scene.ngeom, _LAYOUT_COLUMNS]
        if not np.isin(geoms[:, 0], columns.DRAWN).all() or scene.nskin or scene.nflex:
            raise _unsupported("this scene has height fields, skins or deformable bodies")
        eye = scene.camera[0]
        if abs(eye.frustum_center) > _SYMMETRIC or eye.frustum_top != -eye.frustum_bottom:
            raise _unsupported("this camera's frustum is not symmetric")
        fovy = np.degrees(2 * np.arctan(eye.frustum_top / eye.frustum_near))
        lights = [scene.lights[number] for number in range(scene.nlight)]
        constants = [
            (light.directional, light.castshadow, *light.attenuation, light.cutoff, light.exponent)
            for light in lights
        ]
        return SceneLayout(
            assets=self._assets,
            quality=self._quality,
            geom_bytes=geoms.astype(np.int32).tobytes(),
            light_bytes=np.array(constants, np.float32).tobytes(),
            # Rounded: it is compiled into a context, and must not differ in the last bits.
            fovy=float(np.float32(np.round(fovy, 4))),
            rotated=rotated,
        )


def _unsupported(what: str) -> PluginError:
    return PluginError(
        f"{what}, which warp does not draw; use --env.renderer=gl", code="render.unsupported"
    )


def _camera(left: list[float], right: list[float]) -> bytes:
    """Return position and rotation of the camera between both eyes, float32 [12]."""
    x, y, z = ((left[i] + right[i]) / 2 for i in range(3))
    forward_x, forward_y, forward_z, up_x, up_y, up_z = left[3:9]
    return _CAMERA.pack(
        *(x, y, z),
        *(forward_y * up_z - forward_z * up_y, up_x, -forward_x),
        *(forward_z * up_x - forward_x * up_z, up_y, -forward_y),
        *(forward_x * up_y - forward_y * up_x, up_z, -forward_z),
    )
