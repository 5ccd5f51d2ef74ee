"""Try each GL backend with a small MuJoCo scene, in a subprocess, and time it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from proctor.system.caches import JsonCache

_LONGEST_S = 24 * 3600
_CACHE = JsonCache("gl_probes", most_entries=32)
_VARIABLES = (
    *("MUJOCO_", "PYOPENGL", "EGL_", "__EGL", "__GL", "LIBGL_", "MESA_", "GALLIUM_", "LP_"),
    *("DISPLAY", "WAYLAND_DISPLAY", "LD_", "DRI_", "CUDA_", "NVIDIA_", "VK_"),
)
"""Beginnings of the names of variables that GL libraries read."""
_PLACES = (
    "/usr/lib",
    f"/usr/lib/{os.uname().machine}-linux-gnu",
    f"/usr/lib/{os.uname().machine}-linux-gnu/dri",
    "/usr/lib64",
    "/usr/lib64/dri",
    "/usr/local/lib",
    "/usr/share/glvnd/egl_vendor.d",
    "/etc/glvnd/egl_vendor.d",
    "/dev/dri",
    "/dev/nvidia0",
)
"""Folders of GL libraries, their configuration and devices: installing a driver changes one."""

Probes = list[dict[str, Any]]


def read_probes(what: str) -> Probes | None:
    """Return the kept results of the probes ``what``; None: there are none that count."""
    try:
        entry = _CACHE.read()[_key(what)]
        age_s = time.time() - float(entry["time"])
        probes: Probes = [dict(probe) for probe in entry["probes"]]
    except (ValueError, KeyError, TypeError):
        return None
    return probes if 0 <= age_s < _LONGEST_S else None


def keep_probes(what: str, probes: Probes) -> None:
    """Keep results for the next process; where the disk refuses, it probes again."""
    entries = _CACHE.read()
    entries.pop(_key(what), None)
    _CACHE.write({**entries, _key(what): {"time": time.time(), "probes": probes}})


def _key(what: str) -> str:
    return hashlib.sha256("\n".join([what, *_circumstances()]).encode()).hexdigest()


def _circumstances() -> Iterator[str]:
    """Yield everything that may change a probe's result."""
    with contextlib.suppress(OSError):
        yield Path("/proc/sys/kernel/random/boot_id").read_text()
    yield sys.prefix
    for name, value in sorted(os.environ.items()):
        if name.startswith(_VARIABLES):
            yield f"{name}={value}"
    packages = [importlib.util.find_spec(name) for name in ("mujoco", "OpenGL")]
    origins = [str(getattr(spec, "origin", "")) for spec in packages]
    for place in (*_PLACES, *origins):
        with contextlib.suppress(OSError):
            found = os.stat(place)  # noqa: PTH116  plain strings
            yield f"{place} {found.st_ino} {found.st_mtime_ns}"


REFERENCE_PIXELS = 480
"""Height and width of the reference frame: Meta-World's default."""
RENDERING_OFF = ("disable", "disabled", "off", "false", "0")
"""Values of MUJOCO_GL that disable rendering."""
_LIMIT_S = 60
_ONE_AT_A_TIME = threading.Lock()

# Renders an image: a backend may import, open a context and still render nothing. Waits after the
# first image, so that backends start in parallel and are timed one by one.
_PROGRAM = f"""
import contextlib, ctypes, os, statistics, sys, time
if os.environ["MUJOCO_GL"] == "osmesa" and "PYOPENGL_PLATFORM" not in os.environ:
    os.environ["PYOPENGL_PLATFORM"] = "osmesa"
    from OpenGL.platform import PLATFORM
    PLATFORM.GL.glGetError  # a missing library shows here, before the cost of loading MuJoCo
import mujoco
balls = "".join(
    f"<geom pos='{{x / 2}} {{y / 2}} .1' size='.1' rgba='{{x / 3}} {{y / 3}} 1 1'/>"
    for x in range(3) for y in range(3)
)
model = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><light pos='0 0 3'/><geom type='plane' size='3 3 .1'/>"
    + balls + "</worldbody></mujoco>"
)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, {REFERENCE_PIXELS}, {REFERENCE_PIXELS}) as renderer:
    def frame():
        began = time.perf_counter()
        renderer.update_scene(data)
        pixels = renderer.render()
        return pixels, time.perf_counter() - began
    assert frame()[0].any(), "the image is black"
    print("drawn", flush=True)
    if sys.stdin.readline().strip() == "time":
        times_s = []
        while len(times_s) < 5 and sum(times_s) < 0.3:
            times_s.append(frame()[1])
        print("frame_ms", 1e3 * statistics.median(times_s), flush=True)
        with contextlib.suppress(Exception):  # a name we can do without
            from OpenGL.raw.GL.VERSION.GL_1_0 import GL_RENDERER, glGetString
            print("device", ctypes.string_at(glGetString(GL_RENDERER)).decode(), flush=True)
"""


@dataclass(frozen=True)
class GlProbe:
    """The result of trying one backend."""

    backend: str
    error: str = ""
    """Why the backend cannot render, in one line; empty if it can."""
    frame_ms: float | None = None
    """Median time of a reference frame; None if it was not timed."""
    device: str = ""
    """Name of the device that renders, from the driver; empty if unknown."""

    @property
    def works(self) -> bool:
        """Whether the backend renders."""
        return not self.error

    @property
    def frame_time(self) -> str:
        """Time of one frame, as text."""
        if self.frame_ms is None:
            return "n/a"
        return f"{self.frame_ms:.3g} ms" if self.frame_ms < 100 else f"{self.frame_ms:,.0f} ms"


def probe_backends(backends: Sequence[str], *, always_time: bool = False) -> tuple[GlProbe, ...]:
    """Try ``backends`` in parallel; if several render, time them one by one.

    Each runs in a subprocess: a broken driver crashes the process that loads it. Results are kept
    for later processes (``keep_probes``) unless ``always_time``.
    """
    with _ONE_AT_A_TIME:  # concurrent callers wait for the same result
        return _probe_backends(tuple(backends), always_time)


@cache
def _probe_backends(backends: tuple[str, ...], always_time: bool) -> tuple[GlProbe, ...]:
    if always_time:
        return _try_backends(backends, always_time=True)
    what = f"{backends} {_PROGRAM}"
    kept = read_probes(what)
    if kept is not None:
        with contextlib.suppress(TypeError):  # of another version of Proctor
            return tuple(GlProbe(**probe) for probe in kept)
    probes = _try_backends(backends, always_time=False)
    if any(probe.works for probe in probes):
        keep_probes(what, [asdict(probe) for probe in probes])
    return probes


def _try_backends(backends: tuple[str, ...], *, always_time: bool) -> tuple[GlProbe, ...]:
    trials = [_Trial(backend) for backend in backends]
    with ThreadPoolExecutor(len(trials)) as threads:
        drawn = sum(threads.map(_Trial.draws, trials))
    # One by one: software renderers would compete for cores.
    return tuple(trial.finish(timed=always_time or drawn > 1) for trial in trials)


class _Trial:
    """One backend in its own process."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._timed_out = False
        self._unusable = _unusable_reason(backend)
        self._process = None if self._unusable else _start(backend)

    def draws(self) -> bool:
        """Wait for the first image; return whether there is one."""
        if self._process is None:
            return False
        with self._limit():
            return any(line.strip() == "drawn" for line in self._process.stdout or ())

    def finish(self, *, timed: bool) -> GlProbe:
        """Let the process time its frames if ``timed``, and return the result."""
        if self._process is None:
            return GlProbe(self._backend, self._unusable)
        with self._limit():
            stdout, stderr = self._process.communicate("time\n" if timed else "\n")
        if self._timed_out:
            return GlProbe(self._backend, f"no image after {_LIMIT_S} s")
        if self._process.returncode:
            return GlProbe(
                self._backend, _reason(stderr) or f"exit code {self._process.returncode}"
            )
        shown = dict(line.split(" ", 1) for line in stdout.splitlines() if " " in line)
        frame_ms = float(shown["frame_ms"]) if "frame_ms" in shown else None
        return GlProbe(self._backend, "", frame_ms, shown.get("device", "").strip())

    @contextlib.contextmanager
    def _limit(self) -> Iterator[None]:
        """Kill the process if the block takes too long."""
        alarm = threading.Timer(_LIMIT_S, self._kill_late)
        alarm.start()
        try:
            yield
        finally:
            alarm.cancel()

    def _kill_late(self) -> None:
        assert self._process is not None
        self._timed_out = True
        self._process.kill()


def _unusable_reason(backend: str) -> str:
    """Return why ``backend`` cannot work and need not be tried, or an empty string."""
    if backend in RENDERING_OFF:
        return "rendering is switched off"
    displays = ("DISPLAY", "WAYLAND_DISPLAY")
    if backend == "glfw" and sys.platform == "linux" and not any(map(os.environ.get, displays)):
        return "no display (DISPLAY is not set)"
    return ""


def _start(backend: str) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603  our own command
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "MUJOCO_GL": backend},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _reason(stderr: str) -> str:
    """Return the line of ``stderr`` that says why a backend failed."""
    warned = re.search(r"GLFWError: \(\d+\) b'(.*)'", stderr)
    if warned:
        return warned[1]
    # MuJoCo's incomplete renderer raises another error in its destructor.
    lines = stderr.partition("Exception ignored")[0].strip().splitlines()
    # PyOpenGL's error if it found no library to load.
    if lines and re.search(r"'NoneType' object has no attribute 'e?gl\w+'", lines[-1]):
        return "its library is not installed"
    return lines[-1] if lines else ""
