"""A silent client of LeRobot's protocol is disconnected and does not block others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from proctor.protocols import lerobot
from proctor.serving.senders import Sender, Senders
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


class Clock:
    """A clock that a test sets."""

    moment = 0.0

    def __call__(self) -> float:
        return self.moment


def pool(most: int = 4, most_bytes: int = 100, **limits: float) -> tuple[Senders, Clock, list[str]]:
    """Return senders on a clock of their own, and the names of those that were cut."""
    clock = Clock()
    return Senders(ServerLimits(**limits), most, most_bytes, clock), clock, []  # type: ignore[arg-type]


def opened(senders: Senders, cut: list[str], name: str) -> Sender:
    sender = senders.open(lambda: cut.append(name))
    assert sender is not None
    sender.wait()
    return sender


@pytest.mark.parametrize(("pauses_s", "is_cut"), [([200] * 6, False), ([200, 501], True)])
def test_only_a_client_that_pauses_for_too_long_is_cut(pauses_s: list[int], is_cut: bool) -> None:
    senders, clock, cut = pool(idle_s=500)
    sender = opened(senders, cut, "a")
    for pause_s in pauses_s:
        clock.moment += pause_s
        senders.sweep()
        sender.work(proven=True)
        sender.wait()
    assert cut == ["a"] * is_cut


@pytest.mark.parametrize(
    ("pause_s", "parts", "is_cut"), [(4, 3, False), (4, 9, True), (6, 2, True)]
)
def test_an_unfinished_message_has_deadlines_of_its_own(
    pause_s: int, parts: int, is_cut: bool
) -> None:
    senders, clock, cut = pool(open_s=5, message_s=30)
    sender = opened(senders, cut, "a")
    for part in range(parts):
        sender.hold(part + 1)
        clock.moment += pause_s
        senders.sweep()
    assert cut == ["a"] * is_cut


def test_a_new_sender_gets_the_place_of_the_longest_silent_one_without_a_message() -> None:
    senders, clock, cut = pool(most=3)
    opened(senders, cut, "proven").work(proven=True)
    for name in ("first", "second", "third"):
        clock.moment += 1
        opened(senders, cut, name)
    assert cut == ["first"]


def test_a_crowd_of_silent_clients_gives_its_place_within_a_moment() -> None:
    senders, clock, cut = pool(open_s=10)
    opened(senders, cut, "proven").work(proven=True)
    opened(senders, cut, "silent")
    assert not senders.make_room()
    clock.moment += 0.2
    assert senders.make_room()
    assert cut == ["silent"]


def test_senders_that_are_served_keep_their_places() -> None:
    senders, _, cut = pool(most=2)
    for name in ("a", "b"):
        opened(senders, cut, name).work(proven=True)
    assert senders.open(lambda: None) is None
    assert cut == []


def test_a_small_message_gets_memory_from_the_largest_first_message() -> None:
    senders, _, cut = pool(most=4, most_bytes=100)
    for name, size in (("proven", 50), ("large", 30), ("small", 20)):
        sender = opened(senders, cut, name)
        if name == "proven":
            sender.work(proven=True)
            sender.wait()
        assert sender.hold(size)
    assert opened(senders, cut, "new").hold(25)
    assert cut == ["large"]


def test_memory_goes_to_a_new_message_when_another_one_pauses() -> None:
    senders, clock, cut = pool(most_bytes=100)
    slow, other = opened(senders, cut, "slow"), opened(senders, cut, "other")
    assert slow.hold(45)
    assert not other.hold(60)
    clock.moment += 2
    assert other.hold(60)
    assert cut == ["slow"]
    assert not slow.hold(81)
    other.close()
    assert opened(senders, cut, "third").hold(100)
