"""Write the versions and SHA-256 hashes of what an image or a release installs, and its SBOM.

    python scripts/lock.py metaworld,torch,dataset,video locks/cpu.txt [sbom.json]

pip chooses the files for the Python that runs this, within constraints.txt, from the index of the
user's configuration: run it in the image, or on the runner, that will install them. The lock is for
``pip install --require-hashes``; scripts/container_setup.sh uses it. `make` does not: an index of
local builds has other hashes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_BUILDS = "hatchling"
"""What builds Proctor itself, in the same environment."""


@dataclass(frozen=True)
class Pin:
    """A package, its version and the SHA-256 of its file."""

    name: str
    version: str
    sha256: str

    @property
    def line(self) -> str:
        """The pin as pip reads it."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"

    @property
    def component(self) -> dict[str, Any]:
        """The pin as a component of a CycloneDX document."""
        return {
            "type": "library",
            "name": self.name,
            "version": self.version,
            "purl": f"pkg:pypi/{self.name.lower()}@{self.version}",
            "hashes": [{"alg": "SHA-256", "content": self.sha256}],
        }


def main(words: list[str]) -> int:
    """Write the lock, and the SBOM if it is named; return the exit code."""
    if len(words) not in (2, 3):
        print("usage: python scripts/lock.py EXTRAS LOCK [SBOM]", file=sys.stderr)
        return 2
    extras, lock, *sbom = words
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--disable-pip-version-check", "--report=-", f"-c{ROOT / 'constraints.txt'}"]
    found = subprocess.run(  # noqa: S603  our own command
        [*command, f"{ROOT}[{extras}]", _BUILDS], stdout=subprocess.PIPE, check=True
    )
    try:
        pins = pins_of(json.loads(found.stdout))
    except ValueError as error:
        print(f"lock: {error}", file=sys.stderr)
        return 1
    Path(lock).parent.mkdir(parents=True, exist_ok=True)
    Path(lock).write_text("".join(f"{pin.line}\n" for pin in pins))
    if sbom:
        Path(sbom[0]).write_text(json.dumps(sbom_of(pins), indent=1) + "\n")
    print(f"{lock}: {len(pins)} packages")
    return 0


def pins_of(report: dict[str, Any]) -> list[Pin]:
    """Return the pins of pip's report, without Proctor itself.

    Raises:
        ValueError: the index states no hash of a file.
    """
    pins = []
    for item in report["install"]:
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        if "dir_info" in item["download_info"]:
            continue
        sha256 = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if not sha256:
            raise ValueError(f"the index states no SHA-256 of {name} {version}")
        pins.append(Pin(name, version, sha256))
    return sorted(pins, key=lambda pin: pin.name.lower())


def sbom_of(pins: list[Pin]) -> dict[str, Any]:
    """Return the SBOM: a CycloneDX document."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "proctor"}},
        "components": [pin.component for pin in pins],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
