"""Values as a page shows them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any

from proctor.fingerprint import flatten


def settings_rows(nested: Mapping[str, Any]) -> list[list[str]]:
    """Return nested settings as lines of dotted name and text; an empty section is one, too."""
    lines = flatten(nested, lambda name, section: bool(section))
    return [
        [name, value if isinstance(value, str) else json.dumps(value)]
        for name, value in lines.items()
    ]


def rounded(value: float | None, digits: int) -> float | None:
    """Round; what JSON has no number for becomes None."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


def round_significant(value: float | None) -> float | None:
    """Keep five digits, wherever the point is: more than a curve can show."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def utc_date(seconds: float) -> str:
    """Return a date in UTC: the page must not depend on where it is made."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
