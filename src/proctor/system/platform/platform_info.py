"""Properties of this machine: usable cores and memory, versions, git commit."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from proctor.version import __version__


def usable_cores() -> int:
    """Return the number of cores this process may use, by CPU affinity and cgroup quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = cgroup_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return max(1, min(cores, int(quota)) if quota is not None else cores)


def cgroup_quota(membership: Path, root: Path) -> float | None:
    """Return the lowest CPU quota, in cores, of this process's cgroup and its parents.

    Containers limit CPU by a quota that ``os.cpu_count()`` does not include.
    """
    folders = _cgroups(membership, root, "cpu")
    return min((quota for folder in folders for quota in _quota_of(folder)), default=None)


def machine_memory_bytes() -> int:
    """Return the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_memory_bytes() -> int:
    """Return the memory this process may use: the machine's, or its cgroup's limit if lower."""
    limit = cgroup_memory_bytes(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    machine = machine_memory_bytes()
    return machine if limit is None else min(machine, limit)


def cgroup_memory_bytes(membership: Path, root: Path) -> int | None:
    """Return the lowest memory limit of this process's cgroup and its parents."""
    limits = []
    for folder in _cgroups(membership, root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):  # versions 2 and 1
            with contextlib.suppress(OSError):
                limits.append((folder / name).read_text().strip())
    return min((int(limit) for limit in limits if limit != "max"), default=None)


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the limit of open files towards ``wanted`` and return the new limit.

    A shell's limit (ulimit -n) is soft: a process may raise it up to the hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return wanted if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def is_process_runnable(pid: int | None) -> bool:
    """Return whether a process runs or sleeps, and is neither stopped nor blocked in the kernel.

    False if the system does not say.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] in (["R"], ["S"])


def _cgroups(membership: Path, root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's cgroup and its parents that may limit ``controller``."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root
        group = base / path.lstrip("/")
        for folder in [group, *group.parents]:
            yield folder
            if folder == base:
                break


def _quota_of(folder: Path) -> list[float]:
    """Return one cgroup's quota, from cpu.max (v2) or cpu.cfs_quota_us (v1); empty: no limit."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
    except OSError:
        return []
    return [] if quota in ("max", "-1") else [int(quota) / int(period)]


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python, Proctor and those of ``distributions`` that are installed."""
    found = {"python": platform.python_version(), "proctor": __version__}
    for name in distributions:
        version = installed_version(name)
        if version is not None:
            found[name] = version
    if "torch" in sys.modules:
        found["torch"] = str(sys.modules["torch"].__version__)
    return found


def torch_hardware() -> dict[str, Any]:
    """Return the properties that decide how torch rounds; empty if torch is not loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"torch_threads": torch.get_num_threads(), "gpu": gpu}


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """Return the commit of the current folder, with "+" if it has changes; None without git."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None if described.returncode == 0 else None


WORKER_MB = 250
"""Upper bound of a Meta-World worker's memory; 151 MB measured, see docs/measurements.md."""
