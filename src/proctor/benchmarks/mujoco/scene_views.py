"""Live views of the structs in an ``MjvScene``.

Reading geoms, lights and cameras one attribute at a time takes 30 times as long as
``mjv_updateScene``.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from proctor.features import Array
from proctor_worker.drawing import scene as columns

_GEOM_INTS = 8
_EYE_FLOATS = 15


class SceneViews:
    """Views of the geoms, lights and eyes of one scene."""

    TYPE, DATAID, MATID = 0, 1, 5
    """Columns of ``geom_ints``."""
    FRUSTUM = slice(9, _EYE_FLOATS)
    """Columns of ``eyes``: centre, width, bottom, top, near, far."""
    LIGHT_SHAPE = slice(6, 11)
    """Columns of ``lights``: attenuation, cutoff, exponent."""
    LIGHT_FLAGS = 20
    """Column of ``lights``: three bytes for headlight, directional and castshadow."""
    _MOVING = (*range(6), *range(11, 20))
    """Columns of ``lights``: position, direction and colours."""

    def __init__(self, scene: Any) -> None:
        geoms, lights, eyes = scene.geoms, scene.lights, scene.camera
        most, before = len(geoms), 4 * _GEOM_INTS  # the integers of a geom lie before its size
        stride = geoms[1].size.ctypes.data - geoms[0].size.ctypes.data
        begin = geoms[0].size.ctypes.data - before
        self.geom_ints = _view(begin, (most, _GEOM_INTS), stride, np.int32)
        """int32 [most, 8]."""
        self.geom_floats = _view(begin + before, (most, columns.GEOM_FLOATS), stride, np.float32)
        """float32 [most, 23]: size, position, rotation, colour, material."""
        begin = lights[0].pos.ctypes.data
        stride = lights[1].pos.ctypes.data - begin
        self.lights = _view(begin, (len(lights), stride // 4), stride, np.float32)
        """float32 [most, ...]."""
        begin = eyes[0].pos.ctypes.data
        stride = eyes[1].pos.ctypes.data - begin
        self.eyes = _view(begin, (2, _EYE_FLOATS), stride, np.float32)
        """float32 [2, 15]: position, forward, up, frustum."""
        self._scene = scene  # it owns the memory

    def light_constants(self, n_lights: int) -> bytes:
        """Return what a light's motion does not change."""
        flags = self.lights[:n_lights, self.LIGHT_FLAGS].view(np.int32) & 0xFFFFFF
        return flags.tobytes() + self.lights[:n_lights, self.LIGHT_SHAPE].tobytes()

    def light_numbers(self, n_lights: int) -> bytes:
        """Return position, direction and colours of the lights, float32 [n, 15]."""
        return self.lights[:n_lights].take(self._MOVING, axis=1).tobytes()

    def check(self) -> None:
        """Compare the views with MuJoCo's own attributes: its structs differ between versions."""
        scene = self._scene
        for number in range(scene.ngeom):
            geom, ints = scene.geoms[number], self.geom_ints[number]
            known = (geom.type, geom.dataid, geom.matid)
            assert tuple(ints[[self.TYPE, self.DATAID, self.MATID]]) == known
            assert self.geom_floats[number, columns.SHININESS] == geom.shininess
        for number in range(scene.nlight):
            light, floats = scene.lights[number], self.lights[number]
            vectors = (light.pos, light.dir, light.ambient, light.diffuse, light.specular)
            assert np.array_equal(floats[list(self._MOVING)], np.concatenate(vectors))
            shape = (*light.attenuation, light.cutoff, light.exponent)
            assert np.array_equal(floats[self.LIGHT_SHAPE], np.array(shape, np.float32))
            flags = floats[self.LIGHT_FLAGS : self.LIGHT_FLAGS + 1].view(np.uint8)
            assert tuple(flags[1:3]) == (light.directional, light.castshadow)
        for eye, floats in zip(scene.camera, self.eyes, strict=True):
            assert np.array_equal(floats[:9], np.concatenate([eye.pos, eye.forward, eye.up]))
            assert floats[12] == eye.frustum_top
            assert floats[13] == eye.frustum_near


def _view(address: int, shape: tuple[int, int], stride: int, dtype: type) -> Array:
    """Return the memory at ``address`` as rows that are ``stride`` bytes apart."""
    memory = (ctypes.c_byte * (stride * shape[0])).from_address(address)
    return np.ndarray(shape, dtype, memoryview(memory), strides=(stride, 4))
