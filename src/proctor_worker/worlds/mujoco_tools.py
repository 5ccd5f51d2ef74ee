"""Shared code of worlds on MuJoCo: the GL backend of this interpreter, rendering, physics state."""

import os
import subprocess
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from proctor_worker.records import Refused

_BACKENDS = ("egl", "osmesa", "glfw")
_LIMIT_S = 120
_DRAW = """
import mujoco
model = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><light pos='0 0 2'/><geom size='.1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 16, 16)
renderer.update_scene(data)
assert renderer.render().any()
print("drawn", flush=True)
"""


def rendering_variables(renders: bool) -> Dict[str, str]:
    """Return the variables with which a process renders, or loads no GL library.

    ``MUJOCO_GL`` is obeyed if it is set; otherwise the first backend that renders is used.

    Raises:
        Refused: no backend renders here.
    """
    if not renders:
        return {"MUJOCO_GL": "disable"}
    asked = os.environ.get("MUJOCO_GL", "").lower()
    tried = [asked] if asked and asked != "disable" else list(_BACKENDS)
    for backend in tried:
        if _draws(backend):
            return {"MUJOCO_GL": backend}
    raise Refused(
        "images cannot be rendered: no GL backend works in %s (tried %s)"
        % (sys.executable, ", ".join(tried)),
        code="gl.unavailable",
    )


def _draws(backend: str) -> bool:
    """Tell whether a backend renders, in a process of its own: a broken driver may crash it."""
    variables = dict(os.environ, MUJOCO_GL=backend)
    try:
        done = subprocess.run(  # noqa: S603  this interpreter, with a fixed program
            [sys.executable, "-c", _DRAW],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return b"drawn" in done.stdout


class CameraRenderer:
    """Renders a model at one size; opens its GL context at the first image."""

    def __init__(self, height: int, width: int, hidden_groups: Sequence[int] = ()) -> None:
        self._height, self._width = height, width
        self._hidden = list(hidden_groups)
        self._model: Any = None
        self._renderer: Any = None
        self._option: Any = None

    def render(self, model: Any, data: Any, camera: Any) -> "np.ndarray[Any, Any]":
        """Return an image, uint8 [H, W, 3], upright."""
        import mujoco

        if model is not self._model:
            self.close()
            model.vis.global_.offheight = max(model.vis.global_.offheight, self._height)
            model.vis.global_.offwidth = max(model.vis.global_.offwidth, self._width)
            self._renderer = mujoco.Renderer(model, self._height, self._width)
            self._option = mujoco.MjvOption()
            self._option.geomgroup[self._hidden] = 0
            self._model = model
        self._renderer.update_scene(data, camera, self._option)
        pixels: "np.ndarray[Any, Any]" = self._renderer.render()
        return pixels

    def close(self) -> None:
        """Free the GL context."""
        if self._renderer is not None:
            self._renderer.close()
        self._renderer = self._model = None


class CompiledModel:
    """The arrays of a compiled model, to undo what episodes change in it."""

    def __init__(self, model: Any) -> None:
        self._pairs = [(values, values.copy()) for values in _changeable(model)]

    def restore(self) -> None:
        """Write the compiled values back."""
        for values, compiled in self._pairs:
            values[...] = compiled


def _changeable(model: Any) -> List[Any]:
    """Return the model's arrays as live views, without the large ones of meshes and textures."""
    skipped = ("_", "bvh_", "mesh_", "names", "tex_")
    values = [getattr(model, name) for name in dir(model) if not name.startswith(skipped)]
    return [value for value in values if isinstance(value, np.ndarray) and value.size]


def physics_state(data: Any) -> "np.ndarray[Any, Any]":
    """Return everything that moves or that a reset places, float64."""
    parts = (data.qpos, data.qvel, data.xpos, data.xquat, data.site_xpos)
    return np.concatenate([np.ravel(part) for part in parts]).astype(np.float64)


class JointReader:
    """Reads the positions of all joints of a model, by name, to tell starts apart.

    A quaternion's w is left out: it follows from the others. If ``most`` numbers are too few for
    orientations, free joints have their positions only.
    """

    def __init__(self, model: Any, most: int = 64) -> None:
        found = _joint_numbers(model, _FREE_PARTS)
        if len(found) > most:
            found = _joint_numbers(model, _FREE_PARTS[:3])
        self._names = [name for name, _ in found]
        self._places = np.array([place for _, place in found], np.intp)

    def read(self, qpos: Any) -> Dict[str, float]:
        """Return the joints' positions in ``qpos`` of the model's data."""
        return dict(zip(self._names, qpos[self._places].tolist()))


_FREE_PARTS = ((" x", 0), (" y", 1), (" z", 2), (" qx", 4), (" qy", 5), (" qz", 6))
_BALL_PARTS = ((" qx", 1), (" qy", 2), (" qz", 3))


def _joint_numbers(model: Any, free_parts: Any) -> List[Tuple[str, int]]:
    """Return name and place in qpos of each number that ``JointReader`` reads."""
    parts_of = {0: free_parts, 1: _BALL_PARTS}
    found = []
    for number in range(model.njnt):
        name = model.joint(number).name or "joint %d" % number
        for part, offset in parts_of.get(int(model.jnt_type[number]), (("", 0),)):
            found.append((name + part, int(model.jnt_qposadr[number]) + offset))
    return found


def xyz(name: str, position: Any) -> Dict[str, float]:
    """Return a position's coordinates by name: "NAME x", "NAME y", "NAME z"."""
    return {"%s %s" % (name, axis): float(at) for axis, at in zip("xyz", position)}


def chosen_rows(
    config: Dict[str, Any], suites: Mapping[str, Sequence[str]]
) -> Dict[str, Sequence[str]]:
    """Return the suites, or single tasks of them, that the flag ``task`` names; empty: all.

    Unknown names are left out: Proctor's side refuses them with a hint.
    """
    wanted = [name.strip() for name in (config.get("task") or "").split(",") if name.strip()]
    found: Dict[str, Sequence[str]] = {}
    for suite, names in suites.items():
        chosen = [name for name in names if suite in wanted or name in wanted]
        if chosen or not wanted:
            found[suite] = chosen or names
    return found


def single_size(what: str, sizes: Dict[str, Any], flag: str = "task") -> Any:
    """Return the one value that all chosen tasks share.

    Raises:
        Refused: they differ.
    """
    if len(set(sizes.values())) > 1:
        listed = ", ".join("%s %s" % (name, size) for name, size in sizes.items())
        raise Refused(
            "--env.%s: the tasks have %s of different sizes (%s); run them one by one"
            % (flag, what, listed),
            code="env.mixed-spaces",
        )
    return next(iter(sizes.values()), None)


def shared_size(sizes: Dict[str, Any]) -> Optional[Any]:
    """Return the one value that all chosen tasks share; None if they differ."""
    return next(iter(sizes.values())) if len(set(sizes.values())) == 1 else None
