"""Requests of other web sites are distinguished from those of this machine."""

from __future__ import annotations

import pytest

from proctor.system.loopback import is_own_origin, is_own_request


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8000", "localhost:1", "LOCALHOST", "[::1]", "[::1]:8000"]
)
def test_loopback_hosts_are_accepted(host: str) -> None:
    assert is_own_request([host], [])


@pytest.mark.parametrize(
    "hosts",
    [
        [], [""], ["evil.example"], ["127.0.0.1.evil.example"], ["evil.example:127.0.0.1"],
        ["localhost.evil.example:80"], ["127.0.0.1@evil.example"], ["evil@127.0.0.1"],
        ["127.0.0.1", "evil.example"], ["127.0.0.1", "127.0.0.1"], ["[::1].evil.example"],
        ["127.0.0.1:"], ["127.0.0.1:123456"], ["192.168.0.1"],
    ],
)  # fmt: skip
def test_other_hosts_missing_hosts_and_two_hosts_are_refused(hosts: list[str]) -> None:
    assert not is_own_request(hosts, [])


@pytest.mark.parametrize(
    "origin", ["http://127.0.0.1:8642", "http://localhost", "https://[::1]:8000"]
)
def test_loopback_origins_are_accepted(origin: str) -> None:
    assert is_own_origin([origin])


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "", "http://127.0.0.1.evil.example", "file://",
     "http://evil@localhost", "chrome-extension://abc", "http://localhost/path"],
)  # fmt: skip
def test_other_origins_are_refused(origin: str) -> None:
    assert not is_own_origin([origin])
    assert not is_own_request(["127.0.0.1"], [origin])
    assert not is_own_request(["127.0.0.1"], ["http://127.0.0.1", origin])
