"""Write the lists of slower tests: tests/medium.txt and tests/heavy.txt.

    .venv/bin/python scripts/slower_tests.py [PYTEST ARGUMENTS]

Runs the selection of `make test` and `make test-heavy`, or what the arguments select, and measures
every test. A test function is medium if all its cases together take 0.3 s or more, or as much CPU,
and heavy if they use 1.5 s or more of CPU, child processes included. Functions that did not run
keep their lines. Run it on an idle machine: seconds are scaled down by the load, which is an
estimate.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MEDIUM_S = 0.3
HEAVY_CPU_S = 1.5
SELECTION = ["-m", "not sim and not slow and not vla and not ray and not gpu", "tests"]
_TIMES = "PROCTOR_TEST_TIMES"


@dataclass
class Times:
    """Seconds and CPU seconds of a test function, its cases added up."""

    seconds: float = 0.0
    cpu_s: float = 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Append the times of a test, fixtures included, to the file of times."""
    start, cpu = time.perf_counter(), sum(os.times()[:4])
    result = yield
    slower = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    seconds, cpu_s = (time.perf_counter() - start) / slower, sum(os.times()[:4]) - cpu
    line = f"{seconds:.3f} {cpu_s:.3f} {item.nodeid.partition('[')[0]}\n"
    with Path(os.environ[_TIMES]).open("a") as file:
        file.write(line)
    return result


def read_times(file: Path) -> dict[str, Times]:
    """Return the times of every test function."""
    times: defaultdict[str, Times] = defaultdict(Times)
    for line in file.read_text().splitlines():
        seconds, cpu_s, name = line.split(" ", 2)
        times[name].seconds += float(seconds)
        times[name].cpu_s += float(cpu_s)
    return times


def updated(listed: set[str], measured: dict[str, bool]) -> list[str]:
    """Return the new list: measured tests if they belong to it, the others as they were."""
    return sorted((listed - measured.keys()) | {name for name, slow in measured.items() if slow})


def write_list(name: str, measured: dict[str, bool]) -> None:
    """Write one list."""
    file = ROOT / "tests" / name
    listed = set(file.read_text().splitlines()) if file.exists() else set()
    names = updated(listed, measured)
    file.write_text("".join(f"{name}\n" for name in names))
    print(f"tests/{name}: {len(names)} tests")


def main(words: list[str]) -> int:
    """Run the tests and write the lists."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "times")
        file.touch()
        command = [sys.executable, "-m", "pytest", "-p", "scripts.slower_tests"]
        environment = os.environ | {_TIMES: str(file), "PYTHONPATH": str(ROOT)}
        run = [*command, *(words or SELECTION)]
        code = subprocess.run(run, cwd=ROOT, env=environment).returncode  # noqa: S603  our own command
        times = read_times(file)
    medium = {name: max(t.seconds, t.cpu_s) >= MEDIUM_S for name, t in times.items()}
    write_list("medium.txt", medium)
    write_list("heavy.txt", {name: t.cpu_s >= HEAVY_CPU_S for name, t in times.items()})
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
