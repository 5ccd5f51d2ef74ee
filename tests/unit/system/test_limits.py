"""Limits that services and clients share."""

from __future__ import annotations

import resource
import subprocess
import sys

import numpy as np
import pytest

from proctor.errors import ProtocolError
from proctor.system.limits import ByteBudget, CycleLimits, decode_json, is_finite_as


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"9" * 400, "protocol.invalid-json"),
        (b'{"a": 1e400}', "protocol.invalid-json"),
        (b'{"a": NaN}', "protocol.invalid-json"),
        (b'{"a": -Infinity}', "protocol.invalid-json"),
        (b"\xff\xfe\xfd", "protocol.invalid-json"),
        (b"", "protocol.invalid-json"),
        (b"[" * 60_000, "protocol.too-deep"),
        (b'{"a":' * 10_000, "protocol.too-deep"),
        (b" " * 2**16 + b"1", "protocol.too-large"),
    ],
)
def test_json_of_a_peer_is_bounded(data: bytes, code: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        decode_json(data)
    assert refused.value.code == code


def test_usual_json_is_read() -> None:
    assert decode_json(b'{"a": [1, -2.5e3, true, null, "b"]}') == {"a": [1, -2500, True, None, "b"]}


@pytest.mark.parametrize("value", [1e39, -1e39, np.inf, np.nan, [0.0, 1e39], 10**400, "text", None])
def test_numbers_that_float32_cannot_hold_are_found(value: object) -> None:
    assert not is_finite_as(value)


@pytest.mark.parametrize("value", [1e38, 0, True, [1.0, 2.0], np.zeros(0), np.uint8([255])])
def test_other_numbers_pass(value: object) -> None:
    assert is_finite_as(value)


def test_bytes_are_counted_before_they_are_allocated() -> None:
    budget = ByteBudget(10)
    assert budget.take(7)
    assert not budget.take(4)
    budget.give_back(7)
    assert budget.take(10)


def test_a_cycle_reads_a_bounded_number_of_messages_in_a_bounded_time() -> None:
    assert [*CycleLimits(messages=3, seconds=1.0).turns(lambda: 0.0)] == [0, 1, 2]
    times = iter([0.0, 0.5, 2.0])
    assert [*CycleLimits(messages=9, seconds=1.0).turns(lambda: next(times))] == [0, 1]
    assert [*CycleLimits(messages=9, seconds=0.0).turns(lambda: 0.0)] == [0]


@pytest.mark.parametrize(("hard", "wanted", "expected"), [(1024, 100, 100), (256, 5000, 128)])
def test_connections_leave_descriptors_for_the_services_own_files(
    hard: int, wanted: int, expected: int
) -> None:
    program = (
        "import resource, sys; from proctor.system.limits import connection_limit\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))\n"
        f"print(connection_limit({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    connections, soft = map(int, found.stdout.split())
    assert expected // 2 < connections <= expected
    assert connections < soft <= hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 64
