"""A silent client of LeRobot's protocol is disconnected and does not block others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from proctor.protocols import lerobot
from proctor.serving.calls import ClientSilent, OpenCalls
from proctor.system.limits import ServerLimits
from tests.unit.protocols.serving import served

METHODS = (lerobot.READY, lerobot.SETUP, lerobot.OBSERVE, lerobot.ACT)


def channel_to(url: str) -> grpc.Channel:
    """Open a separate connection."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(urlsplit(url).netloc, options)


def is_answered(url: str) -> bool:
    """Return whether another client is served at one of five tries.

    On a busy computer silent calls may still arrive, and one of them may take a try's place.
    """
    return any(_is_answered(url) for _ in range(5))


def _is_answered(url: str) -> bool:
    with channel_to(url) as channel:
        try:
            channel.unary_unary(f"/{lerobot.SERVICE}/{lerobot.READY}")(b"", timeout=60)
        except grpc.RpcError:
            return False
        return True


def silent_calls(channel: grpc.Channel, method: str, count: int, hold: threading.Event) -> Any:
    """Open calls of any method that never send their message."""

    def say_nothing() -> Iterator[bytes]:
        hold.wait(60)
        yield from ()

    call = channel.stream_unary(f"/{lerobot.SERVICE}/{method}")
    return [call.future(say_nothing()) for _ in range(count)]


@pytest.mark.parametrize("method", METHODS)
def test_silent_calls_block_nobody_and_are_cut(method: str) -> None:
    hold = threading.Event()
    with (
        served(protocol=["lerobot"], idle_s=0.5, max_connections=2) as (url, _),
        channel_to(url) as channel,
    ):
        try:
            calls = silent_calls(channel, method, 16, hold)
            time.sleep(0.2)
            assert is_answered(url), "the port is blocked while they are silent"
            codes = {call.exception(timeout=60).code() for call in calls}
        finally:
            hold.set()
        assert codes <= {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert grpc.StatusCode.DEADLINE_EXCEEDED in codes
        assert is_answered(url)


def test_silent_calls_by_many_connections_block_nobody() -> None:
    """With a long --idle_s a new call replaces the longest silent one."""
    hold = threading.Event()
    with served(protocol=["lerobot"], idle_s=600, max_connections=4) as (url, _):
        channels = [channel_to(url) for _ in range(12)]
        try:
            for channel in channels:
                silent_calls(channel, lerobot.OBSERVE, 4, hold)
            time.sleep(0.5)
            assert is_answered(url)
        finally:
            hold.set()
            for channel in channels:
                channel.close()


class HandLoop(asyncio.SelectorEventLoop):
    """An event loop whose time a test sets."""

    moment = 0.0

    def time(self) -> float:
        return self.moment


@pytest.mark.parametrize(("pauses_s", "arrived"), [([200] * 6, 6), ([200, 200, 501, 200], 2)])
def test_only_a_client_that_pauses_for_too_long_is_cut(pauses_s: list[int], arrived: int) -> None:
    loop, taken = HandLoop(), []

    async def sending() -> AsyncIterator[bytes]:
        for pause_s in pauses_s:
            loop.moment += pause_s
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            yield b"a part of an observation"

    async def receive() -> None:
        async for message in OpenCalls(ServerLimits(idle_s=500)).messages(sending()):
            taken.append(message)

    with contextlib.closing(loop), contextlib.suppress(ClientSilent):
        loop.run_until_complete(receive())
    assert len(taken) == arrived


def test_a_call_that_is_being_cut_does_not_end_the_one_that_takes_its_place() -> None:
    loop = HandLoop()

    async def silent() -> AsyncIterator[bytes]:
        try:
            await loop.create_future()
        finally:
            for _ in range(5):  # it takes a while to end
                await asyncio.sleep(0)
        yield b""

    async def sending() -> AsyncIterator[bytes]:
        yield b"hello"

    async def both() -> None:
        calls = OpenCalls(ServerLimits(idle_s=500, max_clients=1))
        first = loop.create_task(calls.only_message(silent()))
        await asyncio.sleep(0)
        loop.moment += 501
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await calls.only_message(sending()) == b"hello"
        with pytest.raises(ClientSilent):
            await first

    with contextlib.closing(loop):
        loop.run_until_complete(both())
