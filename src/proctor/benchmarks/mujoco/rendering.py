"""Off-screen rendering of MuJoCo worlds, through the chosen GL backend."""

from __future__ import annotations

import ctypes
import importlib
import mmap
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from proctor.benchmarks.base import PendingImage
from proctor.benchmarks.mujoco.render_config import RenderSettings
from proctor.features import Array
from proctor.system.graphics.gl import process_backend

SceneEdit: TypeAlias = Callable[[Any, Any, str], None]
"""Changes an MjvScene that is about to be rendered, given the model and the camera's name."""


class EditableSim(Protocol):
    """A simulator that renders with ``CameraRenderer`` and applies a scene edit to every image."""

    scene_edit: SceneEdit | None


_GL_MODULES = {"egl": "mujoco.egl", "osmesa": "mujoco.osmesa", "cgl": "mujoco.cgl"}


class CameraRenderer:
    """Renders images of one MuJoCo world at one size. Owns a GL context until closed."""

    def __init__(
        self, model: Any, settings: RenderSettings, hidden_groups: Sequence[int] = ()
    ) -> None:
        import mujoco

        _bind_gl_context(process_backend())
        buffer = model.vis.global_
        buffer.offheight = max(buffer.offheight, settings.height)
        buffer.offwidth = max(buffer.offwidth, settings.width)
        if settings.shadow_map is not None:
            model.vis.quality.shadowsize = settings.shadow_map
        self._renderer = mujoco.Renderer(model, settings.height, settings.width)
        self._model = model
        self._option = mujoco.MjvOption()
        self._option.geomgroup[list(hidden_groups)] = 0

    def render(
        self, data: Any, camera: str, edit: SceneEdit | None = None, *, rotated: bool = False
    ) -> Array:
        """Return the image of ``camera`` in ``data``, uint8 [H, W, 3], after ``edit``.

        ``rotated``: by 180 degrees.
        """
        self._renderer.update_scene(data, camera, self._option)
        if edit is not None:
            edit(self._renderer.scene, self._model, camera)
        pixels: Array = self._renderer.render()
        return _rotate_180(pixels) if rotated else pixels

    def request(
        self, data: Any, camera: str, edit: SceneEdit | None = None, *, rotated: bool = False
    ) -> PendingImage:
        """Render at once; return what returns the image."""
        image = self.render(data, camera, edit, rotated=rotated)
        return lambda: image

    def close(self) -> None:
        """Free the GL context."""
        self._renderer.close()


def _rotate_180(image: Array) -> Array:
    """Return ``image`` rotated by 180 degrees.

    Channel by channel: numpy takes 8 times as long to copy RGB triples backwards.
    """
    rotated = np.empty_like(image)
    for channel in range(image.shape[-1]):
        rotated[..., channel] = image[::-1, ::-1, channel]
    return rotated


def release_pages(array: Array) -> None:
    """Return the memory pages of ``array`` to the system if it can; they then read as zeros."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    page = mmap.PAGESIZE
    start = -(-array.ctypes.data // page) * page
    length = (array.ctypes.data + array.nbytes) // page * page - start
    if length > 0:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_DONTNEED)


def _bind_gl_context(backend: str) -> None:
    """Make MuJoCo render through ``backend``.

    MuJoCo binds a backend at its first import, by the MUJOCO_GL of that moment. A process that
    imported it before MUJOCO_GL was set has another backend, or none.
    """
    from mujoco import gl_context

    module = importlib.import_module(_GL_MODULES.get(backend, "mujoco.glfw"))
    gl_context.GLContext = module.GLContext
