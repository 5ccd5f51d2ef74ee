"""Web pages of other sites cannot use a policy server on this machine."""

from __future__ import annotations

import asyncio
import http.client
from urllib.parse import urlsplit

import grpc
import pytest
import websockets

from proctor.protocols import lerobot
from tests.unit.protocols.serving import served

EVIL = "https://evil.example"


def status_of(url: str, path: str, **headers: str) -> int:
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def handshake(url: str, **headers: str) -> int:
    """Open a WebSocket as a browser does; returns the HTTP status."""

    async def connect() -> int:
        try:
            async with websockets.connect(url, additional_headers=headers, proxy=None):
                return 101
        except websockets.exceptions.InvalidStatus as refused:
            return refused.response.status_code

    return asyncio.run(connect())


@pytest.mark.parametrize("key", [None, "key"])
def test_a_web_page_of_another_site_cannot_open_a_websocket(key: str | None) -> None:
    with served(api_key=key) as (url, _):
        key_in_url = f"{url}/?api_key={key}"
        assert handshake(key_in_url, Origin=EVIL) == 403
        assert handshake(key_in_url, Origin="null") == 403
        assert handshake(key_in_url, Origin="http://localhost:3000") == 101
        assert handshake(key_in_url) == 101


@pytest.mark.parametrize(
    ("protocol", "path"), [("openpi", "/healthz"), ("vla-eval", "/health"), ("vla-eval", "/config")]
)
def test_pages_are_refused_by_another_name_for_this_machine(protocol: str, path: str) -> None:
    with served(protocol=[protocol]) as (url, _):
        assert status_of(url, path) == 200
        assert status_of(url, path, Host="evil.example") == 403
        assert status_of(url, path, Origin=EVIL) == 403
        assert status_of(url, "/", Host="evil.example") == 403


def test_elsewhere_than_on_this_machine_the_key_decides() -> None:
    with served(host="0.0.0.0", trust=True, api_key="key") as (url, _):
        here = url.replace("ws://0.0.0.0", "ws://127.0.0.1")
        assert handshake(f"{here}/?api_key=key", Origin=EVIL) == 101
        assert handshake(here, Origin=EVIL) == 401
        assert status_of(here, "/healthz", Host="robot.example") == 200


def test_a_grpc_call_with_another_sites_origin_is_refused() -> None:
    with (
        served(protocol=["lerobot"]) as (url, _),
        grpc.insecure_channel(urlsplit(url).netloc) as channel,
    ):
        ready = channel.unary_unary(f"/{lerobot.SERVICE}/{lerobot.READY}")
        ready(b"", timeout=60)
        with pytest.raises(grpc.RpcError) as refused:
            ready(b"", timeout=60, metadata=(("origin", EVIL),))
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
