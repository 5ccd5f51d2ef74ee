"""The finding of ``proctor doctor`` about ``--env.renderer=warp``."""

from __future__ import annotations

from collections.abc import Iterator

from proctor.benchmarks.mujoco.drawing_process import RECIPE, DrawingProcess
from proctor.benchmarks.mujoco.render_config import RendererDevice
from proctor.benchmarks.recipes.installation import find_interpreter
from proctor.errors import UsageError
from proctor.system.platform.doctor import DoctorFinding, DoctorLevel

_SUBJECT = "warp"


def warp_findings() -> Iterator[DoctorFinding]:
    """Yield whether the drawing process is installed and finds a CUDA device."""
    python = find_interpreter(RECIPE)
    if python is None:
        text = f"not installed, needed for --env.renderer=warp only (benchmarks install {RECIPE})"
        yield DoctorFinding(DoctorLevel.OK, _SUBJECT, text)
        return
    try:
        process = DrawingProcess(python, RendererDevice.CUDA)
    except UsageError as error:
        if error.code == "render.no-gpu":
            text = "installed, but there is no CUDA device: --env.renderer=warp is refused"
            yield DoctorFinding(DoctorLevel.OK, _SUBJECT, text)
        else:
            fix = f"proctor benchmarks install {RECIPE}"
            yield DoctorFinding(DoctorLevel.WARN, _SUBJECT, str(error), fix)
        return
    yield DoctorFinding(DoctorLevel.OK, _SUBJECT, process.description)
    process.close()
