"""The GL backend that this machine renders with, and the variables that select it."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterator, Sequence

from proctor.errors import NoGraphics
from proctor.system.graphics.gl_probe import RENDERING_OFF, GlProbe, probe_backends
from proctor.system.platform.environment import DRAWER_VARIABLE

_CLEARLY_FASTER = 1.5
"""How many times faster a later candidate must render to be chosen. The backend is part of a run's
fingerprint, so timing noise must not change it; and a GPU's advantage grows with the scene."""


def find_gl_backend() -> str | None:
    """Return the fastest GL backend that renders on this machine, or None.

    If ``MUJOCO_GL`` is set, only that backend is tried.
    """
    best = pick_fastest(probe_backends(gl_candidates()))
    return None if best is None else best.backend


def pick_fastest(probes: Sequence[GlProbe]) -> GlProbe | None:
    """Return the first probe that works, or a later one that is clearly faster, or None."""
    best: GlProbe | None = None
    for probe in probes:
        if probe.works and (best is None or _clearly_faster(probe, best)):
            best = probe
    return best


def describe_chosen_backend() -> str | None:
    """Return one line about the backend chosen by speed; None if there was no choice."""
    probes = probe_backends(gl_candidates())
    best = pick_fastest(probes)
    if requested_backend() or best is None:
        return None
    others = [_named(probe) for probe in probes if probe.works and probe is not best]
    if not others:
        return f"rendering with {best.backend}"
    return f"rendering with {best.backend} ({best.frame_time} a frame; {', '.join(others)})"


def gl_variables(*, needed: bool) -> dict[str, str]:
    """Return the variables with which a process renders, or does not load GL if not ``needed``."""
    if not needed:
        return {"MUJOCO_GL": "disable"}
    return {"MUJOCO_GL": _backend_or_raise()}


@contextlib.contextmanager
def choose_backend_on_import() -> Iterator[None]:
    """Choose a backend for this process if MuJoCo is imported within the block.

    MuJoCo and dm_control read ``MUJOCO_GL`` while they are imported. A value that is set is obeyed.
    If no backend works, rendering is disabled: an environment may be run without images.
    """
    finder = _BeforeMujoco()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _BeforeMujoco:
    """An import hook that runs before MuJoCo is imported, and finds no module itself."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Choose a backend if MuJoCo is imported."""
        if name in ("mujoco", "dm_control") and not requested_backend():
            try:
                os.environ.update(gl_variables(needed=True))
            except NoGraphics:
                os.environ.update(gl_variables(needed=False))


def can_render() -> bool:
    """Return whether this process may render: with GL, or in the run's drawing process."""
    return requested_backend() not in RENDERING_OFF or DRAWER_VARIABLE in os.environ


def gl_candidates() -> tuple[str, ...]:
    """Return the backends to try, best first; only ``MUJOCO_GL`` if it is set."""
    requested = requested_backend()
    return (requested,) if requested else platform_backends()


def platform_backends() -> tuple[str, ...]:
    """Return the backends that MuJoCo supports on this platform, best first."""
    return ("cgl",) if platform.system() == "Darwin" else ("egl", "osmesa", "glfw")


def requested_backend() -> str:
    """Return the value of ``MUJOCO_GL``, or an empty string."""
    return os.environ.get("MUJOCO_GL", "").lower().strip()


def _clearly_faster(probe: GlProbe, best: GlProbe) -> bool:
    if probe.frame_ms is None or best.frame_ms is None:
        return False
    if probe.device and probe.device == best.device:
        return False  # the same device by another API: the difference is noise
    return probe.frame_ms * _CLEARLY_FASTER < best.frame_ms


def _named(probe: GlProbe) -> str:
    return f"{probe.backend} {probe.frame_time}"


def _backend_or_raise() -> str:
    backend = find_gl_backend()
    if backend is None:
        probes = probe_backends(gl_candidates())
        tried = "; ".join(f"{probe.backend}: {probe.error}" for probe in probes)
        requested, known = requested_backend(), platform_backends()
        if requested and requested not in known:
            raise NoGraphics(
                f"MUJOCO_GL is set to {requested}, which cannot render here; unset it, or choose "
                f"{', '.join(known)}"
            )
        source = "MUJOCO_GL is set to" if requested else "tried"
        advice = "unset MUJOCO_GL to try all backends, or " if requested else ""
        raise NoGraphics(
            f"no GL backend on this machine can render images ({source} {tried}); {advice}"
            "run: apt-get install libegl1 libgl1-mesa-dri (or libosmesa6)"
        )
    return backend


def process_backend() -> str:
    """Return this process's backend; one that preflight has chosen is not probed again."""
    requested = requested_backend()
    return requested if requested and requested not in RENDERING_OFF else _backend_or_raise()
