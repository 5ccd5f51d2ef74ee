"""Part of `make check`: known vulnerabilities of the pinned dependencies, by pip-audit.

Without a network it says so and succeeds: a build must not fail because the network is missing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PINS = Path(__file__).parents[1] / "constraints.txt"
_LIMIT_S = 30


def main() -> int:
    """Run the audit, print its findings, and return 1 if there are any."""
    command = [sys.executable, "-m", "pip_audit", f"--requirement={PINS}"]
    command += ["--no-deps", "--disable-pip", "--format=json", "--progress-spinner=off"]
    try:
        asked = subprocess.run(  # noqa: S603  our own command
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
        answer: dict[str, Any] = json.loads(asked.stdout)
    except subprocess.TimeoutExpired:
        print(f"audit: nothing was checked, the advisories did not come within {_LIMIT_S} s")
        return 0
    except ValueError:
        reason = (asked.stderr.strip() or "no answer").splitlines()[-1]
        print(f"audit: nothing was checked, the advisories cannot be read: {reason[:200]}")
        return 0
    bad = [entry for entry in answer["dependencies"] if entry.get("vulns")]
    for entry in bad:
        ids = ", ".join(found["id"] for found in entry["vulns"])
        print(f"audit: {entry['name']} {entry['version']}: {ids}")
    print(f"audit: {len(answer['dependencies'])} pins, {len(bad)} with known vulnerabilities")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
