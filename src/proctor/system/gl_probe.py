"""Which GL backends draw MuJoCo worlds on this machine, and how fast: each tried in a process."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

REFERENCE_PIXELS = 480
"""Height and width of the reference frame: Meta-World's own default."""
RENDERING_OFF = ("disable", "disabled", "off", "false", "0")
"""What MuJoCo reads as: no rendering."""
_LIMIT_S = 60
_ONE_AT_A_TIME = threading.Lock()

# Draws for real: a backend may import, open a context and still draw nothing. Waits between the
# first picture and the clock, such that backends start together and are timed one by one.
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
    assert frame()[0].any(), "the picture is black"
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
    """What trying one backend has shown."""

    backend: str
    error: str = ""
    """Why it cannot render, in one line; empty when it can."""
    frame_ms: float | None = None
    """Median time of a reference frame; None when it was not timed."""
    device: str = ""
    """What draws, in the driver's words; empty when unknown."""

    @property
    def works(self) -> bool:
        """Whether it renders."""
        return not self.error

    @property
    def frame_time(self) -> str:
        """How long a frame takes, in words."""
        if self.frame_ms is None:
            return "n/a"
        return f"{self.frame_ms:.3g} ms" if self.frame_ms < 100 else f"{self.frame_ms:,.0f} ms"


def probe_backends(backends: Sequence[str], *, always_time: bool = False) -> tuple[GlProbe, ...]:
    """Try ``backends`` side by side; time those that draw, one by one, when there is a choice.

    Each runs in a subprocess: a broken driver crashes the process that loads it.
    """
    with _ONE_AT_A_TIME:  # whoever asks meanwhile waits for the same answer
        return _probe_backends(tuple(backends), always_time)


@cache
def _probe_backends(backends: tuple[str, ...], always_time: bool) -> tuple[GlProbe, ...]:
    trials = [_Trial(backend) for backend in backends]
    with ThreadPoolExecutor(len(trials)) as threads:
        drawn = sum(threads.map(_Trial.draws, trials))
    # In turn: software renderers would take each other's cores.
    return tuple(trial.finish(timed=always_time or drawn > 1) for trial in trials)


class _Trial:
    """One backend in a process of its own."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._late = False
        self._hopeless = _hopeless(backend)
        self._process = None if self._hopeless else _start(backend)

    def draws(self) -> bool:
        """Wait for the first picture and say whether there is one."""
        if self._process is None:
            return False
        with self._limit():
            return any(line.strip() == "drawn" for line in self._process.stdout or ())

    def finish(self, *, timed: bool) -> GlProbe:
        """Let the process time its frames or not, and return what it has shown."""
        if self._process is None:
            return GlProbe(self._backend, self._hopeless)
        with self._limit():
            stdout, stderr = self._process.communicate("time\n" if timed else "\n")
        if self._late:
            return GlProbe(self._backend, f"no picture after {_LIMIT_S} s")
        if self._process.returncode:
            return GlProbe(
                self._backend, _reason(stderr) or f"exit code {self._process.returncode}"
            )
        shown = dict(line.split(" ", 1) for line in stdout.splitlines() if " " in line)
        frame_ms = float(shown["frame_ms"]) if "frame_ms" in shown else None
        return GlProbe(self._backend, "", frame_ms, shown.get("device", "").strip())

    @contextlib.contextmanager
    def _limit(self) -> Iterator[None]:
        """End the process when what is done in here takes too long."""
        alarm = threading.Timer(_LIMIT_S, self._give_up)
        alarm.start()
        try:
            yield
        finally:
            alarm.cancel()

    def _give_up(self) -> None:
        assert self._process is not None
        self._late = True
        self._process.kill()


def _hopeless(backend: str) -> str:
    """Return why ``backend`` need not even be tried, or an empty string."""
    if backend in RENDERING_OFF:
        return "rendering is switched off"
    displays = ("DISPLAY", "WAYLAND_DISPLAY")
    if backend == "glfw" and sys.platform == "linux" and not any(map(os.environ.get, displays)):
        return "no display (DISPLAY is not set)"
    return ""


def _start(backend: str) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603  our own words
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "MUJOCO_GL": backend},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _reason(stderr: str) -> str:
    """Return the line that says why a backend failed."""
    warned = re.search(r"GLFWError: \(\d+\) b'(.*)'", stderr)
    if warned:
        return warned[1]
    # MuJoCo's half-made renderer complains once more while it is torn down.
    lines = stderr.partition("Exception ignored")[0].strip().splitlines()
    # What PyOpenGL says when it found no library to load.
    if lines and re.search(r"'NoneType' object has no attribute 'e?gl\w+'", lines[-1]):
        return "its library is not installed"
    return lines[-1] if lines else ""
