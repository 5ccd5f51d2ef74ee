"""The latency histogram has a bounded size and accurate quantiles."""

from __future__ import annotations

from collections import Counter

import pytest

from proctor.runs.latency import bucket_of, latency_summary, quantile_ms


def test_quantiles_are_within_a_class_of_the_truth() -> None:
    calls = Counter(bucket_of(ms / 1000) for ms in range(1, 1001))
    for share in (0.5, 0.95, 0.99):
        assert quantile_ms(calls, share) == pytest.approx(1000 * share, rel=0.05)
    told = latency_summary(calls)
    assert told is not None
    assert told["calls"] == 1000
    assert len(calls) < 100


def test_nothing_that_was_called_has_no_latency() -> None:
    assert latency_summary({}) is None
    assert quantile_ms({}, 0.5) is None
    assert bucket_of(0.0) == bucket_of(1e-9)
