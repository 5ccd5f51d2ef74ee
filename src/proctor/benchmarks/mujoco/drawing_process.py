"""The drawing process of a run: started once, before the workers, and ended with this process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
import weakref
from pathlib import Path
from typing import IO, Any

from proctor.benchmarks.isolated.launch import (
    WORKER_FOLDER,
    interpreter_path,
    isolated_environment,
)
from proctor.benchmarks.mujoco.drawing_client import DrawingClient
from proctor.benchmarks.mujoco.render_config import RendererDevice, RenderSettings
from proctor.errors import PluginError, UsageError, summarize_traceback
from proctor.system.graphics.gl import gl_variables
from proctor.system.platform.environment import DRAWER_VARIABLE, RENDERER_VARIABLE

RECIPE = "warp"
"""Name of the recipe that installs the drawing process's packages."""

_started: dict[tuple[Path, RendererDevice], DrawingProcess] = {}
_lock = threading.Lock()


class DrawingProcess:
    """A running drawing process."""

    def __init__(self, python: Path, device: RendererDevice) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="proctor-draw-")
        self.address = str(Path(self._folder.name, "socket"))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  lives with the process
        self._life, process = _start(python, device, self.address, self._log)
        self._end = weakref.finalize(self, _end, self._life, process, self._folder)
        try:
            client = DrawingClient(self.address, image_bytes=1)
        except PluginError:
            self._end()
            raise UsageError(
                f"the drawing process ({python}) ended at its start{self._last_line()}",
                code="render.not-installed",
            ) from None
        hello = client.hello
        client.close()
        if hello["op"] == "refused":
            self._end()
            raise _refusal(python, hello)
        self.device: str = hello["device"]
        self.distributions: dict[str, str] = hello["facts"]["distributions"]

    @property
    def description(self) -> str:
        """Versions and device, for fingerprints and messages."""
        named = (f"{name} {version}" for name, version in sorted(self.distributions.items()))
        return f"warp on {self.device}: {', '.join(named)}"

    def close(self) -> None:
        """End the process."""
        self._end()

    def _last_line(self) -> str:
        self._log.seek(0)
        text = self._log.read()[-20_000:].decode("utf-8", "replace").strip()
        return f": {summarize_traceback(text)}" if text else ""


def drawing_process(settings: RenderSettings) -> DrawingProcess:
    """Return the drawing process for ``settings``; the first call starts it."""
    key = (_interpreter(settings), settings.device)
    with _lock:
        if key not in _started:
            _started[key] = DrawingProcess(*key)
        return _started[key]


def render_variables(settings: RenderSettings, *, needed: bool) -> dict[str, str]:
    """Return the variables with which a process renders, or does not if not ``needed``."""
    if not needed or not settings.is_drawn:
        return gl_variables(needed=needed)
    process = drawing_process(settings)
    return {
        **gl_variables(needed=False),
        DRAWER_VARIABLE: process.address,
        RENDERER_VARIABLE: process.description,
    }


def describe_drawing(address: str) -> str:
    """Return where the drawing process at ``address`` has spent its time."""
    try:
        client = DrawingClient(address, image_bytes=1)
        counted = client.request({"op": "statistics"})
        client.close()
    except PluginError as error:
        return str(error)
    spent = ", ".join(f"{part} {seconds:.1f}" for part, seconds in counted["seconds"].items())
    prepared = ", ".join(f"{name} {count}" for name, count in counted["drawer"].items())
    return (
        f"drawing process: {counted['images']} images in {counted['batches']} batches; "
        f"seconds: {spent}; {prepared}"
    )


def _interpreter(settings: RenderSettings) -> Path:
    if settings.python is not None:
        return interpreter_path(settings.python, "--env.renderer_python")
    # here: simulators run in interpreters that lack what recipes are read with
    from proctor.benchmarks.recipes.installation import find_interpreter

    found = find_interpreter(RECIPE)
    if found is None:
        raise UsageError(
            f"--env.renderer=warp is not installed; run: proctor benchmarks install {RECIPE}",
            code="render.not-installed",
        )
    return found


def _start(
    python: Path, device: RendererDevice, address: str, log: IO[bytes]
) -> tuple[int, subprocess.Popen[bytes]]:
    """Start the process; return the pipe that keeps it alive, and the process."""
    guarded, life = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(address)
            listener.listen(512)
            words = ("draw", str(listener.fileno()), str(guarded), device.value)
            process = subprocess.Popen(  # noqa: S603  the user's own interpreter
                [str(python), str(WORKER_FOLDER / "__main__.py"), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=isolated_environment(),
                pass_fds=[listener.fileno(), guarded],
                start_new_session=True,
            )
        except OSError as error:
            os.close(life)
            raise UsageError(
                f"the drawing process ({python}) cannot be started: {error.strerror or error}",
                code="env.no-interpreter",
            ) from None
        finally:
            os.close(guarded)
    return life, process


def _end(
    life: int, process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]
) -> None:
    os.close(life)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    folder.cleanup()


def _refusal(python: Path, hello: dict[str, Any]) -> UsageError:
    if hello["code"] == "render.no-gpu":
        return UsageError(
            f"--env.renderer=warp: {hello['text']}, and on a CPU it is slower than GL; use "
            "--env.renderer=gl, or ask for it with --env.renderer_device=cpu",
            code="render.no-gpu",
        )
    return UsageError(
        f"--env.renderer=warp: {python} lacks a package ({hello['text']}); "
        f"run: proctor benchmarks install {RECIPE}",
        code="render.not-installed",
    )
