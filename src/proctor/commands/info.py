"""``proctor info``: versions and hardware, for bug reports."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from dataclasses import dataclass
from importlib import metadata

from proctor import plugins
from proctor.config.flags.command import CommandConfig, run_command
from proctor.errors import UsageError
from proctor.system.platform.platform_info import installed_version, usable_cores
from proctor.version import __version__


@dataclass(kw_only=True)
class InfoCommand(CommandConfig):
    """Print versions, cores, graphics, devices and extras of this machine.

    Include the output in bug reports.
    """

    def run(self) -> int:
        """Print the lines and return the exit code."""
        for line in info_lines():
            print(line)
        return 0


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_command(InfoCommand, "proctor info", words)


def info_lines() -> list[str]:
    """Return versions, cores, graphics, devices, plug-ins and extras, one line each."""
    return [
        f"proctor     {__version__}",
        f"python      {platform.python_version()} on {platform.platform()}",
        f"cores       {usable_cores()} usable of {os.cpu_count()}",
        f"graphics    {_graphics()}",
        f"devices     {_devices()}",
        f"benchmarks  {', '.join(plugins.known_plugins('benchmarks'))}",
        f"policies    {', '.join(plugins.known_plugins('policies'))}",
        *_packages(),
        *_extras(),
    ]


def _graphics() -> str:
    if installed_version("mujoco") is None:
        return "unknown (mujoco is not installed)"
    from proctor.system.graphics.gl import find_gl_backend

    backend = find_gl_backend()
    return f"{backend} works" if backend else "no working GL backend found"


def _devices() -> str:
    if installed_version("torch") is None:
        return "cpu (torch is not installed)"
    import torch

    if torch.cuda.is_available():
        return ", ".join(
            f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())
        )
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _packages() -> list[str]:
    """Return the version of every package that defines episodes or runs policies."""
    names = {"numpy", "gymnasium", "torch", "av"}
    for benchmark in plugins.known_plugins("benchmarks"):
        with contextlib.suppress(UsageError):  # gym and hub have none before an id is given
            plugin = plugins.find_benchmark(benchmark)
            names |= set(plugin.maker(plugin.config())().distributions)
    return [f"{name:<11} {installed_version(name) or 'not installed'}" for name in sorted(names)]


def _extras() -> list[str]:
    """Return one line per extra: whether all its packages are installed."""
    try:
        requirements = metadata.requires("proctor") or []
    except metadata.PackageNotFoundError:
        return ["extras      unknown: proctor runs from its source folder without being installed"]
    needed: dict[str, list[str]] = {}
    for text in requirements:
        found = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", text)
        if found:
            needed.setdefault(found[2], []).append(found[1])
    return [f"extra       {extra}: {_state_of(names)}" for extra, names in needed.items()]


def _state_of(names: list[str]) -> str:
    missing = [name for name in names if installed_version(name) is None]
    return f"missing {', '.join(missing)}" if missing else "installed"
