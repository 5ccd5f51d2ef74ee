"""Off-screen rendering of MuJoCo worlds: which GL backend works, and pictures from a camera."""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import platform
from collections.abc import Sequence
from typing import Any

from proctor.errors import NoGraphics
from proctor.machine.gl_probe import OFF, GlProbe, probe_backends
from proctor.types import Array

_CLEARLY_FASTER = 1.5
"""How many times faster a later candidate must draw to be taken. The backend is part of what
defines a run's episodes, so noise must not change it; and a GPU's lead grows with the scene."""
_GL_MODULES = {"egl": "mujoco.egl", "osmesa": "mujoco.osmesa", "cgl": "mujoco.cgl"}


def find_gl_backend() -> str | None:
    """Return the fastest GL backend that really renders on this machine, or None.

    ``MUJOCO_GL`` is obeyed when set: it alone is tried.
    """
    best = fastest(probe_backends(gl_candidates()))
    return None if best is None else best.backend


def fastest(probes: Sequence[GlProbe]) -> GlProbe | None:
    """Return the probe to render with: the first that works, unless another is clearly faster."""
    best: GlProbe | None = None
    for probe in probes:
        if probe.works and (best is None or _clearly_faster(probe, best)):
            best = probe
    return best


def describe_choice() -> str | None:
    """Return in one line what was chosen by speed, None when there was nothing to choose."""
    probes = probe_backends(gl_candidates())
    best = fastest(probes)
    if wanted_backend() or best is None:
        return None
    others = [_named(probe) for probe in probes if probe.works and probe is not best]
    if not others:
        return f"rendering with {best.backend}"
    return f"rendering with {best.backend} ({_frame_time(best)} a frame; {', '.join(others)})"


def gl_variables(*, needed: bool) -> dict[str, str]:
    """Return the variables that make a process render, or not load GL at all when not ``needed``.

    Raises:
        NoGraphics: rendering is needed and no backend works.
    """
    if not needed:
        return {"MUJOCO_GL": "disable"}
    return {"MUJOCO_GL": _backend_or_raise()}


class CameraRenderer:
    """Pictures of one MuJoCo world at one size. Owns a GL context until closed."""

    def __init__(
        self, model: Any, height: int, width: int, hidden_groups: Sequence[int] = ()
    ) -> None:
        import mujoco

        _bind_gl_context(_chosen_backend())
        buffer = model.vis.global_
        buffer.offheight = max(buffer.offheight, height)
        buffer.offwidth = max(buffer.offwidth, width)
        self._renderer = mujoco.Renderer(model, height, width)
        self._option = mujoco.MjvOption()
        self._option.geomgroup[list(hidden_groups)] = 0

    def render(self, data: Any, camera: str) -> Array:
        """Return what ``camera`` sees in ``data``, uint8 [H, W, 3]."""
        self._renderer.update_scene(data, camera, self._option)
        pixels: Array = self._renderer.render()
        return pixels

    def close(self) -> None:
        """Free the GL context."""
        self._renderer.close()


def can_render() -> bool:
    """Return whether this process may render: whether ``gl_variables`` was told that it will."""
    return wanted_backend() not in OFF


def release_pages(array: Array) -> None:
    """Give the memory under ``array`` back where the system can; it reads as zeros from then on."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    page = mmap.PAGESIZE
    start = -(-array.ctypes.data // page) * page
    length = (array.ctypes.data + array.nbytes) // page * page - start
    if length > 0:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_DONTNEED)


def gl_candidates() -> tuple[str, ...]:
    """Return the backends to try, best first; only ``MUJOCO_GL`` when it is set."""
    wanted = wanted_backend()
    return (wanted,) if wanted else platform_backends()


def platform_backends() -> tuple[str, ...]:
    """Return the backends that MuJoCo has on this platform, best first."""
    return ("cgl",) if platform.system() == "Darwin" else ("egl", "osmesa", "glfw")


def wanted_backend() -> str:
    """Return what ``MUJOCO_GL`` asks for, or an empty string."""
    return os.environ.get("MUJOCO_GL", "").lower().strip()


def _clearly_faster(probe: GlProbe, best: GlProbe) -> bool:
    if probe.frame_ms is None or best.frame_ms is None:
        return False
    if probe.device and probe.device == best.device:
        return False  # two ways to the same device: what differs is noise
    return probe.frame_ms * _CLEARLY_FASTER < best.frame_ms


def _named(probe: GlProbe) -> str:
    return f"{probe.backend} {_frame_time(probe)}"


def _frame_time(probe: GlProbe) -> str:
    return "n/a" if probe.frame_ms is None else f"{probe.frame_ms:.3g} ms"


def _backend_or_raise() -> str:
    backend = find_gl_backend()
    if backend is None:
        probes = probe_backends(gl_candidates())
        tried = "; ".join(f"{probe.backend}: {probe.error}" for probe in probes)
        source = "MUJOCO_GL is set to" if wanted_backend() else "tried"
        raise NoGraphics(
            f"nothing on this machine can render images ({source} {tried}); "
            "run: apt-get install libegl1 libgl1-mesa-dri (or libosmesa6)"
        )
    return backend


def _chosen_backend() -> str:
    """Return the backend of this process without probing again what preflight has chosen."""
    wanted = wanted_backend()
    return wanted if wanted and wanted not in OFF else _backend_or_raise()


def _bind_gl_context(backend: str) -> None:
    """Make MuJoCo render through ``backend``.

    MuJoCo binds a backend when it is first imported, from the MUJOCO_GL of that moment; a process
    that imported it before MUJOCO_GL was set has another backend, or none.
    """
    from mujoco import gl_context

    module = importlib.import_module(_GL_MODULES.get(backend, "mujoco.glfw"))
    gl_context.GLContext = module.GLContext
