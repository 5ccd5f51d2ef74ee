"""Off-screen rendering of MuJoCo worlds: which GL backend works, and pictures from a camera."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
from functools import cache
from typing import Any

from proctor.errors import NoGraphics
from proctor.types import Array

# Renders 16x16 pixels for real: a backend may import, open a context and still draw nothing.
_PROBE = """
import mujoco
model = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><light pos='0 0 3'/><geom size='1' rgba='1 1 1 1'/></worldbody></mujoco>"
)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 16, 16) as renderer:
    renderer.update_scene(data)
    assert renderer.render().any(), "the picture is black"
"""
_PROBE_LIMIT_S = 60
_OFF = ("disable", "disabled", "off", "false", "0")
_GL_MODULES = {"egl": "mujoco.egl", "osmesa": "mujoco.osmesa", "cgl": "mujoco.cgl"}


def find_gl_backend() -> str | None:
    """Return the first GL backend that really renders on this machine, or None.

    ``MUJOCO_GL`` is obeyed when set: it alone is tried.
    """
    return next((backend for backend in _candidates() if not _probe_error(backend)), None)


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

    def __init__(self, model: Any, height: int, width: int) -> None:
        import mujoco

        _bind_gl_context(_chosen_backend())
        buffer = model.vis.global_
        buffer.offheight = max(buffer.offheight, height)
        buffer.offwidth = max(buffer.offwidth, width)
        self._renderer = mujoco.Renderer(model, height, width)

    def render(self, data: Any, camera: str) -> Array:
        """Return what ``camera`` sees in ``data``, uint8 [H, W, 3]."""
        self._renderer.update_scene(data, camera)
        pixels: Array = self._renderer.render()
        return pixels

    def close(self) -> None:
        """Free the GL context."""
        self._renderer.close()


def _candidates() -> tuple[str, ...]:
    """Return the backends to try, best first."""
    wanted = _wanted_backend()
    if wanted:
        return (wanted,)
    return ("cgl",) if platform.system() == "Darwin" else ("egl", "osmesa", "glfw")


def _wanted_backend() -> str:
    return os.environ.get("MUJOCO_GL", "").lower().strip()


@cache
def _probe_error(backend: str) -> str:
    """Return why ``backend`` cannot render, or an empty string.

    Runs in a subprocess: a broken driver crashes the process that loads it.
    """
    if backend in _OFF:
        return "rendering is switched off"
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env={**os.environ, "MUJOCO_GL": backend},
            capture_output=True,
            text=True,
            timeout=_PROBE_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"no picture after {_PROBE_LIMIT_S} s"
    if probe.returncode == 0:
        return ""
    # MuJoCo's half-made renderer complains once more while it is torn down.
    lines = probe.stderr.partition("Exception ignored")[0].strip().splitlines()
    return lines[-1] if lines else f"exit code {probe.returncode}"


def _backend_or_raise() -> str:
    backend = find_gl_backend()
    if backend is None:
        tried = "; ".join(f"{name}: {_probe_error(name)}" for name in _candidates())
        source = "MUJOCO_GL is set to" if _wanted_backend() else "tried"
        raise NoGraphics(
            f"nothing on this machine can render images ({source} {tried}); "
            "run: apt-get install libegl1 libgl1-mesa-dri (or libosmesa6)"
        )
    return backend


def _chosen_backend() -> str:
    """Return the backend of this process without probing again what preflight has chosen."""
    wanted = _wanted_backend()
    return wanted if wanted and wanted not in _OFF else _backend_or_raise()


def _bind_gl_context(backend: str) -> None:
    """Make MuJoCo render through ``backend``.

    MuJoCo binds a backend when it is first imported, from the MUJOCO_GL of that moment; a process
    that imported it before MUJOCO_GL was set has another backend, or none.
    """
    from mujoco import gl_context

    module = importlib.import_module(_GL_MODULES.get(backend, "mujoco.glfw"))
    gl_context.GLContext = module.GLContext
