"""Format values for the pages."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any

from proctor.fingerprint import flatten


def settings_rows(nested: Mapping[str, Any]) -> list[list[str]]:
    """Flatten nested settings to rows of dotted name and text, empty sections included."""
    lines = flatten(nested, lambda name, section: bool(section))
    return [
        [name, value if isinstance(value, str) else json.dumps(value)]
        for name, value in lines.items()
    ]


def rounded(value: float | None, digits: int) -> float | None:
    """Round; NaN and infinity, which JSON does not have, become None."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


def round_significant(value: float | None) -> float | None:
    """Round to five significant digits, which is more than a curve shows; NaN becomes None."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def utc_date(seconds: float) -> str:
    """Return date and time in UTC, so that a page does not depend on the time zone."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def p_text(p: float | None) -> str:
    """Return a p-value as ``0.012``, ``<0.001`` or ``n/a``."""
    if p is None:
        return "n/a"
    return "<0.001" if p < 0.001 else f"{p:.3f}"
