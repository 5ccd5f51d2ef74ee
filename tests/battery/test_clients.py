"""Every client survives every wrong peer: one error of ours, in bounded time and memory."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import psutil
import pytest

from proctor.errors import ProctorError
from tests.battery.clients import CLIENTS, LIMIT_S, OURS, PEERS
from tests.battery.services import MIB
from tests.unit.protocols.serving import peer

MOST_GROWTH = 64 * MIB


@pytest.mark.parametrize("behave", PEERS, ids=lambda behave: behave.__name__)
@pytest.mark.parametrize("name", list(CLIENTS))
def test_a_wrong_peer_costs_a_client_one_error(
    name: str, behave: Callable[[socket.socket], None]
) -> None:
    process = psutil.Process()
    with peer(behave) as port:
        memory, began = process.memory_info().rss, time.monotonic()
        with pytest.raises((ProctorError, *OURS)) as refused:
            CLIENTS[name].use(port)
        assert time.monotonic() - began < LIMIT_S
        assert process.memory_info().rss - memory < MOST_GROWTH
    assert "\n" not in str(refused.value)
