"""Opens a benchmark like an evaluation would: imports, one reset, one step, one image.

    python -m proctor.evaluation.smoke_test metaworld

Each benchmark runs in a process of its own, so that a crash or hang is a finding.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from proctor import plugins
from proctor.benchmarks.base import Benchmark, display_keys
from proctor.benchmarks.recipes.catalog import recipe_names
from proctor.benchmarks.recipes.installation import find_interpreter
from proctor.errors import MissingExtra, NoGraphics, UsageError, summarize_traceback
from proctor.system.platform.doctor import DoctorFinding, DoctorLevel
from proctor.system.platform.platform_info import (
    usable_cores,
)

LIMIT_S = 180.0
"""Seconds until a benchmark counts as hanging; imports from a cold disk are slow."""
_MARK = "proctor-trial: "
_PIXELS = 64
_LEFT_OUT = ("fake", "hub")  # a toy, and a plug-in that needs a repository's name
_FIELDS: dict[str, dict[str, Any]] = {"gym": {"id": "CartPole-v1", "success": "terminated"}}


class SmokeTestStatus(Enum):
    """The result of opening a benchmark."""

    OPENED = "opened"
    NOT_INSTALLED = "not installed"
    LACKING = "lacking"
    """Installed, but without files that an evaluation downloads first."""
    BROKEN = "broken"


@dataclass(frozen=True)
class SmokeTestResult:
    """The result of one benchmark."""

    name: str
    found: SmokeTestStatus
    text: str
    fix: str = ""
    """The command that repairs it, or that shows more."""


def smoke_test_benchmarks(environment: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Test every benchmark, as many at once as there are cores, and yield the findings."""
    yield from map(smoke_test_finding, smoke_test_all(environment, usable_cores()))


def smoke_test_all(environment: Mapping[str, str], at_once: int) -> Iterator[SmokeTestResult]:
    """Test every benchmark, ``at_once`` in parallel; ``environment`` is added to our own."""
    names = [name for name in plugins.known_plugins("benchmarks") if _is_tested(name)]
    with ThreadPoolExecutor(max(1, min(at_once, len(names)))) as threads:
        yield from threads.map(lambda name: smoke_test_one(name, environment), names)


def _is_tested(name: str) -> bool:
    """Whether a benchmark opens without further flags; `proctor benchmarks` lists the others."""
    return name not in _LEFT_OUT and (
        name not in recipe_names() or find_interpreter(name) is not None
    )


def smoke_test_one(
    name: str, environment: Mapping[str, str], limit_s: float = LIMIT_S
) -> SmokeTestResult:
    """Test one benchmark in a process of its own."""
    process = subprocess.Popen(  # noqa: S603  our own words
        [sys.executable, "-m", "proctor.evaluation.smoke_test", name],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # its children (a GL probe) end with it
    )
    try:
        stdout, stderr = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return _broken(name, f"is not open after {limit_s:g} s")
    finally:
        _end(process)
    lines = [line for line in stdout.splitlines() if line.startswith(_MARK)]
    if lines and process.returncode == 0:
        return msgspec.json.decode(lines[-1].removeprefix(_MARK), type=SmokeTestResult)
    return _broken(name, _cause_of_death(process.returncode, stderr))


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _cause_of_death(code: int, stderr: str) -> str:
    if code < 0:
        return f"crashes ({signal.Signals(-code).name})"
    return summarize_traceback(stderr) if stderr.strip() else f"ends with exit code {code}"


def _broken(name: str, text: str) -> SmokeTestResult:
    """Return a failed result with the command that repairs it or shows where it fails."""
    summary, _, command = text.partition("; run: ")
    if (
        not command
        and "No module named" in text
        and plugins.plugin_module("benchmarks", name) is None
    ):
        command = f"pip install --upgrade 'proctor[{name}]'"
    return SmokeTestResult(
        name,
        SmokeTestStatus.BROKEN,
        summary,
        command or f"python -m proctor.evaluation.smoke_test {name}",
    )


def open_benchmark(name: str) -> SmokeTestResult:
    """Open the benchmark in this process. Errors of the simulator are passed on."""
    try:
        return _opened(name)
    except MissingExtra as error:
        return SmokeTestResult(name, SmokeTestStatus.NOT_INSTALLED, str(error))
    except UsageError as error:
        return _broken(name, str(error))


def _opened(name: str) -> SmokeTestResult:
    start = time.perf_counter()
    benchmark = _make(name)
    lacking = benchmark.lacking()
    if lacking is not None:
        summary, _, command = str(lacking).partition("; run: ")
        return SmokeTestResult(name, SmokeTestStatus.LACKING, summary, command)
    keys, note = display_keys(benchmark.features())[:1], ""
    try:
        environment = benchmark.preflight(keys)
    except NoGraphics:
        keys, note = (), "; no image, since nothing here renders"
        environment = benchmark.preflight(keys)
    os.environ.update(environment)
    task = _play(benchmark, keys)
    done = "opens, resets, steps" + (", renders" if keys else "")
    return SmokeTestResult(
        name, SmokeTestStatus.OPENED, f"{done} ({task}, {time.perf_counter() - start:.1f} s){note}"
    )


def _make(name: str) -> Benchmark:
    """Make the benchmark with small images."""
    plugin = plugins.find_benchmark(name)
    known = {field.name for field in dataclasses.fields(plugin.config)}
    small = dict.fromkeys(known & {"observation_height", "observation_width"}, _PIXELS)
    settings: dict[str, Any] = {**_FIELDS.get(name, {}), **small}
    return plugin.maker(plugin.config(**settings))()


def _play(benchmark: Benchmark, keys: Sequence[str]) -> str:
    """Reset, step and render once in the first task; return its name."""
    import numpy as np

    task = benchmark.tasks()[0]
    sim = benchmark.make_sim(task)
    sim.reset(benchmark.spec(task, 0, 1000))
    still = np.clip(np.zeros(benchmark.action.size), *benchmark.action.bounds)
    sim.step(still.astype(np.float32))
    sim.observe(keys)
    sim.close()
    return task.name


def main() -> None:
    """Test the named benchmark and print the result as one line."""
    trial = open_benchmark(sys.argv[1])
    print(_MARK + msgspec.json.encode(trial).decode(), flush=True)
    os._exit(0)  # GL drivers may hang when the interpreter shuts down


if __name__ == "__main__":
    main()


def smoke_test_finding(trial: SmokeTestResult) -> DoctorFinding:
    """Return the doctor's finding; a benchmark that is not installed is no problem."""
    levels = {SmokeTestStatus.LACKING: DoctorLevel.WARN, SmokeTestStatus.BROKEN: DoctorLevel.FAIL}
    return DoctorFinding(levels.get(trial.found, DoctorLevel.OK), trial.name, trial.text, trial.fix)
