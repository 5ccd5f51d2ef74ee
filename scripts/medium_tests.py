"""Write tests/medium.txt: tests of half a second or more, which `make test-fast` leaves out.

    .venv/bin/python scripts/medium_tests.py [PYTEST ARGUMENTS]

Runs `make test`'s selection, or what the arguments select, and times every test. A test function
is listed when all its cases together take half a second or more. Functions that did not run keep
their line. Run it on an idle machine: times are scaled down by the load, which is an estimate.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "medium.txt"
LEAST_S = 0.5
SELECTION = ["-m", "not sim and not slow and not vla and not ray and not gpu", "tests"]
_TIMES = "PROCTOR_TEST_TIMES"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Append the seconds of a test, fixtures included, to the file of times."""
    start = time.perf_counter()
    result = yield
    seconds = time.perf_counter() - start
    slower = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    line = f"{seconds / slower:.3f} {item.nodeid.partition('[')[0]}\n"
    with Path(os.environ[_TIMES]).open("a") as file:
        file.write(line)
    return result


def read_times(file: Path) -> dict[str, float]:
    """Return the seconds of every test function, its cases added up."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for line in file.read_text().splitlines():
        took, name = line.split(" ", 1)
        seconds[name] += float(took)
    return seconds


def updated(listed: set[str], seconds: dict[str, float]) -> list[str]:
    """Return the new list: measured tests by their time, the others as they were."""
    return sorted((listed - seconds.keys()) | {n for n, s in seconds.items() if s >= LEAST_S})


def main(words: list[str]) -> int:
    """Run the tests and write the list."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "times")
        file.touch()
        command = [sys.executable, "-m", "pytest", "-p", "scripts.medium_tests"]
        environment = os.environ | {_TIMES: str(file), "PYTHONPATH": str(ROOT)}
        run = [*command, *(words or SELECTION)]
        code = subprocess.run(run, cwd=ROOT, env=environment).returncode  # noqa: S603  our own command
        seconds = read_times(file)
    listed = set(LIST.read_text().splitlines()) if LIST.exists() else set()
    names = updated(listed, seconds)
    LIST.write_text("".join(f"{name}\n" for name in names))
    quick = sum(s for name, s in seconds.items() if name not in names)
    print(f"{len(names)} tests listed; the others of this run took {quick:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
