"""The command that is measured, and how much memory a process takes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

PROCTOR = [sys.executable, "-m", "proctor.cli"]


def pss_mb(pid: int) -> float:
    """Return what a process adds to the memory in use, shared pages by its share; 0 if it ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) / 1024 if found else 0.0
