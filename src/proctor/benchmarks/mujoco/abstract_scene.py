"""A MuJoCo world as the drawing process gets it: visible geoms, lights and a camera, as arrays.

They come from MuJoCo's abstract scene, the list of shapes that GL would draw. It needs no GL.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from proctor.benchmarks.mujoco.rendering import SceneEdit
from proctor.errors import PluginError
from proctor.features import Array
from proctor_worker.drawing import scene as columns
from proctor_worker.drawing.scene import ASSETS, DrawRequest, Quality

_MOST_GEOMS = 10_000
_SYMMETRIC = 1e-6


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
    """The abstract scene of one model, read into arrays."""

    def __init__(self, model: Any, hidden_groups: Sequence[int]) -> None:
        import mujoco

        self._mujoco, self._model = mujoco, model
        self._scene = mujoco.MjvScene(model, maxgeom=_MOST_GEOMS)
        self._option = mujoco.MjvOption()
        self._option.geomgroup[list(hidden_groups)] = 0
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._ints, self._floats = _geom_views(self._scene)
        self._is_checked = False

    def read(
        self, data: Any, camera: str, edit: SceneEdit | None, assets: str, quality: Quality
    ) -> DrawRequest:
        """Return the request for the picture of ``camera`` in ``data``, after ``edit``.

        Raises:
            PluginError: the scene has shapes that warp does not draw.
        """
        scene, mujoco = self._scene, self._mujoco
        self._camera.fixedcamid = self._model.camera(camera).id
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(
            self._model, data, self._option, None, self._camera, everything, scene
        )
        if edit is not None:
            edit(scene, self._model, camera)
        if not self._is_checked:
            self._check_views()
        ints = self._ints[: scene.ngeom].copy()
        if not np.isin(ints[:, columns.TYPE], columns.DRAWN).all() or scene.nskin or scene.nflex:
            raise PluginError(
                "this scene has height fields, skins or deformable bodies, which warp does not "
                "draw; use --env.renderer=gl",
                code="render.unsupported",
            )
        floats = self._floats[: scene.ngeom].copy()
        alpha = floats[:, columns.RGBA.stop - 1]
        np.maximum(alpha, 0.0, out=alpha)  # robosuite hides sites by a negative one
        lights = [scene.lights[number] for number in range(scene.nlight)]
        return DrawRequest(
            assets=assets,
            quality=quality,
            geom_ints=ints,
            geom_floats=floats,
            light_ints=np.array(
                [(light.directional, light.castshadow) for light in lights], np.int32
            ).reshape(-1, 2),
            light_floats=np.array([_light(light) for light in lights], np.float32).reshape(
                -1, columns.LIGHT_FLOATS
            ),
            camera=_camera(scene.camera),
        )

    def _check_views(self) -> None:
        """Compare the views with MuJoCo's own attributes, once."""
        for number in range(self._scene.ngeom):
            geom, ints = self._scene.geoms[number], self._ints[number]
            known = (geom.type, geom.dataid, geom.matid)
            assert tuple(ints[[columns.TYPE, columns.DATAID, columns.MATID]]) == known
            assert self._floats[number, columns.SHININESS] == geom.shininess
        self._is_checked = True


def _geom_views(scene: Any) -> tuple[Array, Array]:
    """Return live views of the scene's geoms: int32 [most, 8] and float32 [most, 23].

    Reading the geoms one attribute at a time takes 30 times as long as ``mjv_updateScene``.
    """
    first, second = scene.geoms[0], scene.geoms[1]
    stride = second.size.ctypes.data - first.size.ctypes.data
    ints_bytes = 4 * columns.GEOM_INTS  # the integers lie before the sizes in ``mjvGeom``
    begin = first.size.ctypes.data - ints_bytes
    memory = (ctypes.c_byte * (stride * _MOST_GEOMS)).from_address(begin)
    ints = np.ndarray(
        (_MOST_GEOMS, columns.GEOM_INTS), np.int32, buffer=memory, strides=(stride, 4)
    )
    floats = np.ndarray(
        (_MOST_GEOMS, columns.GEOM_FLOATS),
        np.float32,
        buffer=memory,
        offset=ints_bytes,
        strides=(stride, 4),
    )
    return ints, floats


def _light(light: Any) -> list[float]:
    vectors = (light.pos, light.dir, light.ambient, light.diffuse, light.specular)
    numbers = [float(number) for vector in vectors for number in vector]
    return [*numbers, *map(float, light.attenuation), light.cutoff, light.exponent]


def _camera(eyes: Any) -> Array:
    """Return position, rotation and field of view of the camera between both eyes."""
    left, right = eyes[0], eyes[1]
    if abs(left.frustum_center) > _SYMMETRIC or left.frustum_top != -left.frustum_bottom:
        raise PluginError(
            "this camera's frustum is not symmetric, which is not drawn with warp; use "
            "--env.renderer=gl",
            code="render.unsupported",
        )
    forward, up = np.array(left.forward, np.float64), np.array(left.up, np.float64)
    turn = np.stack([np.cross(forward, up), up, -forward], axis=1)
    fovy = np.degrees(2 * np.arctan(left.frustum_top / left.frustum_near))
    middle = (np.asarray(left.pos, np.float64) + right.pos) / 2
    # Rounded: it is compiled into a context, and must not differ in the last bits.
    return np.concatenate([middle, turn.ravel(), [np.round(fovy, 4)]]).astype(np.float32)
