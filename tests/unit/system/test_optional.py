"""A missing package is distinguished from one that is installed and fails to load."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from proctor.errors import FailedToLoad, MissingExtra
from proctor.system.platform.optional import LOAD_ERRORS, import_failure


def failure_of(module: str, package: str) -> Exception:
    try:
        __import__(module)
    except LOAD_ERRORS as error:
        return import_failure(error, package, "extra", "Name")
    raise AssertionError(f"{module} can be imported")


def test_a_module_that_python_does_not_find_is_reported_as_missing() -> None:
    failure = failure_of("no_such_package", "no_such_package")
    assert isinstance(failure, MissingExtra)
    assert str(failure).startswith("Name is not installed")
    other = failure_of("no_such_dependency", "package")
    assert isinstance(other, MissingExtra)
    assert str(other).startswith("no_such_dependency is not installed")


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libtorch_cpu.so: failed to map segment from shared object", name="_C"),
        ImportError("cannot import name 'x'"),
        ModuleNotFoundError("No module named 'json.no'", name="json.no"),
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_other_import_errors_are_reported_as_failing_to_load(error: Exception) -> None:
    failure = import_failure(error, "torch", "torch")
    assert isinstance(failure, FailedToLoad)
    assert not isinstance(failure, MissingExtra)
    assert "torch is installed but fails to load" in str(failure)


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (300_000 * 1024, 300_000 * 1024))


def test_torch_under_a_memory_limit_is_not_reported_as_missing(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed (proctor[torch])")
    done = subprocess.run(
        [sys.executable, "-c", "import proctor.training"], capture_output=True, text=True,
        cwd=tmp_path, preexec_fn=limit_memory,
    )  # fmt: skip
    assert done.returncode != 0  # on some machines numpy's own library gives up before torch
    assert "not installed" not in done.stderr
