"""What this machine is: cores we may use, versions, the platform, the source we run from."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from proctor import __version__


def usable_cores() -> int:
    """Return how many cores this process may use, by scheduler affinity and cgroup quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = cgroup_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return max(1, min(cores, int(quota)) if quota is not None else cores)


def cgroup_quota(membership: Path, root: Path) -> float | None:
    """Return the tightest CPU quota, in cores, of this process's cgroup and its parents.

    Containers limit CPU with a quota that ``os.cpu_count()`` does not know of.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        group = base / path.lstrip("/")
        for folder in [group, *group.parents]:
            quotas += _quota_of(folder)
            if folder == base:
                break
    return min(quotas, default=None)


def _quota_of(folder: Path) -> list[float]:
    """Read one cgroup's quota, version 2 (cpu.max) or 1 (cpu.cfs_quota_us); empty for no limit."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
    except OSError:
        return []
    return [] if quota in ("max", "-1") else [int(quota) / int(period)]


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python, Proctor and the named distributions that are installed."""
    found = {"python": platform.python_version(), "proctor": __version__}
    for name in distributions:
        version = installed_version(name)
        if version is not None:
            found[name] = version
    if "torch" in sys.modules:
        found["torch"] = str(sys.modules["torch"].__version__)
    return found


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, None when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """Return the commit of the folder we were started in, with "+" when it has changes."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None if described.returncode == 0 else None
