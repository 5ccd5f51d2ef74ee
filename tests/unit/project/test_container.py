"""The Dockerfile's steps: a container engine is not needed to check them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "container_setup.sh"
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def set_up(
    kind: str, source: Path, prefix: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"SKIP_APT": "1", "PYTHON": sys.executable, **variables}
    command = ["sh", str(SCRIPT), kind, str(source), str(prefix), "metaworld"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_every_step_of_the_dockerfile_calls_the_script_with_a_kind_that_it_knows() -> None:
    stages = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE)
    runs = re.findall(
        r"^RUN sh /clone/scripts/container_setup.sh (\w+) /clone", DOCKERFILE, re.MULTILINE
    )
    assert stages == runs == ["cpu", "cuda"]
    assert all(f"{kind})" in SCRIPT.read_text() for kind in stages)


def test_the_extras_of_the_dockerfile_exist() -> None:
    (extras,) = set(re.findall(r"^ARG EXTRAS=(\S+)$", DOCKERFILE, re.MULTILINE))
    listed = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{name} = \[", listed, re.MULTILINE) for name in extras.split(","))


@pytest.mark.parametrize("kind", ["gpu", ""])
def test_an_unknown_kind_is_refused_before_anything_is_installed(kind: str, tmp_path: Path) -> None:
    done = set_up(kind, ROOT, tmp_path / "prefix")
    assert done.returncode == 2
    assert "choose cpu or cuda" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_the_source_is_refused(tmp_path: Path) -> None:
    done = set_up("cpu", tmp_path, tmp_path / "prefix")
    assert done.returncode == 2
    assert "no source" in done.stderr


def test_the_cuda_image_names_the_drivers_egl_library(tmp_path: Path) -> None:
    done = set_up("cuda", ROOT, tmp_path / "p", EGL_VENDORS=str(tmp_path), PYTHON="false")
    assert done.returncode == 1  # no Python: nothing is installed here
    named = json.loads((tmp_path / "10_nvidia.json").read_text())
    assert named["ICD"]["library_path"] == "libEGL_nvidia.so.0"
