"""Fixtures and settings of the whole test suite."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

if "PYTEST_XDIST_WORKER" in os.environ:  # one test process per core: more threads would compete
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as proctor does, before a test imports grpc

from proctor.config.builder import build
from proctor.config.evaluation import EvalConfig
from proctor.evaluation.preparing import prepare
from proctor.evaluation.run import Evaluation, run_evaluation

gc.disable()  # until all tests are collected: modules and tests live as long as the process
# Under nohup, SIGHUP would stay ignored in child runs.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Started by a script with &, SIGINT would stay ignored in child runs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A case's time depends on the machine's load, not on the tested code. The cases are the same in
# every run, so that a change fails by what it changes; `make fuzz` looks for new ones.
hypothesis_settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("steady")


def _listed(name: str) -> frozenset[str]:
    return frozenset(Path(__file__).with_name(name).read_text().splitlines())


LISTED = {"medium": _listed("medium.txt"), "heavy": _listed("heavy.txt")}
"""Slower tests by marker; scripts/slower_tests.py writes the lists."""
SLOWER = LISTED["medium"] | LISTED["heavy"]
ROOT = Path(__file__).resolve().parents[1]
_MEMORY_BYTES = 4 * 2**30


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `make test-heavy` and `make test-fast`."""
    parser.addoption("--part", default="1/1", help="run every n-th test function only: k/n")
    parser.addoption(
        "--fast", action="store_true", help="collect no test of the lists; write files to memory"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """With --fast, put temporary folders into memory: thousands of files are written and synced."""
    memory = Path("/dev/shm")
    if not config.getoption("--fast") or config.option.basetemp or not memory.is_dir():
        return
    if shutil.disk_usage(memory).free > _MEMORY_BYTES:
        config.option.basetemp = folder = tempfile.mkdtemp(prefix="proctor-tests-", dir=memory)
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --fast, do not import files of which every test is listed: a third of all imports."""
    if not config.getoption("--fast") or collection_path.suffix != ".py":
        return None
    file = collection_path.relative_to(ROOT).as_posix()
    listed = {name.rpartition("::")[2] for name in SLOWER if name.startswith(f"{file}::")}
    if not listed:
        return None
    functions = re.findall(r"^ *def (test_\w+)\(", collection_path.read_text(), re.MULTILINE)
    return True if listed >= set(functions) else None


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str
) -> list[pytest.Item] | None:
    """With --fast, make no cases of listed tests."""
    listed = collector.config.getoption("--fast") and f"{collector.nodeid}::{name}" in SLOWER
    return [] if listed else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the listed tests: `make test-fast` leaves both lists out, `make test` the heavy ones."""
    for marker, names in LISTED.items():
        if item.nodeid.partition("[")[0] in names:
            item.add_marker(marker)


def part_of(functions: set[str], part: str) -> set[str]:
    """Return the test functions of a part such as "2/3": the second of three."""
    at, parts = map(int, part.split("/"))
    assert 1 <= at <= parts, f"--part={part} is not one of {parts} parts"
    return set(sorted(functions)[at - 1 :: parts])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the asked part; let tests marked gpu fail with the reason if they cannot run."""
    kept = part_of({item.nodeid.partition("[")[0] for item in items}, config.getoption("--part"))
    items[:] = [item for item in items if item.nodeid.partition("[")[0] in kept]
    for_gpus = [item for item in items if item.get_closest_marker("gpu")]
    if for_gpus and not pytest.importorskip("torch").cuda.is_available():
        for item in for_gpus:
            item.add_marker(pytest.mark.skip("no CUDA device here"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the garbage collector ignore modules and collected tests.

    With --reruns, each test sends two small messages to the controller: without delay, since the
    second would wait 40 ms for the first one's acknowledgement.
    """
    gc.freeze()
    gc.enable()
    line = getattr(getattr(session.config, "failures_db", None), "sock", None)
    if line is not None:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Evaluation]:
    """Evaluate on the fake benchmark; each call gets its own folder unless it names one."""
    return evaluating_in(tmp_path)


def evaluating_in(folder: Path) -> Callable[..., Evaluation]:
    calls = iter(range(1000))

    def run(**flags: Any) -> Evaluation:
        settings = {
            "policy.type": "random",
            "env.type": "fake",
            "eval.n_episodes": 4,
            "eval.batch_size": 2,
            "video.episodes": 0,
            "output_dir": str(folder / f"run{next(calls)}"),
        }
        settings |= {name.replace("__", "."): value for name, value in flags.items()}
        return run_evaluation(prepare(build(EvalConfig, settings)), settings)

    return run


def digests(evaluation: Evaluation) -> dict[Any, Any]:
    """Return the results that must be equal if two runs had the same episodes."""
    return {row.key: (row.digest, row.steps, row.outcome) for row in evaluation.rows}
