"""Checks of this machine for ``proctor doctor``: findings, each with the command that fixes it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from proctor.system.graphics.gl import pick_fastest, platform_backends, requested_backend
from proctor.system.graphics.gl_probe import REFERENCE_PIXELS, GlProbe, probe_backends
from proctor.system.platform.platform_info import (
    WORKER_MB,
    installed_version,
    machine_memory_bytes,
    usable_cores,
    usable_memory_bytes,
)

TESTED = {"mujoco": "3.3.0", "metaworld": "3.1.1"}
"""Versions in constraints.txt of the distributions that define an episode."""

_COLUMNS = 80
_MIN_FREE_GB = 1.0
_SOFTWARE_RENDERERS = ("llvmpipe", "softpipe", "swrast", "swiftshader")
_BACKEND_FIX = {
    "egl": "apt-get install libegl1 libgl1-mesa-dri",
    "osmesa": "apt-get install libosmesa6",
    "glfw": "xvfb-run proctor doctor",
    "cgl": "pip install --force-reinstall mujoco==" + TESTED["mujoco"],
}
_LIST_TORCH_DEVICES = """
import torch
for i in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_name(i))
if torch.backends.mps.is_available():
    print("Apple GPU (mps)")
"""


class DoctorLevel(Enum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True)
class DoctorFinding:
    """One finding of the report."""

    level: DoctorLevel
    subject: str
    text: str
    fix: str = ""
    """The command that fixes it; empty if there is nothing to fix."""

    def __str__(self) -> str:
        start = f"{self.level.value:<5} {self.subject:<10} "
        body = textwrap.wrap(self.text, _COLUMNS - len(start), break_on_hyphens=False)
        if self.fix:
            body.append(f"fix: {self.fix}")
        return start + ("\n" + " " * len(start)).join(body)


@dataclass(frozen=True)
class GpuInfo:
    """The GPUs of this machine."""

    names: tuple[str, ...] = ()
    """Names of the GPUs, from the driver or torch."""
    torch: str | None = None
    """The installed torch's version, or None."""
    usable: bool = False
    """Whether torch can use the GPUs."""
    torch_error: str = ""
    """Why torch cannot be imported, or empty."""


OpenBenchmarks = Callable[[Mapping[str, str]], Iterable[DoctorFinding]]
"""Opens every benchmark with these environment variables and returns findings."""


def run_checks(open_benchmarks: OpenBenchmarks) -> Iterator[DoctorFinding]:
    """Yield findings about this machine as they are made; the benchmarks come last."""
    yield cores_finding(usable_cores(), os.cpu_count() or 1)
    yield memory_finding(usable_memory_bytes(), machine_memory_bytes(), usable_cores())
    yield disk_finding(Path.cwd())
    yield from version_findings({name: installed_version(name) for name in TESTED})
    gpus = find_gpus()
    yield gpu_finding(gpus)
    if installed_version("mujoco") is not None:
        requested = requested_backend()
        backends = dict.fromkeys([*platform_backends(), *([requested] if requested else [])])
        probes = probe_backends(tuple(backends), always_time=True)
        yield from graphics_findings(probes, requested, gpus)
        chosen = pick_fastest(
            [probe for probe in probes if not requested or probe.backend == requested]
        )
        renders = (
            {} if chosen is None else {"MUJOCO_GL": chosen.backend}
        )  # benchmarks need not probe again
    else:
        renders = {}
    yield from open_benchmarks(renders)


def cores_finding(usable: int, present: int) -> DoctorFinding:
    """Report the number of cores."""
    return DoctorFinding(DoctorLevel.OK, "cores", f"{usable} usable of {present}")


def memory_finding(usable_bytes: int, machine_bytes: int, cores: int) -> DoctorFinding:
    """Report the memory, and whether a worker for every core fits into it."""
    usable_mb = usable_bytes / 2**20
    limited = ", the container's limit" if usable_bytes < machine_bytes else ""
    text = f"{usable_mb / 1024:.1f} GiB usable of {machine_bytes / 2**30:.1f}{limited}"
    if usable_mb >= cores * WORKER_MB:
        return DoctorFinding(DoctorLevel.OK, "memory", text)
    workers = max(1, int(usable_mb // WORKER_MB))
    return DoctorFinding(
        DoctorLevel.WARN,
        "memory",
        f"{text}: too little for {cores} workers of up to {WORKER_MB} MB",
        f"proctor eval --eval.batch_size={workers} ...",
    )


def disk_finding(folder: Path) -> DoctorFinding:
    """Report the free disk space for a run in ``folder``."""
    free_gb = shutil.disk_usage(folder).free / 1e9
    text = f"{free_gb:.1f} GB free in the current folder"
    fix = "proctor eval --output_dir=/ANOTHER/DISK/run ..."
    if not os.access(folder, os.W_OK):
        return DoctorFinding(DoctorLevel.WARN, "disk", "the current folder cannot be written", fix)
    if free_gb < _MIN_FREE_GB:
        return DoctorFinding(DoctorLevel.WARN, "disk", text, fix)
    return DoctorFinding(DoctorLevel.OK, "disk", text)


def version_findings(installed: Mapping[str, str | None]) -> list[DoctorFinding]:
    """Compare installed versions with the tested ones, for packages that define an episode."""
    return [_version_finding(name, installed[name]) for name in TESTED]


def _version_finding(name: str, version: str | None) -> DoctorFinding:
    if version is None:
        level = DoctorLevel.FAIL if name == "mujoco" else DoctorLevel.WARN
        return DoctorFinding(level, name, "not installed", "pip install 'proctor[metaworld]'")
    tested = TESTED[name]
    if version == tested:
        return DoctorFinding(DoctorLevel.OK, name, f"{version}, the version tested")
    effects = _mujoco_effects(version) if name == "mujoco" else ["may change its tasks"]
    text = f"{version}, tested is {tested}: {' and '.join(effects)}"
    return DoctorFinding(DoctorLevel.WARN, name, text, f"pip install {name}=={tested}")


def _mujoco_effects(version: str) -> list[str]:
    """Return how this MuJoCo version is known to change results."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    effects = []
    if numbers >= (3, 3, 3):
        effects.append("darkens LIBERO's textures (since 3.3.3)")
    if numbers >= (3, 4):
        effects.append("changes LIBERO's contacts (since 3.4)")
    return effects or ["results may differ"]


def find_gpus() -> GpuInfo:
    """List GPUs with the driver's tool, and with torch in a subprocess if it is installed."""
    version = installed_version("torch")
    names = _lines_of(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    if version is None:
        return GpuInfo(names)
    done = subprocess.run(  # noqa: S603  our own command
        [sys.executable, "-c", _LIST_TORCH_DEVICES], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return GpuInfo(names, version, torch_error=(done.stderr.strip().splitlines() or ["?"])[-1])
    usable = tuple(done.stdout.splitlines())
    return GpuInfo(usable or names, version, usable=bool(usable))


def _lines_of(command: Sequence[str]) -> tuple[str, ...]:
    """Return the lines that a command prints; empty if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603  our own command
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(done.stdout.splitlines()) if done.returncode == 0 else ()


def gpu_finding(gpus: GpuInfo) -> DoctorFinding:
    """Report the GPUs and whether policies can use them."""
    names = ", ".join(gpus.names) or "none"
    if gpus.torch is None:
        text = f"{names}; torch is not installed (only policies from checkpoints need it)"
        return DoctorFinding(DoctorLevel.OK, "gpu", text)
    reinstall = "pip install --force-reinstall torch"
    if gpus.torch_error:
        text = f"{names}; torch {gpus.torch} cannot be imported: {gpus.torch_error}"
        return DoctorFinding(DoctorLevel.FAIL, "gpu", text, reinstall)
    if gpus.names and not gpus.usable:
        return DoctorFinding(
            DoctorLevel.WARN, "gpu", f"{names}, which torch {gpus.torch} cannot use", reinstall
        )
    return DoctorFinding(DoctorLevel.OK, "gpu", f"{names} (torch {gpus.torch})")


def graphics_findings(
    probes: Sequence[GlProbe], requested: str, gpus: GpuInfo
) -> list[DoctorFinding]:
    """Report how fast each GL backend renders, and which one an evaluation uses."""
    any_works = any(probe.works for probe in probes)
    findings = [
        _backend_finding(probe, needed=not any_works or probe.backend == requested)
        for probe in probes
    ]
    chosen = pick_fastest(
        [probe for probe in probes if not requested or probe.backend == requested]
    )
    if chosen is None and any_works:
        text = f"MUJOCO_GL={requested} does not render here, others do"
        return [*findings, DoctorFinding(DoctorLevel.FAIL, "rendering", text, "unset MUJOCO_GL")]
    if chosen is None:
        text = "nothing here renders images (evaluation from states works)"
        fix = _BACKEND_FIX[platform_backends()[0]]
        return [*findings, DoctorFinding(DoctorLevel.FAIL, "rendering", text, fix)]
    why = "as MUJOCO_GL asks" if requested else "eval uses it when MUJOCO_GL is not set"
    if gpus.names and _in_software(chosen):
        text = f"{chosen.backend} draws on the CPU although there is a GPU ({why})"
        fix = "docker run --gpus=all -e NVIDIA_DRIVER_CAPABILITIES=all"
        return [*findings, DoctorFinding(DoctorLevel.WARN, "rendering", text, fix)]
    return [*findings, DoctorFinding(DoctorLevel.OK, "rendering", f"{chosen.backend}: {why}")]


def _backend_finding(probe: GlProbe, *, needed: bool) -> DoctorFinding:
    if probe.works:
        size = f"{REFERENCE_PIXELS}x{REFERENCE_PIXELS}"
        device = f", {probe.device}" if probe.device else ""
        return DoctorFinding(
            DoctorLevel.OK, probe.backend, f"{probe.frame_time} a frame of {size}{device}"
        )
    if needed:
        fix = _BACKEND_FIX.get(probe.backend, "unset MUJOCO_GL")
        return DoctorFinding(
            DoctorLevel.FAIL, probe.backend, f"does not render: {probe.error}", fix
        )
    return DoctorFinding(
        DoctorLevel.OK, probe.backend, f"not needed; does not render: {probe.error}"
    )


def _in_software(probe: GlProbe) -> bool:
    return any(name in probe.device.lower() for name in _SOFTWARE_RENDERERS)
