"""The ``rtc_config`` of a config.json: settings of real-time chunking.

No torch here: `--help` reads configs. The algorithm is in policies/blocks/rtc.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from proctor.errors import UsageError

HELP = "real-time chunking (RTC), as {enabled: true, execution_horizon: 10}"


@dataclass(frozen=True)
class RtcConfig:
    """LeRobot's fields of ``rtc_config``."""

    enabled: bool = True
    mode: Literal["guided"] = "guided"
    prefix_attention_schedule: Literal["ZEROS", "ONES", "LINEAR", "EXP"] = "LINEAR"
    """Decay of the guidance weights after the inference delay."""
    max_guidance_weight: float = 10.0
    execution_horizon: int = 10
    """Step from which the old chunk has no influence."""
    debug: bool = False
    debug_maxlen: int = 100


def read_rtc(raw: Mapping[str, Any] | None) -> RtcConfig | None:
    """Decode ``rtc_config``; None if real-time chunking is off."""
    if raw is None:
        return None
    known = RtcConfig.__dataclass_fields__
    for name in raw:
        if name not in known:
            raise UsageError(
                f"rtc_config has no {name!r} (it has {', '.join(known)})",
                code="policy.unknown-field",
            )
    try:
        rtc = msgspec.convert(dict(raw), RtcConfig, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"rtc_config: {error}", code="policy.invalid-value") from None
    if not 0 < rtc.max_guidance_weight <= 1e6:
        raise UsageError(
            f"rtc_config: max_guidance_weight is {rtc.max_guidance_weight:g}",
            code="policy.out-of-range",
        )
    if not 0 <= rtc.execution_horizon <= 100_000:
        raise UsageError(
            f"rtc_config: execution_horizon is {rtc.execution_horizon}", code="policy.out-of-range"
        )
    return rtc if rtc.enabled else None
