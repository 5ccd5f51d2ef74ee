"""What a build or a CI job fetches is pinned, and its rights are the least."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts.lock import main, pins_of, sbom_of

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_actions_are_pinned_by_commit_and_may_write_nothing_by_default(file: Path) -> None:
    text = file.read_text()
    uses = re.findall(r"uses: (\S+)(.*)", text)
    assert uses
    for action, rest in uses:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+(\.\d+){2}", rest), action
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    for step in (step for job in workflow["jobs"].values() for step in job["steps"]):
        if "actions/checkout@" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_a_release_has_an_sbom_and_signed_statements() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert "actions/attest-build-provenance@" in text
    assert "actions/attest-sbom@" in text
    assert 'LOCKED: "1"' in text


def test_base_images_are_pinned_by_digest() -> None:
    images = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert all(re.fullmatch(r"\S+:\S+@sha256:[0-9a-f]{64}", image) for image in images)


def test_no_secrets_of_the_clone_go_into_an_image() -> None:
    left_out = (ROOT / ".dockerignore").read_text().split()
    assert {"**/.env", "**/.netrc", "**/.git-credentials", "**/*.pem"} <= set(left_out)


def item(name: str, version: str, **download: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "version": version}, "download_info": download}


def test_a_lock_has_a_hash_of_every_package_but_our_own() -> None:
    hashes = {"archive_info": {"hashes": {"sha256": "ab" * 32}}}
    report = {"install": [item("proctor", "1", dir_info={}), item("NumPy", "2.0", **hashes)]}
    (pin,) = pins_of(report)
    assert pin.line == f"NumPy==2.0 --hash=sha256:{'ab' * 32}"
    (component,) = sbom_of([pin])["components"]
    assert component["purl"] == "pkg:pypi/numpy@2.0"
    report["install"].append(item("torch", "2.1", archive_info={}))
    with pytest.raises(ValueError, match="torch"):
        pins_of(report)
    assert main([]) == 2


def test_an_image_that_must_be_locked_is_not_made_without_a_lock(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(ROOT / "pyproject.toml", source)
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\nmkdir -p "$3/bin"; printf "#!/bin/sh\\necho pip >&2" > "$3/bin/python"\n'
    )
    python.chmod(0o755)
    script = ["sh", str(ROOT / "scripts/container_setup.sh"), "cpu", str(source)]
    done = subprocess.run(
        [*script, str(tmp_path / "prefix"), "video"],
        env={"SKIP_APT": "1", "LOCKED": "1", "PYTHON": str(python), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "scripts/lock.py video locks/cpu.txt" in done.stderr
    assert "pip" not in done.stderr.split("\n")
